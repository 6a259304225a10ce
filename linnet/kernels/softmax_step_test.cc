#include "linnet/kernels/softmax_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/larger_error.h"
#include "linnet/kernels/softmax_attention_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(SoftmaxSteps);

// Steps two sequences: the second begins later, and the first pauses. Checks the results, and that
// nothing beyond a sequence's position is read and nothing beyond the end of its cache is written.
// `window` is the capacity of the cache; 0 means enough for all positions.
void ExpectSteps(size_t window, size_t readers) {
  constexpr size_t kBatch = 2, kGroups = 2;
  const size_t heads = kGroups * readers;
  struct Case {
    size_t d, m, length;
    float sharp;
  };
  for (const Case& one : {Case{1, 1, 3, 1},
                          {5, 7, 9, 1},
                          {16, 20, 33, 1},
                          {32, 32, 70, 1},
                          {33, 17, 21, 8},
                          {40, 65, 18, 1},
                          {64, 128, 17, 30}}) {
    const size_t d = one.d, m = one.m, length = one.length;
    const float sharp = one.sharp;
    const SoftmaxStepShape shape{heads, d, m, window > 0 ? window : length + 3, readers};
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    const size_t stride = kGroups * shape.HeadFloats() + 16;
    AlignedBuffer<float> cache(kBatch * stride), scratch(shape.ScratchFloats());
    std::fill(cache.begin(), cache.end(), NAN);
    const Floats q = Random(kBatch * length * heads * d, 1, sharp),
                 k = Random(kBatch * length * kGroups * d, 2),
                 v = Random(kBatch * length * kGroups * m, 3);
    std::vector<SoftmaxAttentionRef> refs;
    for (size_t n = 0; n < kBatch; ++n) {
      for (size_t h = 0; h < heads; ++h) {
        const auto of = [&](const Floats& x, size_t width, size_t count, size_t head) {
          Doubles rows;
          for (size_t i = 0; i < length; ++i) {
            const float* row = &x[((n * length + i) * count + head) * width];
            rows.insert(rows.end(), row, row + width);
          }
          return rows;
        };
        refs.emplace_back(SoftmaxAttentionShape{1, length, length, 1, d, m},
                          SoftmaxAttentionOptions{.scale = scale, .causal = true, .window = window},
                          of(q, d, heads, h), of(k, d, kGroups, h / readers),
                          of(v, m, kGroups, h / readers), length);
      }
    }
    std::vector<size_t> positions(kBatch);
    double worst = 0;
    const auto step = [&](const std::vector<size_t>& sequences) {
      // Gathers the inputs row by row, because the sequences are at different positions.
      Floats in_q, in_k, in_v, out(sequences.size() * heads * m);
      for (const size_t n : sequences) {
        const auto add = [&](Floats& to, const Floats& x, size_t width) {
          const float* row = &x[(n * length + positions[n]) * width];
          to.insert(to.end(), row, row + width);
        };
        add(in_q, q, heads * d), add(in_k, k, kGroups * d), add(in_v, v, kGroups * m);
      }
      SoftmaxStep(shape, sequences.size(), scale,
                  {.q = RowMajor<const float>(in_q.data(), 1, heads, d),
                   .k = RowMajor<const float>(in_k.data(), 1, kGroups, d),
                   .v = RowMajor<const float>(in_v.data(), 1, kGroups, m),
                   .out = RowMajor(out.data(), 1, heads, m),
                   .cache = cache.data(),
                   .cache_stride = static_cast<ptrdiff_t>(stride),
                   .positions = positions.data(),
                   .sequences = sequences.data(),
                   .scratch = scratch.data()});
      for (size_t i = 0; i < sequences.size(); ++i) {
        const size_t n = sequences[i];
        for (size_t h = 0; h < heads; ++h) {
          const Doubles want = refs[n * heads + h].Out(positions[n]);
          for (size_t c = 0; c < m; ++c) {
            const double off = std::abs(out[(i * heads + h) * m + c] - want[c]);
            worst = LargerError(worst, off);
          }
        }
        ++positions[n];
      }
    };
    step({0});
    step({0});
    step({1, 0});
    while (positions[1] < length) step({1});
    while (positions[0] < length) step({0});
    EXPECT_LT(worst, 2e-5) << d << " " << m;
    for (size_t n = 0; n < kBatch; ++n) EXPECT_TRUE(std::isnan(cache[(n + 1) * stride - 1]));
  }
}

TEST_P(SoftmaxSteps, MatchTheReferenceOverRaggedShapes) {
  ExpectSteps(/*window=*/0, /*readers=*/1);
  ExpectSteps(/*window=*/0, /*readers=*/3);
}

// Windows shorter and longer than the sequences.
TEST_P(SoftmaxSteps, ASmallCacheIsAWindow) {
  for (const size_t window : {1, 2, 3, 8, 16, 17, 40}) ExpectSteps(window, /*readers=*/1);
  ExpectSteps(/*window=*/5, /*readers=*/2);
}

}  // namespace
}  // namespace linnet::kernels
