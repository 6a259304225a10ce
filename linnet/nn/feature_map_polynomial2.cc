// The exact features of the polynomial kernel of degree two (ops/polynomial.h). Attention over L
// positions with values of M dimensions costs O(L D^2 M) per head.
#include <torch/types.h>

#include "linnet/nn/feature_map.h"
#include "linnet/ops/polynomial.h"

namespace linnet::nn {
namespace {

class Polynomial2 : public FeatureMapImpl {
 public:
  explicit Polynomial2(int64_t query_dim) : query_dim_(query_dim) {}

  torch::Tensor Keys(const torch::Tensor& k) const override {
    CheckFeatureInput(k, query_dim_);
    return ops::Polynomial2(k);
  }

 private:
  int64_t query_dim_;
};

}  // namespace

FeatureMapKind Polynomial2FeatureMapKind() {
  return {"polynomial2", [](const MixerSpec&, int64_t query_dim) -> FeatureMap {
            return std::make_shared<Polynomial2>(query_dim);
          }};
}

}  // namespace linnet::nn
