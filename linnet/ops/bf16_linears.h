// Products in bf16 by libtorch's operations, forward and backward (private to linnet/ops).
#ifndef LINNET_OPS_BF16_LINEARS_H_
#define LINNET_OPS_BF16_LINEARS_H_

#include <torch/types.h>

#include <vector>

#include "linnet/kernels/activation.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::ops {

// y_i = x W_i^T + b_i as one product: x [..., in] in fp32 or bf16, weights [out_i, in] in fp32. The
// operands of the forward's and the backward's products are rounded to bf16; sums and results are
// fp32. x and the weights are kept for the backward in bf16, and a bf16 x has a bf16 gradient.
// narrow: the results, their gradients and the biases are bf16 too, for an attention with bf16
// kernels. On a GPU, the results' gradients are rounded to bf16 before they are summed for the
// biases.
std::vector<torch::Tensor> Bf16Linears(const torch::Tensor& x,
                                       const std::vector<torch::Tensor>& weights,
                                       const std::vector<torch::Tensor>& biases,
                                       bool narrow = false);

// n(residual + a W^T + b), rounded like Bf16Linears, where n is the norm or the identity; residual
// and result are fp32.
torch::Tensor Bf16Project(const torch::Tensor& a, const torch::Tensor& weight,
                          const torch::Tensor& bias, const torch::Tensor& residual,
                          const Norm& norm_after);

// n(residual + act(x W1^T + b1) W2^T + b2), rounded like Bf16Linears. The hidden layer and its
// gradient are stored in bf16, and b1 is rounded to bf16.
torch::Tensor Bf16FeedForward(const torch::Tensor& x, const torch::Tensor& weight1,
                              const torch::Tensor& bias1, const torch::Tensor& weight2,
                              const torch::Tensor& bias2, const torch::Tensor& residual,
                              const Norm& norm_after, kernels::Activation activation);

}  // namespace linnet::ops

#endif  // LINNET_OPS_BF16_LINEARS_H_
