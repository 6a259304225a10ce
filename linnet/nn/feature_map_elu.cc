// phi(x) = elu(x) + 1, the feature map of Katharopoulos et al. 2020 (equation 7).
#include <torch/types.h>

#include "linnet/nn/feature_map.h"

namespace linnet::nn {
namespace {

class Elu : public FeatureMapImpl {
 public:
  torch::Tensor Keys(const torch::Tensor& k) const override { return torch::elu(k) + 1; }
  std::optional<kernels::FeatureMap> fused() const override { return kernels::FeatureMap::kElu; }
};

}  // namespace

FeatureMapKind EluFeatureMapKind() {
  return {"elu", [](const MixerSpec&, int64_t) -> FeatureMap { return std::make_shared<Elu>(); }};
}

}  // namespace linnet::nn
