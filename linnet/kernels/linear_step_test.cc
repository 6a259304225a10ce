#include "linnet/kernels/linear_step.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/kernels/linear_step_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

// States of several sequences, with canaries at their ends.
struct States {
  LinearStepShape shape;
  size_t stride;
  AlignedBuffer<float> memory;
  std::vector<uint8_t> recent;

  States(const LinearStepShape& shape, size_t batch)
      : shape(shape),
        stride(shape.HotFloats() + shape.ColdFloats() + 16),
        memory(batch * stride),
        recent(batch) {
    for (size_t n = 0; n < batch; ++n) std::fill_n(&memory[(n + 1) * stride - 16], 16, 77.0f);
  }
  float* hot(size_t n = 0) { return memory.data() + n * stride; }
  float* cold(size_t n = 0) { return hot(n) + shape.HotFloats(); }

  HeadRange heads() const { return {0, shape.heads}; }

  // q, k, v and out are [sequences, heads, F or M], dense. Steps all heads in one call or, if
  // `apart`, one head per call.
  void Step(const CausalLinearOptions& options, const Floats& q, const Floats& k, const Floats& v,
            Floats& out, const std::vector<size_t>& sequences, bool apart = false) {
    const size_t h = shape.heads, f = shape.dim, m = shape.value_dim;
    AlignedBuffer<float> scratch(shape.ScratchFloats());
    for (size_t i = 0; i < (apart ? h : 1); ++i) {
      LinearStep(shape, sequences.size(), options,
                 {.heads = {i, apart ? i + 1 : h},
                  .q = RowMajor(q.data() + i * f, 1, h, f),
                  .k = RowMajor(k.data() + i * f, 1, h, f),
                  .v = RowMajor(v.data() + i * m, 1, h, m),
                  .out = RowMajor(out.data() + i * m, 1, h, m),
                  .hot = hot(),
                  .cold = cold(),
                  .state_stride = static_cast<ptrdiff_t>(stride),
                  .recent = recent.data(),
                  .sequences = sequences.data(),
                  .scratch = scratch.data()});
    }
    for (const size_t n : sequences) recent[n] = shape.NextRecent(recent[n]);
  }
  void Fold(size_t n) {
    LinearFold(shape, heads(), hot(n), cold(n), recent[n]);
    recent[n] = 0;
  }
};

Doubles Row(const Floats& x, size_t row, size_t width) {
  const auto begin = x.begin() + static_cast<ptrdiff_t>(row * width);
  return {begin, begin + static_cast<ptrdiff_t>(width)};
}

// The largest difference relative to the largest value.
class Difference {
 public:
  void Add(const float* got, const Doubles& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      const double off = std::abs(got[i] - want[i]);
      if (!(off <= largest_)) largest_ = off;  // a NaN fails
      scale_ = std::max(scale_, std::abs(want[i]));
    }
  }
  double relative() const { return largest_ / std::max(scale_, 0.1); }

 private:
  double largest_ = 0, scale_ = 0;
};

LINNET_SUITE_ON_EACH_ISA(LinearSteps);

