// The exact features of the polynomial kernel of degree two (section 3.2.1 of Katharopoulos et al.
// 2020):
//
//   phi(q) . phi(k) = (q . k / sqrt(D) + 1)^2,   phi(x) = (1, sqrt(2) y_i, y_i^2, sqrt(2) y_i y_j)
//
// with y = x / D^(1/4) and i < j: F = 1 + D + D (D + 1) / 2. Attention over L positions with values
// of M dimensions costs O(L D^2 M) per head.
#include <torch/types.h>

#include <cmath>
#include <numbers>

#include "linnet/nn/feature_map.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class Polynomial2 : public FeatureMapImpl {
 public:
  explicit Polynomial2(int64_t query_dim)
      : query_dim_(query_dim), scale_(std::pow(query_dim, -0.25)) {
    const Tensor pairs = torch::triu_indices(query_dim, query_dim, 1);
    first_ = pairs[0];
    second_ = pairs[1];
  }

  Tensor Keys(const Tensor& k) const override {
    CheckFeatureInput(k, query_dim_);
    const Tensor y = k * scale_;
    return torch::cat({torch::ones_like(y.narrow(-1, 0, 1)), std::numbers::sqrt2 * y, y.square(),
                       std::numbers::sqrt2 * y.index_select(-1, first_.to(y.device())) *
                           y.index_select(-1, second_.to(y.device()))},
                      -1);
  }

 private:
  int64_t query_dim_;
  double scale_;
  Tensor first_, second_;  // i and j of all pairs i < j
};

}  // namespace

FeatureMapKind Polynomial2FeatureMapKind() {
  return {"polynomial2", [](const MixerSpec&, int64_t query_dim) -> FeatureMap {
            return std::make_shared<Polynomial2>(query_dim);
          }};
}

}  // namespace linnet::nn
