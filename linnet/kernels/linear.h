// Matrix products y = x W^T + b with weights that are packed once. x has one row (a step of one
// sequence, where reading W limits the speed) to thousands of rows (a prefix, where arithmetic
// limits the speed).
//
//   AlignedBuffer<float> packed(PackedLinearSize(in, out));
//   PackLinear(in, out, weight, /*weight_stride=*/in, bias, packed.data());
//   Linear(rows, in, out, x, in, packed.data(), LinearMode::kOverwrite, y, out);
//
// Each y[r, o] is one chain of fused multiply-adds that starts from b[o] and takes the inputs in
// ascending order, however many rows there are and however the outputs are split. So a row's result
// never depends on the other rows. This also holds for the plain-code target (SCALAR), which has no
// fused multiply-add and rounds each product.
//
// Packed form: panels of kPanel outputs, zero-padded. A panel holds its kPanel biases, then kPanel
// weights for each input. Hence, for each multiple m of kPanel, outputs [m, out) form a packed
// matrix that starts at packed + PackedLinearSize(in, m).
#ifndef LINNET_KERNELS_LINEAR_H_
#define LINNET_KERNELS_LINEAR_H_

#include <cstddef>

namespace linnet::kernels {

inline constexpr size_t kPanel = 16;  // outputs per panel

// Size of a packed matrix, in floats.
constexpr size_t PackedLinearSize(size_t in, size_t out) {
  return (out + kPanel - 1) / kPanel * kPanel * (in + 1);
}

// weight [out, in] with rows weight_stride floats apart (so it may be columns of a wider matrix);
// bias [out], or null for zeros.
void PackLinear(size_t in, size_t out, const float* weight, size_t weight_stride, const float* bias,
                float* packed);

enum class LinearMode {
  kOverwrite,  // y = x W^T + b
  kAdd,        // y = y + (x W^T + b); the sum in parentheses is computed first
};

// x [rows, in] and y [rows, out] have rows x_stride and y_stride floats apart, any alignment, and
// do not overlap. packed is aligned to 64 bytes. Writes exactly [rows, out] of y.
void Linear(size_t rows, size_t in, size_t out, const float* x, size_t x_stride,
            const float* packed, LinearMode mode, float* y, size_t y_stride);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_H_
