#include "linnet/runtime/short_convolution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "linnet/runtime/test_models.h"

namespace linnet {
namespace {

constexpr size_t kHead = 1, kLength = 7, kStride = 13;
constexpr ShortConvolution::Part kParts[] = {{0, 4}, {4, 7}};
constexpr size_t kChannels = 11;

// Runs the convolution over `length` rows from row `first` on, into rows of `out`.
void RunRows(const ShortConvolution& convolution, const Floats& x, size_t first, size_t length,
             float* past, Floats& out) {
  convolution.Run(
      kHead, {x.data() + first * kStride, kStride, length, past}, kParts,
      [&](size_t part, size_t t) { return &out[(first + t) * kChannels + kParts[part].first]; });
}

TEST(ShortConvolution, MatchesItsFormulaAtEveryCut) {
  Philox rng(7, 0);
  const auto random = [&] { return rng.Normal(); };
  for (const size_t taps : {0, 1, 2, 4, 9}) {
    for (const bool bias : {false, true}) {
      ShortConvolution convolution(2, taps, kChannels, bias);
      for (size_t c = 0; c < kChannels; ++c) {
        for (size_t w = 0; w < taps; ++w) convolution.weight(kHead, w, c) = random();
        if (bias && taps > 0) convolution.bias(kHead, c) = random();
      }
      // All inputs: those of the past, then the rows.
      const size_t before = taps > 0 ? taps - 1 : 0;
      Floats x(kLength * kStride), past(before * kChannels);
      std::generate(x.begin(), x.end(), random);
      std::generate(past.begin(), past.end(), random);
      const auto input = [&](size_t t, size_t c) {  // counted from the oldest past position
        return t < before ? past[t * kChannels + c] : x[(t - before) * kStride + c];
      };
      const auto want = [&](size_t t, size_t c, bool with_past) -> double {
        if (taps == 0) return x[t * kStride + c];
        double sum = bias ? convolution.bias(kHead, c) : 0;
        for (size_t w = 0; w < taps; ++w) {
          if (!with_past && t + w < before) continue;
          sum += static_cast<double>(convolution.weight(kHead, w, c)) * input(t + w, c);
        }
        return sum;
      };
      Floats whole(kLength * kChannels), alone = whole;
      Floats after = past;
      RunRows(convolution, x, 0, kLength, after.data(), whole);
      RunRows(convolution, x, 0, kLength, nullptr, alone);
      for (size_t i = 0; i < whole.size(); ++i) {
        const size_t t = i / kChannels, c = i % kChannels;
        ASSERT_NEAR(whole[i], want(t, c, true), 1e-5) << taps << " " << t << " " << c;
        ASSERT_NEAR(alone[i], want(t, c, false), 1e-5) << taps << " " << t << " " << c;
      }
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_EQ(after[i], input(kLength + i / kChannels, i % kChannels)) << taps << " " << i;
      }
      for (size_t cut = 0; cut <= kLength; ++cut) {
        Floats pieces(whole.size()), state = past;
        RunRows(convolution, x, 0, cut, state.data(), pieces);
        RunRows(convolution, x, cut, kLength - cut, state.data(), pieces);
        ASSERT_EQ(pieces, whole) << taps << " " << cut;
        ASSERT_EQ(state, after) << taps << " " << cut;
      }
    }
  }
}

}  // namespace
}  // namespace linnet
