// phi(x) = max(x, 0). A query without a positive component gives every key the weight 0, so its
// output is 0.
#include <torch/types.h>

#include "linnet/nn/feature_map.h"

namespace linnet::nn {
namespace {

class Relu : public FeatureMapImpl {
 public:
  torch::Tensor Keys(const torch::Tensor& k) const override { return torch::relu(k); }
};

}  // namespace

FeatureMapKind ReluFeatureMapKind() {
  return {"relu", [](const MixerSpec&, int64_t) -> FeatureMap { return std::make_shared<Relu>(); }};
}

}  // namespace linnet::nn
