#include "linnet/kernels/gates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(GatesTest);

// A function of gates.h on an array, and its reference in double precision.
struct Case {
  const char* name;
  std::function<void(size_t n, float* x)> run;
  std::function<double(double x)> reference;
};

double SigmoidRef(double x) { return 1 / (1 + std::exp(-x)); }
double SoftplusRef(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

std::vector<Case> Cases() {
  const auto gated = [](auto function) {
    return [function](size_t n, float* x) {  // 3 function(x)
      std::vector<float> out(n, 3.0f);
      function(n, x, out.data());
      std::copy(out.begin(), out.end(), x);
    };
  };
  return {
      {"Silu", Silu, [](double x) { return x * SigmoidRef(x); }},
      {"Sigmoid", [](size_t n, float* x) { Sigmoid(n, -0.7f, x); },
       [](double x) { return -0.7f * SigmoidRef(x); }},
      {"LogSigmoid", [](size_t n, float* x) { LogSigmoid(n, 0.0625f, x); },
       [](double x) { return -0.0625 * SoftplusRef(-x); }},
      {"Softplus", [](size_t n, float* x) { Softplus(n, -2.0f, x); },
       [](double x) { return -2 * SoftplusRef(x); }},
      {"Tanh", Tanh, [](double x) { return std::tanh(x); }},
      {"GateBySilu", gated(GateBySilu), [](double x) { return 3 * x * SigmoidRef(x); }},
  };
}

TEST_P(GatesTest, MatchTheReference) {
  std::vector<float> x;
  for (int i = -300000; i <= 300000; ++i) x.push_back(static_cast<float>(i) * 3.3e-4f);
  for (const float big : {1e3f, 1e4f, 1e30f, 1e-30f, 0.0f}) x.insert(x.end(), {big, -big});
  x.push_back(-std::numeric_limits<float>::max());
  for (const Case& one : Cases()) {
    std::vector<float> y = x;
    one.run(y.size(), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = one.reference(x[i]);
      const double size = std::abs(x[i]);
      ASSERT_NEAR(y[i], want, 1e-7 * (10 + std::min(size, 87.0)) * std::abs(want) + 1e-34)
          << one.name << " of " << x[i];
    }
  }
}

TEST_P(GatesTest, InfinitiesHaveTheirLimits) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {-infinity, infinity};
  Silu(x.size(), x.data());
  EXPECT_NEAR(x[0], 0, 1e-34);
  EXPECT_EQ(x[1], infinity);
  x = {-infinity, infinity};
  Tanh(x.size(), x.data());
  EXPECT_EQ(x, (std::vector<float>{-1, 1}));
  x = {-infinity, infinity};
  Sigmoid(x.size(), 2, x.data());
  EXPECT_NEAR(x[0], 0, 1e-34);
  EXPECT_EQ(x[1], 2);
}

TEST_P(GatesTest, RaggedLengthsAndNaNs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Case& one : Cases()) {
    for (size_t n = 0; n < 40; ++n) {
      for (const size_t offset : {0, 1, 3}) {
        std::vector<float> x(offset + n + 1, -1.0f);
        for (size_t i = 0; i < n; ++i) x[offset + i] = static_cast<float>(i) * 0.3f - 4;
        if (n > 2) x[offset + n - 2] = nan;
        std::vector<float> y = x;
        one.run(n, y.data() + offset);
        for (size_t i = 0; i < y.size(); ++i) {
          const bool inside = i >= offset && i < offset + n;
          if (std::isnan(x[i])) {
            EXPECT_TRUE(std::isnan(y[i])) << one.name << " at " << i << " of " << n;
          } else if (!inside) {
            EXPECT_EQ(y[i], -1.0f) << one.name << " at " << i << " of " << n;
          } else {  // the bits do not depend on the element's place
            float alone = x[i];
            one.run(1, &alone);
            EXPECT_EQ(y[i], alone) << one.name << " at " << i << " of " << n;
          }
        }
      }
    }
  }
}

TEST_P(GatesTest, InterpolateMatchesItsFormula) {
  for (size_t n = 0; n < 40; ++n) {
    const Floats x = Random(n + 1, 1), other = Random(n, 2), share = Random(n, 3);
    for (const float* towards : {static_cast<const float*>(nullptr), other.data()}) {
      Floats in_place = x, to(n + 1, 7.0f);
      Interpolate(n, x.data(), towards, share.data(), to.data());
      Interpolate(n, in_place.data(), towards, share.data(), in_place.data());
      for (size_t i = 0; i < n; ++i) {
        const double end = towards == nullptr ? 0 : other[i];
        ASSERT_NEAR(to[i], x[i] + share[i] * (end - x[i]), 2e-6) << i << " of " << n;
        ASSERT_EQ(in_place[i], to[i]);
      }
      ASSERT_EQ(to[n], 7.0f);
      ASSERT_EQ(in_place[n], x[n]);
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
