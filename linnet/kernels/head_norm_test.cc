#include "linnet/kernels/head_norm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "linnet/base/thread_pool.h"
#include "linnet/kernels/head_norm_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(HeadNormTest);

double Dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The gradient of the sum of weights * function(x), by central differences.
Doubles Differences(const std::function<Doubles(const Doubles&)>& function, Doubles x,
                    const Doubles& weights) {
  constexpr double kStep = 1e-5;
  Doubles gradient;
  for (double& value : x) {
    const double before = value;
    value = before + kStep;
    const double above = Dot(function(x), weights);
    value = before - kStep;
    gradient.push_back((above - Dot(function(x), weights)) / (2 * kStep));
    value = before;
  }
  return gradient;
}

void ExpectNear(const Floats& got, const Doubles& want, double tolerance) {
  ASSERT_GE(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::abs(want[i]))) << i;
  }
}

TEST_P(HeadNormTest, SiluL2NormMatchesTheReference) {
  for (const SiluL2NormShape& shape : std::vector<SiluL2NormShape>{{1, 1, 0, 1, 1e-6f},
                                                                   {3, 21, 14, 7, 1e-6f},
                                                                   {2, 40, 40, 20, 0.1f},
                                                                   {4, 50, 32, 16, 1e-6f},
                                                                   {2, 9, 9, 3, 1e-6f}}) {
    const size_t size = shape.rows * shape.columns;
    const Floats x = Random(size, 1, 2), weights = Random(size, 2);
    const auto reference = [&](const Doubles& of) { return SiluL2NormRef(shape, of); };
    Floats y(size + 1, 7.0f), grad(size + 1, 7.0f);
    SiluL2Norm(shape, x.data(), y.data(), SerialFor);
    ExpectNear(y, reference(Wide(x)), 2e-6);
    SiluL2NormBackward(shape, x.data(), weights.data(), grad.data(), SerialFor);
    ExpectNear(grad, Differences(reference, Wide(x), Wide(weights)), 1e-5);
    EXPECT_EQ(y[size], 7.0f);
    EXPECT_EQ(grad[size], 7.0f);

    Floats in_place = weights;
    SiluL2NormBackward(shape, x.data(), in_place.data(), in_place.data(), SerialFor);
    EXPECT_EQ(in_place, Floats(grad.begin(), grad.end() - 1));
  }
}

TEST_P(HeadNormTest, GatedRmsNormMatchesTheReference) {
  for (const auto& [rows, heads, width] :
       std::vector<std::array<size_t, 3>>{{1, 1, 1}, {3, 2, 7}, {2, 3, 16}, {5, 1, 33}}) {
    for (const int gated : {0, 1, 2}) {
      const GatedRmsNormShape shape = {rows, heads, width, 1e-5f,
                                       gated == 1 ? GateFunction::kSilu : GateFunction::kSigmoid};
      const size_t size = rows * heads * width, stride = heads * width + 3;
      const Floats x = Random(size, 1), w = Random(width, 2), weights = Random(size, 3);
      const Floats gate = Random(gated > 0 ? size : 0, 4, 2);
      Floats strided(rows * stride, NAN);
      for (size_t i = 0; i < gate.size(); ++i) {
        strided[i / (heads * width) * stride + i % (heads * width)] = gate[i];
      }
      const GatedRmsNormArgs args = {.x = x.data(),
                                     .weight = w.data(),
                                     .gate = gated > 0 ? strided.data() : nullptr,
                                     .gate_stride = stride};
      Floats y(size);
      GatedRmsNorm(shape, args, y.data(), SerialFor);
      ExpectNear(y, GatedRmsNormRef(shape, Wide(x), Wide(w), Wide(gate)), 3e-6);

      Floats grad_x(size), grad_gate(gate.size()), grad_w(width);
      Floats scratch(GatedRmsNormScratch(shape));
      GatedRmsNormBackward(shape, args, weights.data(),
                           {.x = grad_x.data(), .gate = grad_gate.data(), .weight = grad_w.data()},
                           scratch.data(), SerialFor);
      const auto of_x = [&](const Doubles& v) {
        return GatedRmsNormRef(shape, v, Wide(w), Wide(gate));
      };
      const auto of_w = [&](const Doubles& v) {
        return GatedRmsNormRef(shape, Wide(x), v, Wide(gate));
      };
      const auto of_gate = [&](const Doubles& v) {
        return GatedRmsNormRef(shape, Wide(x), Wide(w), v);
      };
      ExpectNear(grad_x, Differences(of_x, Wide(x), Wide(weights)), 3e-5);
      ExpectNear(grad_w, Differences(of_w, Wide(w), Wide(weights)), 3e-5);
      ExpectNear(grad_gate, Differences(of_gate, Wide(gate), Wide(weights)), 3e-5);
    }
  }
}

