// Layer and RMS normalization, fused with the additions that precede it in a post-norm layer: the
// sum of a product's partial results, and the residual.
//
//   LayerNorm({.rows = n, .dim = 256, .eps = 1e-5f}, {.x = x, .x_stride = 256},
//             {.weight = w, .bias = b}, y, 256);
#ifndef LINNET_KERNELS_LAYER_NORM_H_
#define LINNET_KERNELS_LAYER_NORM_H_

#include <cstddef>

namespace linnet::kernels {

struct LayerNormShape {
  size_t rows = 0, dim = 0;
  float eps = 1e-5f;
};

// The input of the norm: t = factor (x_0 + ... + x_{parts-1}) + residual, added in this order.
struct LayerNormInput {
  const float* x = nullptr;  // [parts][rows, dim]
  size_t x_stride = 0;       // floats from row to row
  size_t parts = 1;
  size_t part_stride = 0;           // floats from part to part
  const float* factors = nullptr;   // [rows]; null: 1
  const float* residual = nullptr;  // [rows, dim], or null for none
  size_t residual_stride = 0;
  // Optional, [rows, dim]: t is also stored here, in rows residual_stride floats apart. May be the
  // residual itself, but not y.
  float* sum = nullptr;
};

struct LayerNormParameters {
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim]; null: RMS norm
};

// y = (t - mean(t)) / sqrt(var(t) + eps) * weight + bias for each row; the variance is computed in
// a second pass, around the mean. RMS norm: y = t / sqrt(mean(t^2) + eps) * weight. y [rows, dim]
// may be x or residual. Any alignment.
void LayerNorm(const LayerNormShape& shape, const LayerNormInput& input,
               const LayerNormParameters& parameters, float* y, size_t y_stride);

// Backward through y = LayerNorm(x), with a bias, for dense rows x [rows, dim]. Recomputes mean and
// variance.
struct LayerNormBackwardArgs {
  const float* x = nullptr;
  const float* weight = nullptr;  // [dim]
  const float* grad_y = nullptr;  // [rows, dim]
  float* grad_x = nullptr;        // [rows, dim], written; may be grad_y
  float* grad_weight = nullptr;   // [dim], added to
  float* grad_bias = nullptr;     // [dim], added to
};
void LayerNormBackward(const LayerNormShape& shape, const LayerNormBackwardArgs& args);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LAYER_NORM_H_
