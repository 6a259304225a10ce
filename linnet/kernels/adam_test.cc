#include "linnet/kernels/adam.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "linnet/kernels/test_util.h"
#include "linnet/rng.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(AdamTest);

TEST_P(AdamTest, MatchesItsEquations) {
  for (const bool adaptive : {true, false}) {
    for (const size_t n : {0, 1, 15, 16, 17, 100}) {
      const AdamStep step{.beta1 = 0.8f,
                          .beta2 = 0.95f,
                          .gradient_scale = 0.7f,
                          .decay = 0.99f,
                          .step = 0.1f,
                          .root_scale = 1.3f,
                          .eps = 1e-3f,
                          .adaptive = adaptive};
      Philox rng(1, n);
      std::vector<float> g, p, m, v;
      for (size_t i = 0; i <= n; ++i) {  // one element beyond the end, which must not change
        g.push_back(rng.Normal()), p.push_back(rng.Normal()), m.push_back(rng.Normal());
        v.push_back(rng.Uniform());
      }
      const std::vector<float> p0 = p, m0 = m, v0 = v;
      AdamUpdate(n, step, g.data(), p.data(), m.data(), v.data());
      double squares = 0;
      for (size_t i = 0; i < n; ++i) {
        const double scaled = 0.7 * g[i];
        const double first = 0.8 * m0[i] + 0.2 * scaled;
        const double second = 0.95 * v0[i] + 0.05 * scaled * scaled;
        const double below = adaptive ? 1.3 * std::sqrt(second) + 1e-3 : 1;
        EXPECT_NEAR(m[i], first, 1e-6);
        EXPECT_NEAR(v[i], second, 1e-6);
        EXPECT_NEAR(p[i], 0.99 * p0[i] - 0.1 * first / below, 1e-5);
        squares += double{g[i]} * g[i];
      }
      EXPECT_EQ(p[n], p0[n]);
      EXPECT_EQ(m[n], m0[n]);
      EXPECT_EQ(v[n], v0[n]);
      EXPECT_NEAR(SquaredNorm(n, g.data()), squares, 1e-5 * (1 + squares));
    }
  }
}

TEST_P(AdamTest, MuonMatchesItsEquations) {
  for (const size_t n : {1, 15, 16, 17, 100}) {
    Philox rng(2, n);
    std::vector<float> g, m, p;
    for (size_t i = 0; i <= n; ++i) {  // one element beyond the end, which must not change
      g.push_back(i == n ? 1e3f : rng.Normal()), m.push_back(rng.Normal());
      p.push_back(rng.Normal());
    }
    const std::vector<float> g0 = g, m0 = m, p0 = p;
    const float largest = MuonAverage(n, 0.7f, 0.9f, g.data(), m.data());
    MuonStep(n, 0.99f, 0.1f, g.data(), p.data());
    double most = 0;
    for (size_t i = 0; i < n; ++i) {
      const double average = 0.9 * m0[i] + 0.7 * g0[i], ahead = 0.7 * g0[i] + 0.9 * average;
      EXPECT_NEAR(m[i], average, 1e-6);
      EXPECT_NEAR(g[i], ahead, 1e-6);
      EXPECT_NEAR(p[i], 0.99 * p0[i] - 0.1 * ahead, 1e-6);
      most = std::max(most, std::abs(ahead));
    }
    EXPECT_NEAR(largest, most, 1e-6);
    EXPECT_EQ(g[n], g0[n]);
    EXPECT_EQ(m[n], m0[n]);
    EXPECT_EQ(p[n], p0[n]);
  }
}

TEST_P(AdamTest, NormOfNanOrInfinityIsNotFinite) {
  std::vector<float> x(50, 1.0f);
  x[37] = std::nanf("");
  EXPECT_FALSE(std::isfinite(SquaredNorm(x.size(), x.data())));
  x[37] = HUGE_VALF;
  EXPECT_FALSE(std::isfinite(SquaredNorm(x.size(), x.data())));
}

}  // namespace
}  // namespace linnet::kernels
