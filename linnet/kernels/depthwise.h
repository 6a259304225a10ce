// Depthwise convolution along a sequence: each channel of a position is mixed with the same channel of
// its neighbours, which is what linear attention, whose view is wide and blurred, lacks most.
//
//   DepthwiseShape shape{.batch = 4, .length = 250, .channels = 192, .width = 15, .before = 7};
//   DepthwiseForward(shape, {.x = x, .weight = w, .bias = b, .out = out}, SerialFor);
//
// out[n, t, c] = bias[c] + sum over j < width of weight[j, c] x[n, t + j - before, c], where positions
// below 0 and from lengths[n] on count as zeros; out at positions from lengths[n] on is 0.
#ifndef LINNET_KERNELS_DEPTHWISE_H_
#define LINNET_KERNELS_DEPTHWISE_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"

namespace linnet::kernels {

struct DepthwiseShape {
  size_t batch, length, channels;
  size_t width;      // positions that are mixed
  size_t before;     // of them, those before the position itself: width - 1 sees no future
  size_t first = 0;  // forward: rows of out before this one are left alone
};

// x, out and their gradients are dense [batch, length, channels]; weight [width, channels], bias
// [channels]. lengths [batch], each at most length, or null: all of it counts.
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
  float* grad_weight = nullptr;  // overwritten, as all gradients
  float* grad_bias = nullptr;
  const int64_t* lengths = nullptr;
};

// The same bits at any number of threads: channels are split among them, and nothing else.
void DepthwiseForward(const DepthwiseShape& shape, const DepthwiseForwardArgs& args,
                      ParallelFor parallel_for);
void DepthwiseBackward(const DepthwiseShape& shape, const DepthwiseBackwardArgs& args,
                       ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_DEPTHWISE_H_
