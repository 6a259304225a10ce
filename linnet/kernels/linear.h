// Matrix products with weights packed once: y = x W^T + b, from one row (a step of one sequence, at
// the speed of reading W) to thousands (a prefix, at the speed of arithmetic).
//
//   std::vector<float> packed(PackedLinearSize(in, out));
//   PackLinear(in, out, weight, /*weight_stride=*/in, bias, packed.data());
//   Linear(rows, in, out, x, in, packed.data(), LinearMode::kOverwrite, y, out);
//
// Each y[r, o] is one chain of fused multiply-adds from b[o] over the inputs in ascending order,
// whatever the number of rows and however the outputs are cut into ranges, so a row's result never
// depends on its company (the plain-code target rounds the products, and keeps the same promise).
//
// Packed form: panels of kPanel outputs, padded with zeros; a panel is its kPanel biases and then,
// for each input, its kPanel weights. Outputs [a, out) with a a multiple of kPanel are therefore a
// packed matrix of their own, which begins at packed + PackedLinearSize(in, a).
#ifndef LINNET_KERNELS_LINEAR_H_
#define LINNET_KERNELS_LINEAR_H_

#include <cstddef>

namespace linnet::kernels {

inline constexpr size_t kPanel = 16;

// Floats of a packed matrix.
constexpr size_t PackedLinearSize(size_t in, size_t out) {
  return (out + kPanel - 1) / kPanel * kPanel * (in + 1);
}

// weight [out, in] with rows weight_stride floats apart (so it may be columns of a wider matrix);
// bias [out], or null for zeros.
void PackLinear(size_t in, size_t out, const float* weight, size_t weight_stride, const float* bias,
                float* packed);

enum class LinearMode {
  kOverwrite,  // y = x W^T + b
  kAdd,        // y = y + (x W^T + b), the sum in parentheses complete before it is added
};

// x [rows, in] and y [rows, out], rows x_stride and y_stride floats apart; packed aligned to 64
// bytes; x and y any address, not overlapping. Exactly [rows, out] of y is written.
void Linear(size_t rows, size_t in, size_t out, const float* x, size_t x_stride,
            const float* packed, LinearMode mode, float* y, size_t y_stride);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_H_
