#include "linnet/kernels/causal_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <tuple>
#include <vector>

#include "linnet/base/larger_error.h"
#include "linnet/kernels/causal_linear_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

// One head of a dense [N, L, H, width] tensor, in double.
Doubles Head(const float* x, const CausalLinearShape& shape, size_t width, size_t n, size_t h) {
  Doubles head;
  for (size_t l = 0; l < shape.length; ++l) {
    const float* row = x + ((n * shape.length + l) * shape.heads + h) * width;
    head.insert(head.end(), row, row + width);
  }
  return head;
}

// The largest difference, divided by the largest expected magnitude or 0.1, whichever is larger.
// Inputs have a magnitude of about 1, so expected values far below 1 come from cancellation. They
// are held to an absolute tolerance.
class Difference {
 public:
  void Add(const float* got, const Doubles& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      largest_ = LargerError(largest_, std::abs(got[i] - want[i]));
      scale_ = std::max(scale_, std::abs(want[i]));
    }
  }
  double relative() const { return largest_ / std::max(scale_, 0.1); }

 private:
  double largest_ = 0, scale_ = 0;
};

TEST(CausalLinearDifference, KeepsNan) {
  const float got[] = {1, NAN, 1};
  Difference difference;
  difference.Add(got, {1, 1, 1});
  EXPECT_TRUE(std::isnan(difference.relative()));
}

struct Problem {
  CausalLinearShape shape;
  CausalLinearOptions options;
  bool lengths;  // whether to mask the keys beyond a length per sequence
};

