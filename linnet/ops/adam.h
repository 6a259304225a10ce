// Optimizer updates over lists of tensors. In fp32 on the CPU, one pass of kernels/adam.h over all
// tensors together; elsewhere libtorch's own operations.
//
//   const std::vector<double> norms = GradientNorms(parameters);
//   AdamUpdate(parameters, first, second, scales, {.step = 1e-3f});     // and clears the gradients
#ifndef LINNET_OPS_ADAM_H_
#define LINNET_OPS_ADAM_H_

#include <torch/types.h>

#include <vector>

#include "linnet/kernels/adam.h"

namespace linnet::ops {

// The 2-norm of each parameter's gradient; 0 for a parameter without a gradient.
std::vector<double> GradientNorms(const std::vector<torch::Tensor>& parameters);

// Applies kernels::AdamUpdate to each parameter that has a gradient. The gradient is first
// multiplied by its entry of `gradient_scales`, and cleared afterwards. Call under
// torch::NoGradGuard.
void AdamUpdate(std::vector<torch::Tensor>& parameters, std::vector<torch::Tensor>& first_moments,
                std::vector<torch::Tensor>& second_moments,
                const std::vector<double>& gradient_scales, const kernels::AdamStep& step);

}  // namespace linnet::ops

#endif  // LINNET_OPS_ADAM_H_
