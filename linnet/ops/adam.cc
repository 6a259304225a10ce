#include "linnet/ops/adam.h"

#include <torch/utils.h>

#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

bool IsFused(const Tensor& parameter) {
  if constexpr (kHasFused) return FusedAdam(parameter);
  return false;
}

}  // namespace

std::vector<double> GradientNorms(const std::vector<Tensor>& parameters) {
  std::vector<double> norms(parameters.size());
  if constexpr (kHasFused) FusedGradientNorms(parameters, norms);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& gradient = parameters[i].grad();
    if (gradient.defined() && !IsFused(parameters[i])) norms[i] = gradient.norm().item<double>();
  }
  return norms;
}

void AdamUpdate(std::vector<Tensor>& parameters, std::vector<Tensor>& first_moments,
                std::vector<Tensor>& second_moments, const std::vector<double>& gradient_scales,
                const kernels::AdamStep& step) {
  if constexpr (kHasFused) {
    FusedAdamUpdate(parameters, first_moments, second_moments, gradient_scales, step);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) continue;
    if (!IsFused(parameters[i])) {
      Tensor &m = first_moments[i], &v = second_moments[i];
      gradient.mul_(gradient_scales[i]);
      m.mul_(step.beta1).add_(gradient, 1 - step.beta1);
      v.mul_(step.beta2).addcmul_(gradient, gradient, 1 - step.beta2);
      parameters[i].mul_(step.decay);
      if (step.adaptive) {
        parameters[i].addcdiv_(m, v.sqrt().mul_(step.root_scale).add_(step.eps), -step.step);
      } else {
        parameters[i].add_(m, -step.step);
      }
    }
    gradient.reset();
  }
}

}  // namespace linnet::ops