// Compares the forward and backward of one problem with the reference, first from a zero state,
// then from a given state with a gradient of the final state. Tensors begin `offset` floats into
// their buffers. A canary after each output must survive. With kIdentity and `normalize`, features
// are made positive. Otherwise a denominator may vanish, and the error has no bound.
void CheckProblem(const Problem& problem, size_t offset, ParallelFor parallel_for, size_t slots) {
  const CausalLinearShape& shape = problem.shape;
  const size_t tokens = shape.batch * shape.length * shape.heads;
  const size_t d = shape.dim, m = shape.value_dim, heads = shape.batch * shape.heads;
  SCOPED_TRACE(testing::Message() << "N " << shape.batch << " L " << shape.length << " H "
                                  << shape.heads << " D " << d << " M " << m << " offset " << offset
                                  << (problem.options.normalize ? " normalized" : ""));
  const auto shifted = [&](Floats x) { return x.insert(x.begin(), offset, 99.0f), x; };
  const bool positive =
      problem.options.normalize && problem.options.feature_map == FeatureMap::kIdentity;
  const auto features = [&](Floats x) {
    for (float& value : x) value = positive ? std::abs(value) : value;
    return shifted(x);
  };
  const Floats q = features(Random(tokens * d, 1)), k = features(Random(tokens * d, 2));
  const Floats v = shifted(Random(tokens * m, 3)), grad_out = shifted(Random(tokens * m, 4));
  std::vector<int64_t> lengths;
  for (size_t n = 0; n < shape.batch; ++n) {
    lengths.push_back(static_cast<int64_t>(shape.length - n % shape.length));
  }
  const size_t canary = 16;
  Floats out(offset + tokens * m + canary, 77.0f), kept(CausalLinearKept(shape));
  Floats grad_q(offset + tokens * d + canary, 77.0f), grad_k = grad_q;
  Floats grad_v(offset + tokens * m + canary, 77.0f);
  Floats scratch(CausalLinearScratch(shape) * slots + 1);
  const Scratch work{scratch.data() + offset % 2, slots};

  const auto rows = [&](auto& x, size_t width) {
    return RowMajor(x.data() + offset, shape.length, shape.heads, width);
  };
  const auto in = [&](const Floats& x, size_t width) {
    return RowMajor<const float>(x.data() + offset, shape.length, shape.heads, width);
  };
  CausalLinearForwardArgs forward{.q = in(q, d), .k = in(k, d), .v = in(v, m), .out = rows(out, m)};
  forward.lengths = problem.lengths ? lengths.data() : nullptr;
  forward.kept = kept.data();
  CausalLinearForward(shape, problem.options, forward, work, parallel_for);

  const CausalLinearBackwardArgs backward{.q = in(q, d),
                                          .k = in(k, d),
                                          .v = in(v, m),
                                          .out = in(out, m),
                                          .grad_out = in(grad_out, m),
                                          .kept = kept.data(),
                                          .lengths = forward.lengths,
                                          .grad_q = rows(grad_q, d),
                                          .grad_k = rows(grad_k, d),
                                          .grad_v = rows(grad_v, m)};
  CausalLinearBackward(shape, problem.options, backward, work, parallel_for);

  // Repeats both passes from a given state.
  Floats s = Random(heads * d * m, 5), z = Random(heads * d, 6);
  for (float& value : z) value = std::abs(value) + 1;
  const Floats s0 = s, z0 = z;
  Floats continued(offset + tokens * m);
  forward.out = rows(continued, m);
  forward.s = s.data();
  forward.z = z.data();
  CausalLinearForward(shape, problem.options, forward, work, parallel_for);
  const Floats grad_s = Random(heads * d * m, 7), grad_z = Random(heads * d, 8);
  Floats grad_q1 = grad_q, grad_k1 = grad_k, grad_v1 = grad_v;
  Floats grad_s0(heads * d * m + canary, 77.0f), grad_z0(heads * d + canary, 77.0f);
  CausalLinearBackwardArgs from_state = backward;
  from_state.out = in(continued, m);
  from_state.grad_q = rows(grad_q1, d);
  from_state.grad_k = rows(grad_k1, d);
  from_state.grad_v = rows(grad_v1, m);
  from_state.s = s0.data();
  from_state.z = z0.data();
  from_state.grad_s = grad_s.data();
  from_state.grad_z = grad_z.data();
  from_state.grad_s0 = grad_s0.data();
  from_state.grad_z0 = grad_z0.data();
  CausalLinearBackward(shape, problem.options, from_state, work, parallel_for);

  Difference in_out, in_q, in_k, in_v, in_continued, in_s, in_z;
  Difference in_q1, in_k1, in_v1, in_s0, in_z0;
  for (size_t n = 0; n < shape.batch; ++n) {
    for (size_t h = 0; h < shape.heads; ++h) {
      const auto head = [&](const Floats& x, size_t width) {
        return Head(x.data() + offset, shape, width, n, h);
      };
      const size_t valid = problem.lengths ? static_cast<size_t>(lengths[n]) : shape.length;
      const size_t index = n * shape.heads + h;
      const auto state = [&](const Floats& x, size_t size) {
        const auto begin = x.begin() + static_cast<ptrdiff_t>(index * size);
        return Doubles(begin, begin + static_cast<ptrdiff_t>(size));
      };
      const CausalLinearRef ref(shape.length, d, m, problem.options, head(q, d), head(k, d),
                                head(v, m), valid);
      const CausalLinearRef from(shape.length, d, m, problem.options, head(q, d), head(k, d),
                                 head(v, m), valid, state(s0, d * m), state(z0, d));
      const Doubles g = head(grad_out, m), gs = state(grad_s, d * m);
      const Doubles gz = problem.options.normalize ? state(grad_z, d) : Doubles();
      for (size_t l = 0; l < shape.length; ++l) {
        const size_t row = (n * shape.length + l) * shape.heads + h;
        in_out.Add(&out[offset + row * m], ref.Out(l));
        in_q.Add(&grad_q[offset + row * d], ref.GradQ(l, g));
        in_k.Add(&grad_k[offset + row * d], ref.GradK(l, g));
        in_v.Add(&grad_v[offset + row * m], ref.GradV(l, g));
        in_continued.Add(&continued[offset + row * m], from.Out(l));
        in_q1.Add(&grad_q1[offset + row * d], from.GradQ(l, g));
        in_k1.Add(&grad_k1[offset + row * d], from.GradK(l, g, gs, gz));
        in_v1.Add(&grad_v1[offset + row * m], from.GradV(l, g, gs));
      }
      in_s.Add(&s[index * d * m], from.S());
      in_s0.Add(&grad_s0[index * d * m], from.GradS0(g, gs));
      if (!problem.options.normalize) continue;
      in_z.Add(&z[index * d], from.Z());
      in_z0.Add(&grad_z0[index * d], from.GradZ0(g, gz));
    }
  }
  EXPECT_LT(in_out.relative(), 1e-5);
  EXPECT_LT(in_q.relative(), 1e-5);
  EXPECT_LT(in_k.relative(), 1e-5);
  EXPECT_LT(in_v.relative(), 1e-5);
  EXPECT_LT(in_continued.relative(), 1e-5);
  EXPECT_LT(in_s.relative(), 1e-5);
  EXPECT_LT(in_z.relative(), 1e-5);
  EXPECT_LT(in_q1.relative(), 1e-5);
  EXPECT_LT(in_k1.relative(), 1e-5);
  EXPECT_LT(in_v1.relative(), 1e-5);
  EXPECT_LT(in_s0.relative(), 1e-5);
  EXPECT_LT(in_z0.relative(), 1e-5);
  for (const Floats* x :
       {&out, &grad_q, &grad_k, &grad_v, &grad_q1, &grad_k1, &grad_v1, &grad_s0, &grad_z0}) {
    EXPECT_TRUE(std::all_of(x->end() - canary, x->end(), [](float y) { return y == 77.0f; }));
  }
  for (const Floats* x : {&out, &grad_q, &grad_k, &grad_v, &grad_q1, &grad_k1, &grad_v1}) {
    EXPECT_TRUE(std::all_of(x->begin(), x->begin() + static_cast<ptrdiff_t>(offset),
                            [](float y) { return y == 77.0f; }));
  }
}

