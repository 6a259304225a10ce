// Depthwise convolution along a sequence as a differentiable libtorch operation over
// kernels/depthwise.h.
//
//   y = DepthwiseConvolution(x, weight, bias, lengths, /*causal=*/false);
#ifndef LINNET_OPS_DEPTHWISE_H_
#define LINNET_OPS_DEPTHWISE_H_

#include <torch/types.h>

namespace linnet::ops {

// x [N, L, C], weight [width, C], bias [C] -> [N, L, C]: for each channel and position, the bias
// plus the weighted sum over the `width` positions (an odd number) around it or, if causal, over
// the `width` positions that end with it. `lengths` is undefined or int64 [N]: positions from
// lengths[n] on count as zeros, whatever they hold, and their outputs are zeros. The fused form is
// differentiable once. Throws InputError on shapes that do not match.
torch::Tensor DepthwiseConvolution(const torch::Tensor& x, const torch::Tensor& weight,
                                   const torch::Tensor& bias, const torch::Tensor& lengths,
                                   bool causal);

}  // namespace linnet::ops

#endif  // LINNET_OPS_DEPTHWISE_H_
