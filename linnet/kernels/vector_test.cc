// Tests the helpers of vector-inl.h whose instructions differ between targets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/vector_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// to[i] = min(max(x[i], low), high), in vectors of at most `step` floats.
void ClampRow(size_t n, size_t step, float low, float high, const float* x, float* to) {
  const F32 d;
  step = std::min(step, hn::Lanes(d));
  for (size_t i = 0; i < n; i += step) {
    const size_t used = std::min(step, n - i);
    const Vec clamped = AtMost(AtLeast(LoadN(x + i, used), hn::Set(d, low)), hn::Set(d, high));
    StoreN(clamped, to + i, used);
  }
}

// The sum of all lanes of LoadN().
float SumOfLoaded(size_t n, const float* x) {
  const F32 d;
  float sum = 0;
  ForVectors(n, [&](size_t i, size_t used)
                    HWY_ATTR { sum += hn::GetLane(hn::SumOfLanes(d, LoadN(x + i, used))); });
  return sum;
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

HWY_EXPORT(ClampRow);
HWY_EXPORT(SumOfLoaded);

LINNET_SUITE_ON_EACH_ISA(VectorTest);

TEST_P(VectorTest, BoundsKeepNan) {
  constexpr float kLow = -1.5f, kHigh = 0.5f;
  Floats x = Random(100, 1, 3);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = i % 2 == 0 ? NAN : -NAN;
  x[1] = INFINITY, x[2] = -INFINITY, x[4] = kLow, x[5] = kHigh;
  for (size_t step = 1; step <= 16; ++step) {
    Floats to(x.size());
    HWY_DYNAMIC_DISPATCH(ClampRow)(x.size(), step, kLow, kHigh, x.data(), to.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(to[i])) << i << " of vectors of " << step;
      } else {
        EXPECT_EQ(to[i], std::clamp(x[i], kLow, kHigh)) << i << " of vectors of " << step;
      }
    }
  }
}

// An inaccessible page follows the row.
TEST_P(VectorTest, PartsOfVectorsTouchNoMemoryBeyondThem) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<char*>(pages) + page, page, PROT_NONE), 0);
  float* end = static_cast<float*>(pages) + page / sizeof(float);
  for (size_t n = 1; n <= 37; ++n) {
    float* row = end - n;
    for (size_t i = 0; i < n; ++i) row[i] = static_cast<float>(i + 1);
    HWY_DYNAMIC_DISPATCH(ClampRow)(n, 16, 2.0f, kMost, row, row);
    EXPECT_EQ(row[0], 2);
    EXPECT_EQ(end[-1], std::max<float>(2, static_cast<float>(n)));
    EXPECT_EQ(HWY_DYNAMIC_DISPATCH(SumOfLoaded)(n, row), static_cast<float>(n * (n + 1) / 2 + 1));
  }
  munmap(pages, 2 * page);
}

}  // namespace
}  // namespace linnet::kernels
#endif  // HWY_ONCE
