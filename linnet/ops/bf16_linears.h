// Matrix products in bf16 by libtorch's operations, with their backward (private to linnet/ops).
#ifndef LINNET_OPS_BF16_LINEARS_H_
#define LINNET_OPS_BF16_LINEARS_H_

#include <torch/types.h>

#include <vector>

#include "linnet/kernels/activation.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::ops {

// Computes all y_i = x W_i^T + b_i in one matrix product: x [..., in] in fp32 or bf16, weights
// [out_i, in] in fp32. In forward and backward, the operands of products are rounded to bf16; sums
// and results are fp32. The forward keeps x and the weights in bf16 for the backward. The gradient
// of x has the type of x. If `narrow`, the results and their gradients are bf16 too, for attention
// kernels that read bf16, and the biases are rounded to bf16. On a GPU, the results' gradients are
// rounded to bf16 before they are summed to the bias gradients.
std::vector<torch::Tensor> Bf16Linears(const torch::Tensor& x,
                                       const std::vector<torch::Tensor>& weights,
                                       const std::vector<torch::Tensor>& biases,
                                       bool narrow = false);

// Returns n(residual + a W^T + b), where n is norm_after, or the identity if that is undefined.
// Operands are rounded as in Bf16Linears(); residual and result are fp32.
torch::Tensor Bf16Project(const torch::Tensor& a, const torch::Tensor& weight,
                          const torch::Tensor& bias, const torch::Tensor& residual,
                          const Norm& norm_after);

// Returns n(residual + act(x W1^T + b1) W2^T + b2), with n and the rounding of Bf16Project(). The
// hidden layer and its gradient are stored in bf16, and b1 is rounded to bf16.
torch::Tensor Bf16FeedForward(const torch::Tensor& x, const torch::Tensor& weight1,
                              const torch::Tensor& bias1, const torch::Tensor& weight2,
                              const torch::Tensor& bias2, const torch::Tensor& residual,
                              const Norm& norm_after, kernels::Activation activation);

}  // namespace linnet::ops

#endif  // LINNET_OPS_BF16_LINEARS_H_
