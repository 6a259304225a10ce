#include "linnet/kernels/polynomial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/base/thread_pool.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(Polynomial2Test);

// The features of one row, by their formula.
Doubles Features(const Doubles& x) {
  Doubles y, phi = {1};
  for (const double v : x) y.push_back(v / std::pow(static_cast<double>(x.size()), 0.25));
  for (const double v : y) phi.push_back(std::sqrt(2.0) * v);
  for (const double v : y) phi.push_back(v * v);
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = i + 1; j < y.size(); ++j) phi.push_back(std::sqrt(2.0) * y[i] * y[j]);
  }
  return phi;
}

Doubles RowOf(const Floats& x, size_t row, size_t width) {
  const auto begin = x.begin() + static_cast<ptrdiff_t>(row * width);
  return {begin, begin + static_cast<ptrdiff_t>(width)};
}

TEST_P(Polynomial2Test, FeaturesMatchTheirFormula) {
  constexpr size_t kRows = 3;
  for (size_t dim = 1; dim <= 40; ++dim) {
    const size_t size = Polynomial2Size(dim);
    const Floats x = Random(kRows * dim, dim);
    Floats phi(kRows * size + 1, 7.0f);
    Polynomial2Features(kRows, dim, x.data(), phi.data(), SerialFor);
    for (size_t r = 0; r < kRows; ++r) {
      const Doubles want = Features(RowOf(x, r, dim));
      ASSERT_EQ(want.size(), size);
      for (size_t i = 0; i < size; ++i) {
        ASSERT_NEAR(phi[r * size + i], want[i], 1e-6 * (1 + std::abs(want[i]))) << dim << " " << i;
      }
    }
    ASSERT_EQ(phi.back(), 7.0f);
  }
}

TEST_P(Polynomial2Test, TheirProductsAreThePolynomial) {
  for (const size_t dim : {1, 8, 32}) {
    const Floats x = Random(2 * dim, 5);
    Floats phi(2 * Polynomial2Size(dim));
    Polynomial2Features(2, dim, x.data(), phi.data(), SerialFor);
    double product = 0, features = 0;
    for (size_t i = 0; i < dim; ++i) product += static_cast<double>(x[i]) * x[dim + i];
    for (size_t i = 0; i < phi.size() / 2; ++i) {
      features += static_cast<double>(phi[i]) * phi[phi.size() / 2 + i];
    }
    EXPECT_NEAR(features, std::pow(product / std::sqrt(static_cast<double>(dim)) + 1, 2), 1e-4);
  }
}

TEST_P(Polynomial2Test, GradientsMatchDifferences) {
  constexpr size_t kRows = 2;
  constexpr double kStep = 1e-5;
  for (const size_t dim : {1, 2, 3, 8, 15, 16, 17, 33}) {
    const size_t size = Polynomial2Size(dim);
    const Floats x = Random(kRows * dim, 1), weights = Random(kRows * size, 2);
    Floats grad(kRows * dim + 1, 7.0f);
    Polynomial2Backward(kRows, dim, x.data(), weights.data(), grad.data(), SerialFor);
    for (size_t at = 0; at < kRows * dim; ++at) {
      const size_t row = at / dim;
      double difference = 0;
      for (const double side : {1.0, -1.0}) {
        Doubles moved = RowOf(x, row, dim);
        moved[at % dim] += side * kStep;
        const Doubles phi = Features(moved);
        for (size_t i = 0; i < size; ++i) difference += side * phi[i] * weights[row * size + i];
      }
      const double want = difference / (2 * kStep);
      ASSERT_NEAR(grad[at], want, 1e-5 * (1 + std::abs(want))) << dim << " " << at;
    }
    ASSERT_EQ(grad.back(), 7.0f);
  }
}

TEST_P(Polynomial2Test, ThreadsAgree) {
  ThreadPool pool(3);
  const size_t rows = 11, dim = 9, size = Polynomial2Size(dim);
  const Floats x = Random(rows * dim, 1), weights = Random(rows * size, 2);
  Floats phi[2] = {Floats(rows * size), Floats(rows * size)}, grad[2] = {x, x};
  const auto run = [&](size_t i, ParallelFor parallel_for) {
    Polynomial2Features(rows, dim, x.data(), phi[i].data(), parallel_for);
    Polynomial2Backward(rows, dim, x.data(), weights.data(), grad[i].data(), parallel_for);
  };
  run(0, SerialFor);
  run(1, [&](size_t count, RangeBody body) { pool.For(count, body); });
  EXPECT_EQ(phi[0], phi[1]);
  EXPECT_EQ(grad[0], grad[1]);
}

}  // namespace
}  // namespace linnet::kernels
