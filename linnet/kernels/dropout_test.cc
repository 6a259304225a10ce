#include "linnet/kernels/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(DropoutTest);

TEST_P(DropoutTest, DependsOnSeedAndIndexOnly) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{0x0123456789abcdef}}) {
    for (const float p : {0.0f, 0.1f, 0.5f, 0.9f}) {
      for (const size_t first : {size_t{0}, size_t{5}, size_t{4'000'000'000}}) {
        for (const size_t n : {0, 1, 7, 16, 33, 200}) {
          std::vector<float> x(n, 2.0f), out(n + 1, -1.0f);
          Dropout(seed, p, first, n, x.data(), out.data());
          for (size_t i = 0; i < n; ++i) {
            const bool keeps = DropoutKeeps(seed, p, static_cast<uint32_t>(first + i));
            ASSERT_EQ(out[i], keeps ? 2.0f * (1 / (1 - p)) : 0.0f) << i;
          }
          ASSERT_EQ(out[n], -1.0f);
        }
      }
    }
  }
}

// Draws many indices with one seed, then one index with many seeds. The fraction of draws that drop
// the element, and the fraction of draws with the same outcome as the previous draw, are within
// five standard deviations of their expected values.
TEST(Dropout, FrequenciesMatchTheProbability) {
  const int count = 1 << 20;
  for (const float p : {0.1f, 0.25f, 0.5f}) {
    const double deviation = std::sqrt(p * (1 - p) / count);
    const double alike = p * p + (1 - p) * (1 - p);
    for (const bool seeds : {false, true}) {
      int dropped = 0, same = 0;
      bool before = false;
      for (int i = 0; i < count; ++i) {
        const bool keeps = seeds ? DropoutKeeps(static_cast<uint64_t>(i) << 20, p, 12345)
                                 : DropoutKeeps(99, p, static_cast<uint32_t>(i));
        dropped += !keeps;
        same += keeps == before;
        before = keeps;
      }
      EXPECT_NEAR(dropped / double{count}, p, 5 * deviation);
      EXPECT_NEAR(same / double{count}, alike, 5 * std::sqrt(alike * (1 - alike) / count));
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
