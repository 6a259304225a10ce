#include "linnet/kernels/causal_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <tuple>
#include <vector>

#include "linnet/base/rng.h"
#include "linnet/kernels/causal_linear_ref.h"
#include "linnet/kernels/isa.h"

namespace linnet::kernels {
namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

Floats Random(size_t n, uint64_t stream) {
  Philox rng(11, stream);
  Floats x(n);
  for (float& value : x) value = rng.Normal();
  return x;
}

// One head of a dense [N, L, H, width] tensor, in double.
Doubles Head(const float* x, const CausalLinearShape& shape, size_t width, size_t n, size_t h) {
  Doubles head;
  for (size_t l = 0; l < shape.length; ++l) {
    const float* row = x + ((n * shape.length + l) * shape.heads + h) * width;
    head.insert(head.end(), row, row + width);
  }
  return head;
}

// The largest difference relative to the largest value; inputs are of size 1, so results far below
// that are cancellation and are held to an absolute measure.
class Difference {
 public:
  void Add(const float* got, const Doubles& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      // A NaN must count as wrong, so the test is for "not within".
      const double off = std::abs(got[i] - want[i]);
      if (!(off <= largest_)) largest_ = off;
      scale_ = std::max(scale_, std::abs(want[i]));
    }
  }
  double relative() const { return largest_ / std::max(scale_, 0.1); }

 private:
  double largest_ = 0, scale_ = 0;
};

struct Problem {
  CausalLinearShape shape;
  CausalLinearOptions options;
  bool lengths;
};

// Forward, state in and out, and backward of one problem against the reference. `offset` floats of
// misalignment are put before every tensor; all of a canary behind the outputs must survive.
void CheckProblem(const Problem& problem, size_t offset, ParallelFor parallel_for, size_t slots) {
  const CausalLinearShape& shape = problem.shape;
  const size_t tokens = shape.batch * shape.length * shape.heads;
  const size_t d = shape.dim, m = shape.value_dim, heads = shape.batch * shape.heads;
  SCOPED_TRACE(testing::Message() << "N " << shape.batch << " L " << shape.length << " H "
                                  << shape.heads << " D " << d << " M " << m << " offset " << offset
                                  << (problem.options.normalize ? " normalized" : ""));
  const auto shifted = [&](Floats x) { return x.insert(x.begin(), offset, 99.0f), x; };
  const Floats q = shifted(Random(tokens * d, 1)), k = shifted(Random(tokens * d, 2));
  const Floats v = shifted(Random(tokens * m, 3)), grad_out = shifted(Random(tokens * m, 4));
  std::vector<int64_t> lengths;
  for (size_t n = 0; n < shape.batch; ++n) {
    lengths.push_back(static_cast<int64_t>(shape.length - n % shape.length));
  }
  const size_t canary = 16;
  Floats out(offset + tokens * m + canary, 77.0f), denominator(heads * shape.length);
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
  forward.denominator = denominator.data();
  CausalLinearForward(shape, problem.options, forward, work, parallel_for);

  const CausalLinearBackwardArgs backward{.q = in(q, d),
                                          .k = in(k, d),
                                          .v = in(v, m),
                                          .out = in(out, m),
                                          .grad_out = in(grad_out, m),
                                          .denominator = denominator.data(),
                                          .lengths = forward.lengths,
                                          .grad_q = rows(grad_q, d),
                                          .grad_k = rows(grad_k, d),
                                          .grad_v = rows(grad_v, m)};
  CausalLinearBackward(shape, problem.options, backward, work, parallel_for);

  // The same again from a given state.
  Floats s = Random(heads * d * m, 5), z = Random(heads * d, 6);
  for (float& value : z) value = std::abs(value) + 1;
  const Floats s0 = s, z0 = z;
  Floats continued(offset + tokens * m);
  forward.out = rows(continued, m);
  forward.s = s.data();
  forward.z = z.data();
  forward.denominator = nullptr;
  CausalLinearForward(shape, problem.options, forward, work, parallel_for);

  Difference in_out, in_q, in_k, in_v, in_continued, in_s, in_z;
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
      const Doubles g = head(grad_out, m);
      for (size_t l = 0; l < shape.length; ++l) {
        const size_t row = (n * shape.length + l) * shape.heads + h;
        in_out.Add(&out[offset + row * m], ref.Out(l));
        in_q.Add(&grad_q[offset + row * d], ref.GradQ(l, g));
        in_k.Add(&grad_k[offset + row * d], ref.GradK(l, g));
        in_v.Add(&grad_v[offset + row * m], ref.GradV(l, g));
        in_continued.Add(&continued[offset + row * m], from.Out(l));
      }
      in_s.Add(&s[index * d * m], from.S());
      if (problem.options.normalize) in_z.Add(&z[index * d], from.Z());
    }
  }
  EXPECT_LT(in_out.relative(), 1e-5);
  EXPECT_LT(in_q.relative(), 1e-5);
  EXPECT_LT(in_k.relative(), 1e-5);
  EXPECT_LT(in_v.relative(), 1e-5);
  EXPECT_LT(in_continued.relative(), 1e-5);
  EXPECT_LT(in_s.relative(), 1e-5);
  EXPECT_LT(in_z.relative(), 1e-5);
  for (const Floats* x : {&out, &grad_q, &grad_k, &grad_v}) {
    EXPECT_TRUE(std::all_of(x->end() - canary, x->end(), [](float y) { return y == 77.0f; }));
    EXPECT_TRUE(std::all_of(x->begin(), x->begin() + static_cast<ptrdiff_t>(offset),
                            [](float y) { return y == 77.0f; }));
  }
}

