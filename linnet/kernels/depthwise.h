// Depthwise convolution along a sequence: mixes each channel of a position with the same channel of
// neighboring positions. It complements linear attention, which tells neighboring positions apart
// poorly.
//
//   DepthwiseShape shape{.batch = 4, .length = 250, .channels = 192, .width = 15, .before = 7};
//   DepthwiseForward(shape, {.x = x, .weight = w, .bias = b, .out = out}, SerialFor);
//
// out[n, t, c] = bias[c] + sum over j < width of weight[j, c] x[n, t + j - before, c]. x[n, t]
// counts as zero for t < 0 and t >= lengths[n], and out[n, t] is 0 for t >= lengths[n].
#ifndef LINNET_KERNELS_DEPTHWISE_H_
#define LINNET_KERNELS_DEPTHWISE_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"

namespace linnet::kernels {

struct DepthwiseShape {
  size_t batch, length, channels;
  size_t width;      // positions in the window
  size_t before;     // positions of the window before t; width - 1 makes the convolution causal
  size_t first = 0;  // the forward leaves positions of `out` before this one unchanged
};

// x, out and their gradients are dense [batch, length, channels]; weight is [width, channels], bias
// [channels]. lengths is [batch], each at most shape.length; null: all sequences have that length.
struct DepthwiseForwardArgs {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* out = nullptr;  // must not be x
  const int64_t* lengths = nullptr;
};
struct DepthwiseBackwardArgs {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* grad_out = nullptr;
  float* grad_x = nullptr;       // must not be grad_out
  float* grad_weight = nullptr;  // overwritten, like all gradients
  float* grad_bias = nullptr;
  const int64_t* lengths = nullptr;
};

// The work is split by channels only, so any number of threads gives the same results, bit for bit.
void DepthwiseForward(const DepthwiseShape& shape, const DepthwiseForwardArgs& args,
                      ParallelFor parallel_for);
void DepthwiseBackward(const DepthwiseShape& shape, const DepthwiseBackwardArgs& args,
                       ParallelFor parallel_for);

// One position: out[c] = start[c] + sum over j < width of weight[j, c] x[j, c].
struct DepthwiseRowArgs {
  size_t width = 0, channels = 0;
  const float* x = nullptr;  // [width, channels], rows x_stride floats apart
  size_t x_stride = 0;
  const float* weight = nullptr;  // [width, channels], rows weight_stride floats apart
  size_t weight_stride = 0;
  const float* start = nullptr;  // a bias, or `out` to add to it; null: zeros
  float* out = nullptr;          // must not be part of x
};
void DepthwiseRow(const DepthwiseRowArgs& args);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_DEPTHWISE_H_
