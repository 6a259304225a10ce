// Depthwise convolution along a sequence as a differentiable libtorch operation over
// kernels/depthwise.h.
//
//   y = DepthwiseConvolution(x, weight, bias, lengths, /*causal=*/false);
#ifndef LINNET_OPS_DEPTHWISE_H_
#define LINNET_OPS_DEPTHWISE_H_

#include <torch/types.h>

namespace linnet::ops {

// x [N, L, C], weight [width, C], bias [C] -> [N, L, C]. Each channel's output at a position is the
// bias plus the weighted sum of the channel over a window of `width` positions. The window is
// centered on this position (odd width) or, if causal, ends with it. `lengths` is undefined or
// int64 [N]: positions from lengths[n] on count as zeros, whatever they hold, and their outputs are
// zeros. In fp32 on the CPU, runs the fused kernel (first derivatives only); elsewhere libtorch's
// conv1d. Throws InputError on shapes that do not match and on an even width if not causal.
torch::Tensor DepthwiseConvolution(const torch::Tensor& x, const torch::Tensor& weight,
                                   const torch::Tensor& bias, const torch::Tensor& lengths,
                                   bool causal);

}  // namespace linnet::ops

#endif  // LINNET_OPS_DEPTHWISE_H_
