#include "linnet/kernels/activation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "linnet/base/larger_error.h"
#include "linnet/kernels/activation_ref.h"
#include "linnet/kernels/bfloat16_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(ActivationTest);

TEST_P(ActivationTest, MatchesTheReference) {
  std::vector<float> x;
  for (int i = -200000; i <= 200000; ++i) x.push_back(static_cast<float>(i) * 1e-4f);
  for (float big : {50.0f, 1e4f, 1e30f, 1e-30f, 0.0f}) x.insert(x.end(), {big, -big});
  for (Activation activation : {Activation::kRelu, Activation::kGelu}) {
    std::vector<float> y = x;
    Activate(activation, y.size(), y.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = ActivationRef(activation, x[i]);
      const double off = std::abs(y[i] - want) / (1 + std::abs(want));
      worst = LargerError(worst, off);
    }
    EXPECT_LT(worst, 1e-7);
  }
}

// Subnormal numbers would make the kernels slow.
TEST_P(ActivationTest, NothingIsSubnormal) {
  std::vector<float> x, grad_out;
  for (int i = -3000; i <= 3000; ++i) x.push_back(static_cast<float>(i) * 1e-2f);
  grad_out.assign(x.size(), 1e-6f);
  for (Activation activation : {Activation::kRelu, Activation::kGelu}) {
    std::vector<float> out(x.size()), grad(x.size());
    ActivateBackward(
        activation, 1, x.size(),
        ActivationBackwardArgs<float>{
            .x = x.data(), .grad_out = grad_out.data(), .out = out.data(), .grad = grad.data()});
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NE(std::fpclassify(out[i]), FP_SUBNORMAL) << x[i];
      EXPECT_NE(std::fpclassify(grad[i]), FP_SUBNORMAL) << x[i];
    }
  }
}

// Checks the outputs of the backward pass for one type: act(x), its gradient and the column sums.
// The expected gradient comes from finite differences in double precision.
template <typename T>
void ExpectBackward(Activation activation, double tolerance, const std::function<T(float)>& to,
                    const std::function<float(T)>& from) {
  const size_t rows = 5, columns = 83, stride = 90;
  std::vector<T> x, out(rows * stride), grad(rows * stride);
  std::vector<float> grad_out(rows * stride), sums(columns, 0.5f);
  for (size_t i = 0; i < rows * columns; ++i) {
    x.push_back(to(static_cast<float>(i) * 0.05f - 10.013f));
  }
  for (size_t i = 0; i < rows * stride; ++i) grad_out[i] = static_cast<float>(i % 7) - 3;
  ActivateBackward(activation, rows, columns,
                   ActivationBackwardArgs<T>{.x = x.data(),
                                             .grad_out = grad_out.data(),
                                             .out = out.data(),
                                             .grad = grad.data(),
                                             .column_sums = sums.data(),
                                             .stride = stride});
  std::vector<double> want_sums(columns, 0.5);
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = from(x[i]), h = 1e-5;
    const double want = ActivationRef(activation, static_cast<float>(at));
    const size_t strided = i / columns * stride + i % columns;
    EXPECT_NEAR(from(out[strided]), want, tolerance * (1 + std::abs(want)));
    const auto value = [&](double v) {
      return activation == Activation::kRelu ? std::max(v, 0.0)
                                             : v * 0.5 * std::erfc(-v / std::sqrt(2.0));
    };
    const double slope = (value(at + h) - value(at - h)) / (2 * h);
    EXPECT_NEAR(from(grad[strided]), slope * grad_out[strided], 3 * tolerance + 1e-6) << at;
    want_sums[i % columns] += slope * grad_out[strided];
  }
  for (size_t c = 0; c < columns; ++c) EXPECT_NEAR(sums[c], want_sums[c], 1e-4);
}

TEST_P(ActivationTest, BackwardMatchesTheReference) {
  for (Activation activation : {Activation::kRelu, Activation::kGelu}) {
    ExpectBackward<float>(
        activation, 1e-6, [](float x) { return x; }, [](float x) { return x; });
    ExpectBackward<BFloat16>(activation, 4e-3, NarrowRef, WidenRef);
  }
}

TEST_P(ActivationTest, GatedSiluMatchesTheReferenceInPlaceToo) {
  const size_t rows = 3;
  for (size_t width : {1, 3, 8, 15, 16, 17, 33, 100}) {
    std::vector<float> x;
    for (size_t i = 0; i < 2 * width * rows; ++i) {
      x.push_back(static_cast<float>(i % 41) * 2.7f - 51 + static_cast<float>(i) * 1e-3f);
    }
    x[0] = 200, x[width] = 0.5f;
    x[2 * width] = -200, x[3 * width] = 0.5f;
    std::vector<float> out(rows * width + 1, 77.0f);
    GatedSilu(rows, width, x.data(), out.data());
    EXPECT_EQ(out.back(), 77.0f);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t i = 0; i < width; ++i) {
        const float* row = x.data() + r * 2 * width;
        const double want = SiluRef(row[i]) * row[width + i];
        const double tolerance = 1e-7 * (11 + std::min(std::abs(row[i]), 87.0f));
        EXPECT_NEAR(out[r * width + i], want, tolerance * std::abs(want) + 1e-30) << row[i];
      }
    }
    GatedSilu(rows, width, x.data(), x.data());
    EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, x.begin()));
  }
  std::vector<float> none = {std::nanf(""), 1, 1, std::nanf("")};
  GatedSilu(2, 1, none.data(), none.data());
  EXPECT_TRUE(std::isnan(none[0]) && std::isnan(none[1]));
}

TEST_P(ActivationTest, SquaredReluMatchesTheReference) {
  for (size_t n = 0; n < 40; ++n) {
    std::vector<float> x;
    for (size_t i = 0; i < n; ++i) x.push_back(static_cast<float>(i % 11) * 0.7f - 3.1f);
    std::vector<float> y = x;
    y.push_back(-1.0f);
    SquaredRelu(n, y.data());
    for (size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(y[i], SquaredReluRef(x[i]), 1e-6 * SquaredReluRef(x[i])) << x[i];
    }
    EXPECT_EQ(y.back(), -1.0f);
  }
  float nan = std::nanf("");
  SquaredRelu(1, &nan);
  EXPECT_TRUE(std::isnan(nan));
}

TEST_P(ActivationTest, RaggedLengthsAndOddAddresses) {
  for (size_t n = 0; n < 40; ++n) {
    for (size_t offset : {0, 1, 3}) {
      std::vector<float> x(offset + n + 1, -1.0f);
      Activate(Activation::kRelu, n, x.data() + offset);
      EXPECT_EQ(std::count(x.begin(), x.end(), 0.0f), static_cast<ptrdiff_t>(n));
      EXPECT_EQ(x.back(), -1.0f);
    }
  }
}

TEST_P(ActivationTest, KeepsInfinitiesAndNaNs) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (Activation activation : {Activation::kRelu, Activation::kGelu}) {
    std::vector<float> x = {infinity, -infinity, std::nanf("")};
    Activate(activation, x.size(), x.data());
    EXPECT_EQ(x[0], infinity);
    EXPECT_NEAR(x[1], 0, 1e-30);
    EXPECT_TRUE(std::isnan(x[2]));
  }
}

}  // namespace
}  // namespace linnet::kernels