LINNET_SUITE_ON_EACH_ISA(CausalLinear);

TEST_P(CausalLinear, MatchesTheReferenceOverRaggedShapes) {
  for (auto [n, l, h, d, m] :
       std::vector<std::tuple<size_t, size_t, size_t, size_t, size_t>>{{1, 1, 1, 1, 1},
                                                                       {3, 2, 2, 5, 7},
                                                                       {2, 31, 3, 16, 20},
                                                                       {1, 32, 1, 32, 32},
                                                                       {2, 33, 1, 8, 40},
                                                                       {1, 70, 2, 33, 17},
                                                                       {2, 100, 2, 4, 3},
                                                                       {1, 65, 1, 64, 48},
                                                                       {2, 257, 1, 16, 16},
                                                                       {1, 600, 3, 4, 5},
                                                                       {1, 1100, 2, 3, 4}}) {
    for (bool normalize : {false, true}) {
      for (FeatureMap map : {FeatureMap::kElu, FeatureMap::kIdentity}) {
        const CausalLinearOptions options{map, normalize, 1e-6f};
        CheckProblem({{n, l, h, d, m}, options, normalize}, l % 4, SerialFor, 1);
      }
    }
  }
}

// With kIdentity, D is the size of features that the caller computes, often much larger than M.
TEST_P(CausalLinear, TakesFeaturesOfAnySize) {
  const CausalLinearOptions options{FeatureMap::kIdentity, true, 1e-6f};
  CheckProblem({{1, 50, 1, 561, 32}, options, false}, 1, SerialFor, 1);
  CheckProblem({{2, 70, 2, 64, 16}, options, true}, 0, SerialFor, 1);
}

