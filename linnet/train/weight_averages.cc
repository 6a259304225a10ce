#include "linnet/train/weight_averages.h"

#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>

namespace linnet::train {

WeightAverages::WeightAverages(double decay, const std::vector<torch::Tensor>& parameters)
    : decay_(decay), parameters_(parameters) {
  if (decay <= 0) return;
  for (const torch::Tensor& p : parameters_) averages_.push_back(p.detach().clone());
}

void WeightAverages::Update(int64_t step) {
  if (averages_.empty()) return;
  // The decay is lower in the first updates, because the averages begin as the initial weights.
  const double t = static_cast<double>(step);
  const double decay = std::min(decay_, (1 + t) / (10 + t));
  torch::NoGradGuard no_grad;
#if TORCH_VERSION_MAJOR >= 2
  if (!parameters_[0].device().is_cpu()) {
    return at::_foreach_lerp_(averages_, parameters_, 1 - decay);
  }
#endif
  for (size_t i = 0; i < averages_.size(); ++i) averages_[i].lerp_(parameters_[i], 1 - decay);
}

void WeightAverages::Swap() {
  for (size_t i = 0; i < averages_.size(); ++i) {
    const torch::Tensor weights = parameters_[i].data();
    parameters_[i].set_data(averages_[i]);
    averages_[i] = weights;
  }
}

}  // namespace linnet::train