class CausalLinear : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ForceIsa(GetParam()); }
  void TearDown() override { ForceIsa(""); }
};
INSTANTIATE_TEST_SUITE_P(Isa, CausalLinear, testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(CausalLinear, MatchesTheReferenceOverRaggedShapes) {
  for (auto [n, l, h, d, m] :
       std::vector<std::tuple<size_t, size_t, size_t, size_t, size_t>>{{1, 1, 1, 1, 1},
                                                                       {3, 2, 2, 5, 7},
                                                                       {2, 31, 3, 16, 20},
                                                                       {1, 32, 1, 32, 32},
                                                                       {2, 33, 1, 8, 40},
                                                                       {1, 70, 2, 33, 17},
                                                                       {2, 100, 2, 4, 3},
                                                                       {1, 65, 1, 64, 48}}) {
    for (bool normalize : {false, true}) {
      for (FeatureMap map : {FeatureMap::kElu, FeatureMap::kIdentity}) {
        // An unmapped normaliser may vanish, and then no tolerance holds.
        if (normalize && map == FeatureMap::kIdentity) continue;
        const CausalLinearOptions options{map, normalize, 1e-6f};
        CheckProblem({{n, l, h, d, m}, options, normalize}, l % 4, SerialFor, 1);
      }
    }
  }
}

// The answer may not depend on how the work is dealt out.
TEST_P(CausalLinear, ThreadsDoNotChangeABit) {
  const CausalLinearShape shape{2, 70, 3, 20, 24};
  const Floats q = Random(2 * 70 * 3 * 20, 1), k = Random(2 * 70 * 3 * 20, 2);
  const Floats v = Random(2 * 70 * 3 * 24, 3);
  const auto run = [&](size_t slots, ParallelFor parallel_for) {
    Floats out(v.size()), scratch(CausalLinearScratch(shape) * slots);
    CausalLinearForward(shape, {},
                        {.q = RowMajor<const float>(q.data(), 70, 3, 20),
                         .k = RowMajor<const float>(k.data(), 70, 3, 20),
                         .v = RowMajor<const float>(v.data(), 70, 3, 24),
                         .out = RowMajor(out.data(), 70, 3, 24)},
                        {scratch.data(), slots}, parallel_for);
    return out;
  };
  const auto threads = [](size_t count, RangeBody body) {
    std::vector<std::thread> running;
    for (size_t i = 0; i < count; ++i) running.emplace_back([=] { body(i, i + 1); });
    for (std::thread& thread : running) thread.join();
  };
  const Floats one = run(1, SerialFor);
  for (size_t slots : {2, 3, 8}) EXPECT_EQ(run(slots, threads), one) << slots;
}

// The recurrent form: steps from a state equal the whole sequence at once.
TEST_P(CausalLinear, StepsEqualTheSequence) {
  for (auto [d, m] : {std::pair<size_t, size_t>{1, 1}, {5, 7}, {16, 20}, {32, 32}, {33, 17}}) {
    for (bool normalize : {false, true}) {
      const CausalLinearOptions options{FeatureMap::kElu, normalize, 1e-6f};
      const size_t length = 50;
      const Floats q = Random(length * d, 1), k = Random(length * d, 2), v = Random(length * m, 3);
      const CausalLinearRef ref(length, d, m, options, Doubles(q.begin(), q.end()),
                                Doubles(k.begin(), k.end()), Doubles(v.begin(), v.end()), length);
      Floats s(d * m + 1), z(d + 1), out(m + 1, 77.0f);
      s.back() = z.back() = 77.0f;
      Difference difference;
      for (size_t i = 0; i < length; ++i) {
        CausalLinearStep(d, m, options, &q[i * d], &k[i * d], &v[i * m], s.data(), z.data(),
                         out.data());
        difference.Add(out.data(), ref.Out(i));
      }
      difference.Add(s.data(), ref.S());
      EXPECT_LT(difference.relative(), 1e-5) << d << " " << m << " " << normalize;
      EXPECT_EQ(s.back(), 77.0f);
      EXPECT_EQ(z.back(), 77.0f);
      EXPECT_EQ(out.back(), 77.0f);
    }
  }
}

// Equations 13-15 against finite differences of the reference's forward, so that the reference's
// own gradients are not taken on trust.
TEST(CausalLinearRef, GradientsMatchFiniteDifferences) {
  const size_t length = 6, d = 3, m = 2, valid = 5;
  const CausalLinearOptions options{FeatureMap::kElu, true, 1e-6f};
  const auto doubles = [](const Floats& x) { return Doubles(x.begin(), x.end()); };
  std::array<Doubles, 3> x = {doubles(Random(length * d, 1)), doubles(Random(length * d, 2)),
                              doubles(Random(length * m, 3))};
  const Doubles g = doubles(Random(length * m, 4));
  const auto loss = [&] {
    const CausalLinearRef ref(length, d, m, options, x[0], x[1], x[2], valid);
    double sum = 0;
    for (size_t i = 0; i < length; ++i) {
      const Doubles out = ref.Out(i);
      for (size_t c = 0; c < m; ++c) sum += out[c] * g[i * m + c];
    }
    return sum;
  };
  const CausalLinearRef ref(length, d, m, options, x[0], x[1], x[2], valid);
  for (size_t which = 0; which < 3; ++which) {
    const size_t width = which == 2 ? m : d;
    for (size_t i = 0; i < x[which].size(); ++i) {
      const Doubles row = which == 0   ? ref.GradQ(i / width, g)
                          : which == 1 ? ref.GradK(i / width, g)
                                       : ref.GradV(i / width, g);
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

}  // namespace
}  // namespace linnet::kernels
