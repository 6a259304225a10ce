// Depthwise convolution along a sequence: mixes each channel of a position with the same channel of
// its neighbors. It complements linear attention, which distinguishes neighbors poorly.
//
//   DepthwiseShape shape{.batch = 4, .length = 250, .channels = 192, .width = 15, .before = 7};
//   DepthwiseForward(shape, {.x = x, .weight = w, .bias = b, .out = out}, SerialFor);
//
// out[n, t, c] = bias[c] + sum over j < width of weight[j, c] x[n, t + j - before, c]. x counts as
// zero at positions below 0 and from lengths[n] on. out is 0 from lengths[n] on.
#ifndef LINNET_KERNELS_DEPTHWISE_H_
#define LINNET_KERNELS_DEPTHWISE_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"

namespace linnet::kernels {

struct DepthwiseShape {
  size_t batch, length, channels;
  size_t width;      // positions in the window
  size_t before;     // positions of the window before t; width - 1: causal
  size_t first = 0;  // the forward does not write positions of out before this one
};

// x, out and their gradients are dense [batch, length, channels]; weight is [width, channels], bias
// [channels]. lengths is [batch], each at most length; null: every sequence has full length.
struct DepthwiseForwardArgs {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* out = nullptr;  // not x
  const int64_t* lengths = nullptr;
};
struct DepthwiseBackwardArgs {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* grad_out = nullptr;
  float* grad_x = nullptr;       // not grad_out
  float* grad_weight = nullptr;  // overwritten, like all gradients
  float* grad_bias = nullptr;
  const int64_t* lengths = nullptr;
};

// Work is split by channels only, so results do not depend, bit for bit, on the number of threads.
void DepthwiseForward(const DepthwiseShape& shape, const DepthwiseForwardArgs& args,
                      ParallelFor parallel_for);
void DepthwiseBackward(const DepthwiseShape& shape, const DepthwiseBackwardArgs& args,
                       ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_DEPTHWISE_H_
