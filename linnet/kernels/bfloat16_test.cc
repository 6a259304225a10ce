#include "linnet/kernels/bfloat16.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

#include "linnet/kernels/bfloat16_ref.h"
#include "linnet/kernels/test_util.h"
#include "linnet/rng.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(BFloat16Test);

TEST_P(BFloat16Test, RoundingMatchesTheReference) {
  std::vector<float> x = {0.0f, -0.0f, 1e-42f, std::numeric_limits<float>::max()};
  for (uint32_t low : {0x7fffu, 0x8000u, 0x8001u}) {  // just below a tie, a tie, just above
    for (uint32_t high : {0x3f80u, 0x3f81u, 0xbf80u, 0x7f7fu}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  x.insert(x.end(), {infinity, -infinity, std::nanf(""), std::bit_cast<float>(0x7f800001u)});
  Philox rng(1, 2);
  for (int i = 0; i < 1000; ++i) x.push_back(rng.Normal());
  for (size_t offset : {0, 1, 5}) {
    for (size_t n : {size_t{0}, size_t{1}, size_t{17}, x.size() - offset}) {
      std::vector<BFloat16> y(n + 1, BFloat16{0x1234});
      Narrow(n, x.data() + offset, y.data());
      for (size_t i = 0; i < n; ++i) {
        EXPECT_EQ(y[i].bits, NarrowRef(x[offset + i]).bits) << x[offset + i];
      }
      EXPECT_EQ(y[n].bits, 0x1234);
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
