#include "linnet/kernels/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/base/larger_error.h"
#include "linnet/kernels/layer_norm_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(LayerNormTest);

// Compares LayerNorm() with the reference for one shape. Tests RMS norm unless `biased`.
void ExpectReference(size_t dim, size_t parts, bool residual, bool biased) {
  const size_t rows = 3, stride = dim + 1, offset = dim % 3;
  // The mean of x is far from zero, to test that the variance does not lose precision then.
  const Floats x = Random(offset + parts * rows * stride, 1, 1, 30);
  const Floats from = Random(offset + rows * stride, 2);
  const Floats weight = Random(dim, 3), given = Random(dim, 4);
  const float* bias = biased ? given.data() : nullptr;
  Floats y(offset + rows * stride, 77.0f);
  LayerNorm({rows, dim, 1e-5f},
            {.x = &x[offset],
             .x_stride = stride,
             .parts = parts,
             .part_stride = rows * stride,
             .residual = residual ? &from[offset] : nullptr,
             .residual_stride = stride},
            {weight.data(), bias}, &y[offset], stride);
  double worst = 0;
  for (size_t r = 0; r < rows; ++r) {
    std::vector<double> t(dim);
    for (size_t i = 0; i < dim; ++i) {
      for (size_t p = 0; p < parts; ++p) t[i] += x[offset + (p * rows + r) * stride + i];
      if (residual) t[i] += from[offset + r * stride + i];
    }
    const std::vector<double> want = LayerNormRef(t, weight.data(), bias, 1e-5);
    for (size_t i = 0; i < dim; ++i) {
      const double off = std::abs(y[offset + r * stride + i] - want[i]);
      worst = LargerError(worst, off);
    }
    EXPECT_EQ(y[offset + r * stride + dim], 77.0f);
  }
  // With dim 2, a row may have two nearly equal values. The norm then amplifies rounding errors.
  EXPECT_LT(worst, dim == 2 ? 1e-3 : 1e-4) << dim << " parts " << parts;
}

TEST_P(LayerNormTest, MatchesTheReferenceOverRaggedShapes) {
  for (size_t dim : {1, 2, 7, 16, 17, 33, 100, 256}) {
    for (size_t parts : {1, 2, 5}) {
      for (bool residual : {false, true}) {
        for (bool biased : {false, true}) ExpectReference(dim, parts, residual, biased);
      }
    }
  }
}

TEST_P(LayerNormTest, WorksInPlace) {
  const size_t dim = 50;
  Floats x = Random(dim, 1), residual = Random(dim, 2);
  const Floats weight = Random(dim, 3), bias = Random(dim, 4);
  Floats want(dim);
  const LayerNormInput input{
      .x = x.data(), .x_stride = dim, .residual = residual.data(), .residual_stride = dim};
  LayerNorm({1, dim, 1e-5f}, input, {weight.data(), bias.data()}, want.data(), dim);
  LayerNorm({1, dim, 1e-5f}, input, {weight.data(), bias.data()}, residual.data(), dim);
  EXPECT_EQ(residual, want);
}

TEST_P(LayerNormTest, KeepsTheSum) {
  const size_t dim = 21, rows = 2;
  const Floats x = Random(rows * dim, 1), weight = Random(dim, 3), bias = Random(dim, 4);
  Floats residual = Random(rows * dim, 2), sum = residual, want(rows * dim), y(rows * dim);
  LayerNormInput input{
      .x = x.data(), .x_stride = dim, .residual = residual.data(), .residual_stride = dim};
  LayerNorm({rows, dim, 1e-5f}, input, {weight.data(), bias.data()}, want.data(), dim);
  input.residual = input.sum = sum.data();
  LayerNorm({rows, dim, 1e-5f}, input, {weight.data(), bias.data()}, y.data(), dim);
  EXPECT_EQ(y, want);
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], x[i] + residual[i]);
}

TEST_P(LayerNormTest, GradientsMatchDifferencesOfTheReference) {
  for (size_t dim : {1, 3, 16, 37, 100}) {
    const size_t rows = 3;
    const double eps = 1e-2, h = 1e-4;
    const Floats x = Random(rows * dim, 1, 1, 2), grad_y = Random(rows * dim, 2);
    const Floats weight = Random(dim, 3), bias = Random(dim, 4);
    Floats grad_x(rows * dim), grad_weight(dim, 0.5f), grad_bias(dim, 0.25f);
    LayerNormBackward({rows, dim, static_cast<float>(eps)}, {.x = x.data(),
                                                             .weight = weight.data(),
                                                             .grad_y = grad_y.data(),
                                                             .grad_x = grad_x.data(),
                                                             .grad_weight = grad_weight.data(),
                                                             .grad_bias = grad_bias.data()});
    // Returns sum(y * grad_y) over row r after adding `by` to x[r, i].
    const auto loss = [&](size_t r, size_t i, double by) {
      std::vector<double> t(x.begin() + ptrdiff_t(r * dim), x.begin() + ptrdiff_t((r + 1) * dim));
      t[i] += by;
      const std::vector<double> y = LayerNormRef(t, weight.data(), bias.data(), eps);
      double sum = 0;
      for (size_t c = 0; c < dim; ++c) sum += y[c] * grad_y[r * dim + c];
      return sum;
    };
    std::vector<double> want_weight(dim, 0.5), want_bias(dim, 0.25);
    for (size_t r = 0; r < rows; ++r) {
      const std::vector<float> ones(dim, 1.0f), zeros(dim, 0.0f);
      const std::vector<double> row(x.begin() + ptrdiff_t(r * dim),
                                    x.begin() + ptrdiff_t((r + 1) * dim));
      const std::vector<double> normed = LayerNormRef(row, ones.data(), zeros.data(), eps);
      for (size_t i = 0; i < dim; ++i) {
        EXPECT_NEAR(grad_x[r * dim + i], (loss(r, i, h) - loss(r, i, -h)) / (2 * h), 1e-4) << dim;
        want_weight[i] += normed[i] * grad_y[r * dim + i];
        want_bias[i] += grad_y[r * dim + i];
      }
    }
    for (size_t i = 0; i < dim; ++i) {
      EXPECT_NEAR(grad_weight[i], want_weight[i], 1e-4) << dim;
      EXPECT_NEAR(grad_bias[i], want_bias[i], 1e-4) << dim;
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
