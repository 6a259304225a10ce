// Masked 2-D convolution over images in raster order as a differentiable libtorch operation over
// kernels/masked_convolution.h.
//
//   h = MaskedConvolution(image, w1, b1, {.rows = 4, .columns = 7});
//   y = MaskedConvolution(h, w2, b2, {.rows = 3, .columns = 5, .gelu = true});
#ifndef LINNET_OPS_MASKED_CONVOLUTION_H_
#define LINNET_OPS_MASKED_CONVOLUTION_H_

#include <torch/types.h>

#include <cstdint>

#include "linnet/ops/layer_rows.h"

namespace linnet::ops {

struct MaskedConvolutionOptions {
  int64_t rows = 1, columns = 1;  // of the window; `columns` is odd
  bool gelu = false;              // convolves gelu(x) in place of x
  Precision precision = Precision::kFp32;
};

// x [N, R, C, in], weight [out, inputs], bias [out] -> [N, R, C, out]. A pixel's inputs are those
// of its window in raster order, of which the last row has the first
// inputs - (rows - 1) * columns * in only; outside the image they are zeros. They may not go beyond
// the pixel itself. In fp32 on the CPU, runs the fused kernel (first derivatives only); elsewhere
// libtorch's conv2d. With precision kBf16, the fused kernel rounds the operands of the products for
// the output and the gradient of x to bf16, if the processor has such products and the numbers of
// channels are multiples of 64; otherwise kBf16 changes nothing. Throws InputError on shapes that
// do not match.
torch::Tensor MaskedConvolution(const torch::Tensor& x, const torch::Tensor& weight,
                                const torch::Tensor& bias, const MaskedConvolutionOptions& options);

}  // namespace linnet::ops

#endif  // LINNET_OPS_MASKED_CONVOLUTION_H_