// The sequence is so long that a segment has more than kKeptRows rows, which each pass of the
// backward then reads again. The test compares a sample of rows, some of them at the borders of
// segments.
TEST_P(CausalLinear, LongSequencesAreCutIntoSegments) {
  const size_t length = 66'000, d = 3, m = 16;
  const CausalLinearShape shape{1, length, 1, d, m};
  for (const CausalLinearOptions& options :
       {CausalLinearOptions{}, CausalLinearOptions{FeatureMap::kIdentity, false, 0}}) {
    const Floats q = Random(length * d, 1), k = Random(length * d, 2), v = Random(length * m, 3);
    const Floats grad_out = Random(length * m, 4);
    Floats out(length * m), kept(CausalLinearKept(shape)), scratch(CausalLinearScratch(shape));
    Floats grad_q(length * d), grad_k(length * d), grad_v(length * m);
    const auto in = [&](const Floats& x, size_t width) {
      return RowMajor<const float>(x.data(), length, 1, width);
    };
    CausalLinearForward(shape, options,
                        {.q = in(q, d),
                         .k = in(k, d),
                         .v = in(v, m),
                         .out = RowMajor(out.data(), length, 1, m),
                         .kept = kept.data()},
                        {scratch.data(), 1}, SerialFor);
    CausalLinearBackward(shape, options,
                         {.q = in(q, d),
                          .k = in(k, d),
                          .v = in(v, m),
                          .out = in(out, m),
                          .grad_out = in(grad_out, m),
                          .kept = kept.data(),
                          .grad_q = RowMajor(grad_q.data(), length, 1, d),
                          .grad_k = RowMajor(grad_k.data(), length, 1, d),
                          .grad_v = RowMajor(grad_v.data(), length, 1, m)},
                         {scratch.data(), 1}, SerialFor);
    const auto doubles = [](const Floats& x) { return Doubles(x.begin(), x.end()); };
    const CausalLinearRef ref(length, d, m, options, doubles(q), doubles(k), doubles(v), length);
    const Doubles g = doubles(grad_out);
    // Compares row by row, because the magnitude of a row depends on its position.
    for (size_t l : {size_t{0}, size_t{287}, size_t{288}, size_t{289}, size_t{33'000}, length - 289,
                     length - 1}) {
      Difference in_out, in_q, in_k, in_v;
      in_out.Add(&out[l * m], ref.Out(l));
      in_q.Add(&grad_q[l * d], ref.GradQ(l, g));
      in_k.Add(&grad_k[l * d], ref.GradK(l, g));
      in_v.Add(&grad_v[l * m], ref.GradV(l, g));
      EXPECT_LT(in_out.relative(), 2e-5) << l;
      EXPECT_LT(in_q.relative(), 2e-5) << l;
      EXPECT_LT(in_k.relative(), 2e-5) << l;
      EXPECT_LT(in_v.relative(), 2e-5) << l;
    }
  }
}

// The bf16 kernel computes in fp32. Its results are those of the fp32 kernel for the same inputs,
// rounded once.
TEST_P(CausalLinear, Bf16IsFp32RoundedAtTheEnds) {
  const auto narrow = [](const Floats& x) {
    std::vector<BFloat16> y(x.size());
    Narrow(x.size(), x.data(), y.data());
    return y;
  };
  const auto widen = [](const std::vector<BFloat16>& x) {
    Floats y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = std::bit_cast<float>(static_cast<uint32_t>(x[i].bits) << 16);
    }
    return y;
  };
  for (const auto& size : std::vector<std::array<size_t, 4>>{
           {1, 1, 1, 1}, {70, 2, 5, 7}, {33, 1, 32, 16}, {300, 3, 20, 24}}) {
    const size_t length = size[0], heads = size[1], d = size[2], m = size[3];
    for (bool normalize : {false, true}) {
      const CausalLinearShape shape{2, length, heads, d, m};
      const CausalLinearOptions options{FeatureMap::kElu, normalize, 1e-6f};
      const size_t tokens = 2 * length * heads;
      const auto q = narrow(Random(tokens * d, 1)), k = narrow(Random(tokens * d, 2));
      const auto v = narrow(Random(tokens * m, 3)), g = narrow(Random(tokens * m, 4));
      const std::vector<int64_t> lengths = {static_cast<int64_t>(length),
                                            static_cast<int64_t>(length / 2)};
      Floats kept(CausalLinearKept(shape)), scratch(CausalLinearScratch(shape));
      const auto run = [&](auto zero, const auto& q, const auto& k, const auto& v, const auto& g,
                           const auto& out_before) {
        using T = decltype(zero);
        std::vector<T> out(tokens * m), grad_q(tokens * d), grad_k(tokens * d), grad_v(tokens * m);
        const auto in = [&](const std::vector<T>& x, size_t width) {
          return RowMajor<const T>(x.data(), length, heads, width);
        };
        const auto to = [&](std::vector<T>& x, size_t width) {
          return RowMajor<T>(x.data(), length, heads, width);
        };
        CausalLinearForward(shape, options,
                            CausalLinearForwardArgsOf<T>{.q = in(q, d),
                                                         .k = in(k, d),
                                                         .v = in(v, m),
                                                         .out = to(out, m),
                                                         .lengths = lengths.data(),
                                                         .kept = kept.data()},
                            {scratch.data(), 1}, SerialFor);
        CausalLinearBackward(
            shape, options,
            CausalLinearBackwardArgsOf<T>{.q = in(q, d),
                                          .k = in(k, d),
                                          .v = in(v, m),
                                          .out = in(out_before.empty() ? out : out_before, m),
                                          .grad_out = in(g, m),
                                          .kept = kept.data(),
                                          .lengths = lengths.data(),
                                          .grad_q = to(grad_q, d),
                                          .grad_k = to(grad_k, d),
                                          .grad_v = to(grad_v, m)},
            {scratch.data(), 1}, SerialFor);
        return std::array{out, grad_q, grad_k, grad_v};
      };
      const auto half = run(BFloat16{}, q, k, v, g, std::vector<BFloat16>{});
      // Both backwards read the same `out`, rounded to bf16.
      const auto full = run(0.0f, widen(q), widen(k), widen(v), widen(g), widen(half[0]));
      for (size_t i = 0; i < half.size(); ++i) {
        EXPECT_EQ(widen(half[i]), widen(narrow(full[i]))) << i << " of length " << length;
      }
    }
  }
}

