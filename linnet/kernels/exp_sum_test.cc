#include "linnet/kernels/exp_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "linnet/kernels/exp_sum_ref.h"
#include "linnet/kernels/test_util.h"
#include "linnet/rng.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(ExpSumTest);

TEST_P(ExpSumTest, MatchesTheReference) {
  for (const size_t n : {1, 2, 3, 7, 15, 16, 17, 31, 64, 259, 2047, 2048, 2049, 8003}) {
    for (const float scale : {1.0f, 0.25f, 3.0f}) {
      std::vector<float> x(n), out(n + 1, -1);
      Philox rng(1, n);
      for (float& value : x) value = 4 * rng.Normal() - 100;
      if (n > 5) x[3] = -INFINITY;
      const float largest = Largest(x.data(), n);
      EXPECT_EQ(largest, *std::max_element(x.begin(), x.end()));
      std::vector<double> want(n);
      const double sum = ExpSumRef(x.data(), n, largest, scale, want.data());
      EXPECT_NEAR(ExpSum(x.data(), n, largest, scale, out.data()), sum, 2e-6 * sum) << n;
      for (size_t i = 0; i < n; ++i) {
        const double off = 2e-6 + 2e-7 * std::max(0.0, -std::log(want[i]));
        if (x[i] == -INFINITY) continue;
        EXPECT_NEAR(out[i], want[i], off * want[i] + 1.7e-38) << n << " " << i;
      }
      if (n > 5) {
        EXPECT_EQ(out[3], 0);
      }
      EXPECT_EQ(out[n], -1);
      EXPECT_EQ(ExpSum(x.data(), n, largest, scale, nullptr),
                ExpSum(x.data(), n, largest, scale, out.data()));
    }
  }
  const std::vector<float> none(20, -INFINITY);
  EXPECT_EQ(Largest(none.data(), none.size()), -INFINITY);
}

}  // namespace
}  // namespace linnet::kernels