// Mixes steps, folds and prefixes, for sequences at different positions.
TEST_P(LinearSteps, MatchTheReferenceOverRaggedShapes) {
  constexpr size_t kBatch = 3, kHeads = 2;
  for (const auto& size : std::vector<std::array<size_t, 2>>{
           {1, 1}, {5, 7}, {16, 20}, {32, 32}, {33, 17}, {40, 65}, {70, 48}, {150, 5}}) {
    const size_t f = size[0], m = size[1];
    for (const CausalLinearOptions& options :
         {CausalLinearOptions{FeatureMap::kElu, true, 1e-6f},
          CausalLinearOptions{FeatureMap::kIdentity, false, 0}}) {
      for (const bool narrow : {false, true}) {
        States states({kHeads, f, m, narrow}, kBatch);
        std::vector<LinearStepRef> refs(kBatch * kHeads, {f, m, options, narrow});
        Difference difference, sums;
        uint64_t stream = 0;
        const auto steps = [&](const std::vector<size_t>& sequences, size_t count) {
          for (size_t i = 0; i < count; ++i) {
            const size_t rows = sequences.size() * kHeads;
            const Floats q = Random(rows * f, ++stream), k = Random(rows * f, ++stream),
                         v = Random(rows * m, ++stream);
            Floats out(rows * m);
            states.Step(options, q, k, v, out, sequences, /*apart=*/i % 2 == 0);
            for (size_t r = 0; r < rows; ++r) {
              LinearStepRef& ref = refs[sequences[r / kHeads] * kHeads + r % kHeads];
              difference.Add(&out[r * m], ref.Step(Row(q, r, f), Row(k, r, f), Row(v, r, m)));
            }
          }
        };
        const auto extend = [&](size_t n, size_t length) {
          const Floats k = Random(length * kHeads * f, ++stream),
                       v = Random(length * kHeads * m, ++stream);
          states.Fold(n);
          LinearExtend(states.shape, states.heads(), options.feature_map, length,
                       RowMajor(k.data(), length, kHeads, f), RowMajor(v.data(), length, kHeads, m),
                       states.hot(n), states.cold(n));
          for (size_t h = 0; h < kHeads; ++h) {
            std::vector<Doubles> keys, values;
            for (size_t i = 0; i < length; ++i) {
              keys.push_back(Row(k, i * kHeads + h, f));
              values.push_back(Row(v, i * kHeads + h, m));
            }
            refs[n * kHeads + h].Extend(keys, values);
          }
        };
        steps({0, 1, 2}, 5);
        steps({2, 0}, 30);
        extend(1, 70);
        steps({1, 2}, 16);
        extend(2, 3);
        steps({0, 1, 2}, 20);
        for (size_t n = 0; n < kBatch; ++n) {
          states.Fold(n);
          Floats s(kHeads * f * m), z(kHeads * f);
          LinearSums(states.shape, states.heads(), states.hot(n), states.cold(n), s.data(),
                     z.data());
          for (size_t h = 0; h < kHeads; ++h) {
            refs[n * kHeads + h].Fold();
            sums.Add(&s[h * f * m], refs[n * kHeads + h].S());
            sums.Add(&z[h * f], refs[n * kHeads + h].Z());
          }
          for (size_t i = 1; i <= 16; ++i) EXPECT_EQ(states.hot(n + 1)[-ptrdiff_t(i)], 77.0f);
        }
        // Narrow states differ more: the kernel may round a key very near the midpoint of two bf16
        // numbers to one of them, and the reference to the other.
        EXPECT_LT(difference.relative(), narrow ? 1e-3 : 1e-5) << f << " " << m << " " << narrow;
        EXPECT_LT(sums.relative(), narrow ? 1e-3 : 1e-6) << f << " " << m << " " << narrow;
      }
    }
  }
}

TEST_P(LinearSteps, NanPropagates) {
  for (const bool narrow : {false, true}) {
    for (int which : {0, 1, 2}) {
      States states({1, 20, 20, narrow}, 1);
      for (size_t i = 0; i < 40; ++i) {
        std::array<Floats, 3> x = {Random(20, 1), Random(20, 2), Random(20, 3)};
        if (i == 5) x[static_cast<size_t>(which)][3] = NAN;
        Floats out(20);
        states.Step({}, x[0], x[1], x[2], out, {0});
        EXPECT_EQ(std::isnan(out[3]), i == 5 || (i > 5 && which > 0)) << which << " " << i;
      }
    }
  }
}

// Each fold adds less than a fifty-millionth of the sum, always of the same sign: a plain fp32 sum
// would not change. (`linnet bench stream` measures such sums over ten million positions.)
TEST_P(LinearSteps, SmallTermsStillCount) {
  const CausalLinearOptions options{FeatureMap::kIdentity, true, 0};
  for (const bool narrow : {false, true}) {
    States states({1, 1, 1, narrow}, 1);
    const Floats large = {1.0f}, small = {std::ldexp(1.0f, -30)};
    Floats out(1), s(1), z(1);
    states.Step(options, {1.0f}, large, large, out, {0});
    states.Fold(0);
    const size_t count = 200'000;
    for (size_t i = 0; i < count; ++i) states.Step(options, {1.0f}, small, {1.0f}, out, {0});
    states.Fold(0);
    LinearSums(states.shape, states.heads(), states.hot(), states.cold(), s.data(), z.data());
    const double want = 1 + double{small[0]} * count;
    EXPECT_NEAR(s[0], want, 1e-6) << narrow;
    EXPECT_NEAR(z[0], want, 1e-6) << narrow;
    EXPECT_GT(z[0], 1.0001f);
  }
}

}  // namespace
}  // namespace linnet::kernels
