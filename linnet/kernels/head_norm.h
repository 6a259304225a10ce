// Norms over the heads of gated recurrences: L2 norms of queries and keys after silu, and the RMS
// norm of outputs with their gate. Each forward and backward is one pass over memory.
//
//   SiluL2Norm({.rows = n, .columns = 384, .normed = 256, .width = 32, .eps = 1e-6f}, x, y,
//              SerialFor);
//   GatedRmsNorm({.rows = n, .heads = 4, .width = 32, .eps = 1e-5f},
//                {.x = x, .weight = w, .gate = g, .gate_stride = 128}, y, SerialFor);
//
// Results do not depend on how the work is split.
#ifndef LINNET_KERNELS_HEAD_NORM_H_
#define LINNET_KERNELS_HEAD_NORM_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"

namespace linnet::kernels {

// s = silu(x) = x / (1 + e^-x), and y = s, except in a row's first `normed` columns: each group
// of `width` of them is divided by its length, y = s / sqrt(sum of s^2 over the group + eps).
struct SiluL2NormShape {
  size_t rows = 0, columns = 0;
  size_t normed = 0;  // a multiple of width
  size_t width = 1;
  float eps = 0;
};
// x, y, grad_y and grad_x are dense [rows, columns]. y must not be x. grad_x may be grad_y.
void SiluL2Norm(const SiluL2NormShape& shape, const float* x, float* y, ParallelFor parallel_for);
void SiluL2NormBackward(const SiluL2NormShape& shape, const float* x, const float* grad_y,
                        float* grad_x, ParallelFor parallel_for);

// Divides each of `rows` dense rows of `width` floats by its length, in place:
// x / sqrt(sum of x^2 + eps). eps > 0 keeps rows of zeros.
void L2Norm(size_t rows, size_t width, float eps, float* x);

enum class GateFunction : uint8_t { kSilu, kSigmoid };

// For each row and head: y = x / sqrt(mean(x^2) + eps) * weight * f(gate), f as `function` says.
struct GatedRmsNormShape {
  size_t rows = 0, heads = 0, width = 0;
  float eps = 0;
  GateFunction function = GateFunction::kSilu;
};
struct GatedRmsNormArgs {
  const float* x = nullptr;       // dense [rows, heads, width], as y and the gradients
  const float* weight = nullptr;  // [width]
  const float* gate = nullptr;    // [rows, heads, width], dense but for its rows; null: f = 1
  size_t gate_stride = 0;         // floats from one row of the gate to the next
};
struct GatedRmsNormGradients {
  float* x = nullptr;
  float* gate = nullptr;    // written unless the gate is null
  float* weight = nullptr;  // [width], written
};
// y may be x.
void GatedRmsNorm(const GatedRmsNormShape& shape, const GatedRmsNormArgs& args, float* y,
                  ParallelFor parallel_for);
// scratch: GatedRmsNormScratch() floats.
void GatedRmsNormBackward(const GatedRmsNormShape& shape, const GatedRmsNormArgs& args,
                          const float* grad_y, const GatedRmsNormGradients& gradients,
                          float* scratch, ParallelFor parallel_for);
size_t GatedRmsNormScratch(const GatedRmsNormShape& shape);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_HEAD_NORM_H_
