#include "linnet/kernels/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/base/rng.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/layer_norm_ref.h"

namespace linnet::kernels {
namespace {

using Floats = std::vector<float>;

Floats Random(size_t n, uint64_t stream, float mean = 0) {
  Philox rng(5, stream);
  Floats x(n);
  for (float& value : x) value = mean + rng.Normal();
  return x;
}

class LayerNormTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ForceIsa(GetParam()); }
  void TearDown() override { ForceIsa(""); }
};
INSTANTIATE_TEST_SUITE_P(Isa, LayerNormTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(LayerNormTest, MatchesTheReferenceOverRaggedShapes) {
  for (size_t dim : {1, 2, 7, 16, 17, 33, 100, 256}) {
    for (size_t parts : {1, 2, 5}) {
      for (bool residual : {false, true}) {
        const size_t rows = 3, stride = dim + 1, offset = dim % 3;
        // Far from zero: the variance must not drown in the mean.
        const Floats x = Random(offset + parts * rows * stride, 1, 30);
        const Floats from = Random(offset + rows * stride, 2);
        const Floats weight = Random(dim, 3), bias = Random(dim, 4);
        Floats y(offset + rows * stride, 77.0f);
        LayerNorm({rows, dim, 1e-5f},
                  {.x = &x[offset],
                   .x_stride = stride,
                   .parts = parts,
                   .part_stride = rows * stride,
                   .residual = residual ? &from[offset] : nullptr,
                   .residual_stride = stride},
                  {weight.data(), bias.data()}, &y[offset], stride);
        double worst = 0;
        for (size_t r = 0; r < rows; ++r) {
          std::vector<double> t(dim);
          for (size_t i = 0; i < dim; ++i) {
            for (size_t p = 0; p < parts; ++p) t[i] += x[offset + (p * rows + r) * stride + i];
            if (residual) t[i] += from[offset + r * stride + i];
          }
          const std::vector<double> want = LayerNormRef(t, weight.data(), bias.data(), 1e-5);
          for (size_t i = 0; i < dim; ++i) {
            const double off = std::abs(y[offset + r * stride + i] - want[i]);
            if (!(off <= worst)) worst = off;
          }
          EXPECT_EQ(y[offset + r * stride + dim], 77.0f);
        }
        // Two values that almost agree (dim 2) magnify their own rounding.
        EXPECT_LT(worst, dim == 2 ? 1e-3 : 1e-4) << dim << " parts " << parts;
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

}  // namespace
}  // namespace linnet::kernels
