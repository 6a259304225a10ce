// Layer norm and RMS norm, fused with the additions that come before the norm in a post-norm layer:
// adding the partial results of a matrix product, and adding the residual.
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

// The input of the norm. Each row is t = factor * (x_0 + ... + x_{parts-1}) + residual, where x_i
// is part i of x. The terms are added in this order.
struct LayerNormInput {
  const float* x = nullptr;  // [parts][rows, dim]
  size_t x_stride = 0;       // floats from one row to the next
  size_t parts = 1;
  size_t part_stride = 0;           // floats from one part to the next
  const float* factors = nullptr;   // [rows], one per row; null: 1
  const float* residual = nullptr;  // [rows, dim], or null for none
  size_t residual_stride = 0;
  // [rows, dim], or null: a second output, which receives t. Its row stride is residual_stride. May
  // be `residual`, but not y.
  float* sum = nullptr;
};

struct LayerNormParameters {
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim]; null: RMS norm
};

// Computes y = (t - mean(t)) / sqrt(var(t) + eps) * weight + bias for each row, or for RMS norm
// y = t / sqrt(mean(t^2) + eps) * weight. The variance is the mean of (t - mean(t))^2, computed in
// a second pass, because mean(t^2) - mean(t)^2 loses digits to cancellation. y [rows, dim] may be x
// or residual. Pointers may have any alignment.
void LayerNorm(const LayerNormShape& shape, const LayerNormInput& input,
               const LayerNormParameters& parameters, float* y, size_t y_stride);

// The backward of y = LayerNorm(x) with a bias (not RMS norm), for dense rows x [rows, dim].
// Recomputes mean and variance.
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
