#include "linnet/kernels/lstm_cell.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linnet/kernels/lstm_cell_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(LstmCellTest);

constexpr size_t kHidden[] = {1, 7, 16, 37};
constexpr size_t kRows = 3;
const std::vector<int64_t> kLengths = {5, 4, 9};  // at step 4, the second sequence has ended

TEST_P(LstmCellTest, MatchesTheReference) {
  for (const size_t h : kHidden) {
    for (const bool first : {true, false}) {
      for (const bool lengths : {true, false}) {
        const std::vector<float> sums = Random(kRows * 4 * h, 1, 3), before = Random(kRows * h, 2);
        std::vector<float> gates = sums, cell(kRows * h, NAN), out(kRows * h, NAN);
        LstmCellForward(kRows, h,
                        {gates.data(), first ? nullptr : before.data(), cell.data(), out.data(),
                         lengths ? kLengths.data() : nullptr, 4});
        for (size_t r = 0; r < kRows; ++r) {
          for (size_t c = 0; c < h; ++c) {
            const auto sum = [&](size_t g) { return sums[r * 4 * h + g * h + c]; };
            LstmCellRef want =
                LstmCell(sum(0), sum(1), sum(2), sum(3), first ? 0 : before[r * h + c]);
            if (lengths && r == 1) want = {0, 0};
            ASSERT_NEAR(cell[r * h + c], want.cell, 2e-6);
            ASSERT_NEAR(out[r * h + c], want.out, 2e-6);
          }
        }
      }
    }
  }
}

// Compares the gradients of out * a + cell * b with central differences.
TEST_P(LstmCellTest, GradientsMatchDifferencesOfTheReference) {
  for (const size_t h : kHidden) {
    const std::vector<float> sums = Random(kRows * 4 * h, 1), before = Random(kRows * h, 2);
    const std::vector<float> a = Random(kRows * h, 3), b = Random(kRows * h, 4);
    std::vector<float> gates = sums, cell(kRows * h), out(kRows * h), grad_cell = b;
    std::vector<float> grad(kRows * 4 * h, NAN);
    LstmCellForward(kRows, h,
                    {gates.data(), before.data(), cell.data(), out.data(), kLengths.data(), 4});
    LstmCellBackward(kRows, h,
                     {gates.data(), before.data(), cell.data(), a.data(), grad_cell.data(),
                      grad.data(), kLengths.data(), 4});
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t c = 0; c < h; ++c) {
        double x[5];
        for (size_t g = 0; g < 4; ++g) x[g] = sums[r * 4 * h + g * h + c];
        x[4] = before[r * h + c];
        const auto loss = [&] {
          const LstmCellRef at = LstmCell(x[0], x[1], x[2], x[3], x[4]);
          return at.out * a[r * h + c] + at.cell * b[r * h + c];
        };
        for (size_t g = 0; g < 5; ++g) {
          const double value = x[g], step = 1e-5;
          x[g] = value + step;
          const double up = loss();
          x[g] = value - step;
          const double want = r == 1 ? 0 : (up - loss()) / (2 * step);
          x[g] = value;
          const float got = g < 4 ? grad[r * 4 * h + g * h + c] : grad_cell[r * h + c];
          ASSERT_NEAR(got, want, 3e-6 * (1 + std::abs(want))) << h << " " << r << " " << g;
        }
      }
    }
  }
}

TEST_P(LstmCellTest, LargeInputsMakeNoNan) {
  std::vector<float> gates = {-500, 500, 500, -500, 500, -500, -500, 500}, cell = {1, -1}, out(2);
  LstmCellForward(1, 2, {gates.data(), cell.data(), cell.data(), out.data()});
  for (const float x : {gates[0], gates[3], gates[5], cell[0], cell[1], out[0], out[1]}) {
    EXPECT_TRUE(std::isfinite(x));
  }
}

}  // namespace
}  // namespace linnet::kernels
