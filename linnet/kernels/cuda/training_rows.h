// Row-wise operations of a layer's training step on a GPU: residual, bias and layer norm in one
// pass, their backward in another, and sums over rows. The matrix products are not included.
//
//   StartAddNorm({.rows = n, .width = d, .x = product, .bias = b, .residual = r, ...}, stream);
//
// All pointers are to device memory and aligned to 16 bytes. Calls return before the GPU is done.
// Sums are added in a fixed order, so equal inputs give equal results, bit for bit. Start functions
// throw CudaError if a launch fails.
#ifndef LINNET_KERNELS_CUDA_TRAINING_ROWS_H_
#define LINNET_KERNELS_CUDA_TRAINING_ROWS_H_

#include <cstddef>

#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/cuda/device.h"

namespace linnet::kernels::cuda {

// Maximum width of StartAddNorm() and StartAddNormGrad(). Their widths are multiples of 4.
inline constexpr unsigned kMaxTrainingWidth = 512;

// x += bias + residual; out = (x - mean) * scale * weight + offset, scale = 1 / sqrt(var + eps). x,
// residual and out are dense [rows, width]; mean and var are those of a row. If weight is null,
// there is no norm: out and stats are not written.
struct AddNormArgs {
  unsigned rows = 0, width = 0;
  float* x = nullptr;
  const float *bias = nullptr, *residual = nullptr;
  const float *weight = nullptr, *offset = nullptr;
  float eps = 0;
  float* out = nullptr;
  float* stats = nullptr;  // [rows, 2]: mean, scale
};
void StartAddNorm(const AddNormArgs& args, Stream stream);

// The backward of StartAddNorm() with non-null weight. Writes the gradient of x, which is also the
// gradient of residual, to grad_x and, rounded to bf16, to grad_x_narrow. Writes the gradients of
// weight, offset and bias, which are sums over the rows, to `sums`. `x` is the sum that
// StartAddNorm() wrote to its x.
struct AddNormGradArgs {
  unsigned rows = 0, width = 0;
  const float *x = nullptr, *stats = nullptr, *weight = nullptr, *grad_out = nullptr;
  float* grad_x = nullptr;
  BFloat16* grad_x_narrow = nullptr;
  float* sums = nullptr;     // [3, width]: gradients of weight, offset, bias
  float* partial = nullptr;  // workspace of AddNormGradPartial(rows, width) floats
};
size_t AddNormGradPartial(unsigned rows, unsigned width);
void StartAddNormGrad(const AddNormGradArgs& args, Stream stream);

// sums[c] = sum over rows of x[row, c]; x [rows, width] with rows `stride` elements apart. width
// and stride are multiples of 4. T: float, BFloat16.
template <typename T>
struct ColumnSumsArgs {
  unsigned rows = 0, width = 0;
  size_t stride = 0;
  const T* x = nullptr;
  float* sums = nullptr;     // [width]
  float* partial = nullptr;  // workspace of ColumnSumsPartial(rows, width) floats
};
size_t ColumnSumsPartial(unsigned rows, unsigned width);
template <typename T>
void StartColumnSums(const ColumnSumsArgs<T>& args, Stream stream);

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_TRAINING_ROWS_H_