TEST_P(HeadNormTest, ThreadsChangeNothing) {
  const GatedRmsNormShape shape = {1000, 2, 5, 1e-5f, GateFunction::kSilu};
  const size_t size = 10000;
  const Floats x = Random(size, 1), w = Random(5, 2), g = Random(size, 3), gate = Random(size, 4);
  ThreadPool pool(3);
  const auto threads = [&](size_t n, RangeBody body) { pool.For(n, body); };
  std::vector<Floats> results[2];
  for (const bool parallel : {false, true}) {
    const ParallelFor parallel_for = parallel ? ParallelFor(threads) : ParallelFor(SerialFor);
    Floats y(size), grad_x(size), grad_gate(size), grad_w(5), scratch(GatedRmsNormScratch(shape));
    const GatedRmsNormArgs args = {
        .x = x.data(), .weight = w.data(), .gate = gate.data(), .gate_stride = 10};
    GatedRmsNorm(shape, args, y.data(), parallel_for);
    GatedRmsNormBackward(shape, args, g.data(), {grad_x.data(), grad_gate.data(), grad_w.data()},
                         scratch.data(), parallel_for);
    results[parallel] = {y, grad_x, grad_gate, grad_w};
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(HeadNormTest, GatedRmsNormInPlace) {
  const GatedRmsNormShape shape{.rows = 2, .heads = 3, .width = 21, .eps = 1e-5f};
  const Floats x = Random(126, 1), weight = Random(21, 2), gate = Random(126, 3);
  Floats apart(126), y = x;
  GatedRmsNormArgs args{x.data(), weight.data(), gate.data(), 63};
  GatedRmsNorm(shape, args, apart.data(), SerialFor);
  args.x = y.data();
  GatedRmsNorm(shape, args, y.data(), SerialFor);
  EXPECT_EQ(y, apart);
}

TEST_P(HeadNormTest, L2NormKeepsRowsOfZeros) {
  Floats x = {0, 0, 0, 3, 0, 4};
  L2Norm(2, 3, 1e-12f, x.data());
  EXPECT_EQ(Floats(x.begin(), x.begin() + 3), Floats(3));
  EXPECT_NEAR(x[3], 0.6, 1e-6);
  L2Norm(0, 3, 0, nullptr);
}

TEST_P(HeadNormTest, L2NormDividesRowsByTheirLength) {
  for (size_t width = 1; width < 40; ++width) {
    const Floats x = Random(3 * width, 1);
    Floats y = x;
    y.push_back(7.0f);
    L2Norm(3, width, 0.1f, y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      double squares = 0.1f;
      for (size_t c = 0; c < width; ++c) squares += std::pow(x[i / width * width + c], 2.0);
      ASSERT_NEAR(y[i], x[i] / std::sqrt(squares), 1e-6) << i << " of " << width;
    }
    ASSERT_EQ(y.back(), 7.0f);
  }
}

}  // namespace
}  // namespace linnet::kernels