// Verifies the reference's own gradients (equations 13-15) against finite differences of its
// forward, with an initial state and a gradient of the final state.
TEST(CausalLinearRef, GradientsMatchFiniteDifferences) {
  const size_t length = 6, d = 3, m = 2, valid = 5;
  const auto doubles = [](const Floats& x) { return Doubles(x.begin(), x.end()); };
  for (const bool normalize : {false, true}) {
    const CausalLinearOptions options{FeatureMap::kElu, normalize, 1e-6f};
    // q, k, v, s0, z0
    std::array<Doubles, 5> x = {doubles(Random(length * d, 1)), doubles(Random(length * d, 2)),
                                doubles(Random(length * m, 3)), doubles(Random(d * m, 5)),
                                doubles(Random(d, 6))};
    for (double& value : x[4]) value = std::abs(value) + 1;
    const Doubles g = doubles(Random(length * m, 4)), gs = doubles(Random(d * m, 7));
    const Doubles gz = doubles(Random(d, 8));
    const auto make = [&] {
      return CausalLinearRef(length, d, m, options, x[0], x[1], x[2], valid, x[3], x[4]);
    };
    const auto loss = [&] {
      const CausalLinearRef ref = make();
      double sum = 0;
      for (size_t i = 0; i < length; ++i) {
        const Doubles out = ref.Out(i);
        for (size_t c = 0; c < m; ++c) sum += out[c] * g[i * m + c];
      }
      for (size_t i = 0; i < d * m; ++i) sum += ref.S()[i] * gs[i];
      for (size_t i = 0; i < d; ++i) sum += ref.Z()[i] * gz[i];
      return sum;
    };
    const CausalLinearRef ref = make();
    for (size_t which = 0; which < x.size(); ++which) {
      const size_t width = which < 2 ? d : which == 2 ? m : x[which].size();
      for (size_t i = 0; i < x[which].size(); ++i) {
        const Doubles row = which == 0   ? ref.GradQ(i / width, g)
                            : which == 1 ? ref.GradK(i / width, g, gs, gz)
                            : which == 2 ? ref.GradV(i / width, g, gs)
                            : which == 3 ? ref.GradS0(g, gs)
                                         : ref.GradZ0(g, gz);
        const double at = x[which][i], h = 1e-5;
        x[which][i] = at + h;
        const double up = loss();
        x[which][i] = at - h;
        const double down = loss();
        x[which][i] = at;
        EXPECT_NEAR(row[i % width], (up - down) / (2 * h), 1e-7) << which << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
