// Masked 2-D convolution over images in raster order (van den Oord et al., 2016): a pixel's output
// depends on a window of pixels whose last row ends, in its middle, at the pixel itself or before
// it. Forward and backward.
//
//   MaskedConvolutionShape shape{.images = 4, .rows = 28, .columns = 28, .in = 64, .out = 128,
//                                .window_rows = 3, .window_columns = 5, .last = 3 * 64};
//   MaskedConvolution(shape, {.x = x, .weight = w, .bias = b, .out = out, .scratch = s},
//                     SerialFor);
//
// With side = window_columns / 2, the inputs of pixel (y, x) are, in raster order, those of the
// pixels (y - window_rows + 1, x - side) .. (y - 1, x + side), row by row, and the first `last`
// inputs of row y from (y, x - side) on. Inputs outside the image are zeros.
//
//   out[n, y, x, o] = bias[o] + sum over i < Inputs() of weight[o, i] input_i(n, y, x)
#ifndef LINNET_KERNELS_MASKED_CONVOLUTION_H_
#define LINNET_KERNELS_MASKED_CONVOLUTION_H_

#include <cstddef>

#include "linnet/base/parallel.h"
#include "linnet/kernels/bfloat16.h"

namespace linnet::kernels {

struct MaskedConvolutionShape {
  size_t images, rows, columns;  // columns >= 1
  size_t in, out;                // channels
  size_t window_rows, window_columns;
  size_t last;  // inputs in the window's last row, at most (side + 1) * in

  size_t Side() const { return window_columns / 2; }  // window_columns is odd
  size_t Inputs() const { return (window_rows - 1) * window_columns * in + last; }
  // Length of an image row in floats, with `channels` a pixel and Side() pixels at either end.
  size_t PaddedRow(size_t channels) const { return (columns + 2 * Side()) * channels; }
};

size_t MaskedConvolutionScratch(const MaskedConvolutionShape& shape);

// Whether x and grad_out may be bf16 below: where the processor has products of bf16 numbers
// (isa.h), if `in`, `out` and `last` are multiples of 64. The weights are then rounded to bf16 too;
// sums are fp32.
bool MaskedConvolutionTakesBf16(const MaskedConvolutionShape& shape);

// Arrays are dense. x has rows of PaddedRow(in) floats, which begin and end with Side() pixels of
// zeros: [images, rows, Side() + columns + Side(), in]. weight is [out, Inputs()], bias [out], the
// output [images, rows, columns, out].
template <typename T>
struct MaskedConvolutionForwardArgs {
  const T* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* out = nullptr;
  float* scratch = nullptr;  // MaskedConvolutionScratch(shape) floats, aligned to 64 bytes
};
// Like the gradients below, the same bits at any number of threads.
void MaskedConvolution(const MaskedConvolutionShape& shape,
                       const MaskedConvolutionForwardArgs<float>& args, ParallelFor parallel_for);
void MaskedConvolution(const MaskedConvolutionShape& shape,
                       const MaskedConvolutionForwardArgs<BFloat16>& args,
                       ParallelFor parallel_for);

// The gradient of the pixels, without the zeros around them: grad_x [images, rows, columns, in].
// grad_out has rows of PaddedRow(out) floats, padded like x. `last` must be a multiple of `in`.
template <typename T>
struct MaskedConvolutionGradXArgs {
  const float* weight = nullptr;
  const T* grad_out = nullptr;
  float* grad_x = nullptr;
  float* scratch = nullptr;  // as above
};
void MaskedConvolutionGradX(const MaskedConvolutionShape& shape,
                            const MaskedConvolutionGradXArgs<float>& args,
                            ParallelFor parallel_for);
void MaskedConvolutionGradX(const MaskedConvolutionShape& shape,
                            const MaskedConvolutionGradXArgs<BFloat16>& args,
                            ParallelFor parallel_for);

// The gradients of weight and bias, overwritten. x is padded, grad_out [images, rows, columns, out]
// is not. The work is split by outputs: 6 or 12 of them make a share.
struct MaskedConvolutionGradWeightArgs {
  const float* x = nullptr;
  const float* grad_out = nullptr;
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
};
void MaskedConvolutionGradWeight(const MaskedConvolutionShape& shape,
                                 const MaskedConvolutionGradWeightArgs& args,
                                 ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_MASKED_CONVOLUTION_H_
