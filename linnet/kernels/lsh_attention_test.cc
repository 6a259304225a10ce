#include "linnet/kernels/lsh_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "linnet/kernels/lsh_attention_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

constexpr float kCanary = 77.0f;
constexpr int32_t kIntCanary = 0x7fffabcd;

void Threads(size_t count, RangeBody body) {
  std::vector<std::thread> running;
  for (size_t i = 0; i < count; ++i) running.emplace_back([=] { body(i, i + 1); });
  for (std::thread& thread : running) thread.join();
}

// The largest difference, relative to the largest magnitude in `want` or to 1, whichever is larger.
double Difference(const Doubles& got, const Doubles& want) {
  double largest = 0, scale = 1;
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(got[i] - want[i]);
    if (!(off <= largest)) largest = off;  // a NaN fails
    scale = std::max(scale, std::abs(want[i]));
  }
  return largest / scale;
}

// Layout of Rows in memory: the first row is `shift` floats from the start. Kernels must not change
// the gaps between and around the rows.
struct Layout {
  size_t shift = 0, gap = 0;  // gap: floats between one position's rows and the next's
  bool head_major = false;
};

struct Rows {
  size_t batch, length, heads, width;
  Layout layout;
  Floats memory;

  Rows(const LshAttentionShape& shape, size_t width, Layout layout)
      : batch(shape.batch),
        length(shape.length),
        heads(shape.heads),
        width(width),
        layout(layout),
        memory(layout.shift + batch * length * (heads * width + layout.gap) + 16, kCanary) {}
  Rows(const LshAttentionShape& shape, size_t width, Layout layout, uint64_t stream, float size)
      : Rows(shape, width, layout) {
    const Floats from = Random(batch * length * heads * width, stream, size);
    size_t i = 0;
    Each([&](float& x) { x = from[i++]; });
  }

  template <typename T>
  Strided<T> View() const {
    T* data = const_cast<float*>(memory.data()) + layout.shift;
    Strided<T> view = layout.head_major ? HeadMajor<T>(data, length, heads, width)
                                        : RowMajor<T>(data, length, heads, width);
    if (!layout.head_major) {
      view.time += static_cast<ptrdiff_t>(layout.gap);
      view.batch += static_cast<ptrdiff_t>(layout.gap * length);
    }
    return view;
  }
  Strided<const float> In() const { return View<const float>(); }
  Strided<float> To() { return View<float>(); }
  const float* At(size_t n, size_t l, size_t h) const { return In().At(n, l, h); }
  float* At(size_t n, size_t l, size_t h) { return To().At(n, l, h); }

  template <class Body>
  void Each(Body body) {
    for (size_t n = 0; n < batch; ++n) {
      for (size_t l = 0; l < length; ++l) {
        for (size_t h = 0; h < heads; ++h) {
          for (size_t c = 0; c < width; ++c) body(At(n, l, h)[c]);
        }
      }
    }
  }
  Floats Dense() {
    Floats dense;
    Each([&](float& x) { dense.push_back(x); });
    return dense;
  }
  Doubles Head(size_t n, size_t h) const {
    Doubles head;
    for (size_t l = 0; l < length; ++l) head.insert(head.end(), At(n, l, h), At(n, l, h) + width);
    return head;
  }
  bool NothingElseWritten() const {
    Rows copy = *this;
    copy.Each([](float& x) { x = kCanary; });
    return std::all_of(copy.memory.begin(), copy.memory.end(),
                       [](float x) { return x == kCanary; });
  }
};

struct Problem {
  LshAttentionShape shape;
  LshAttentionOptions options;
  std::vector<int64_t> lengths = {};
  Layout layout = {};
  float q_size = 1, v_size = 1;  // standard deviations
};

// All inputs and outputs of a problem's forward and backward.
struct Pass {
  Rows q, v, grad_out, out, grad_q, grad_v;
  Floats planes, sums, delta;
  std::vector<int32_t> places;

  explicit Pass(const Problem& problem)
      : Pass(problem.shape, problem.layout, problem.q_size, problem.v_size) {
    planes = Random(problem.shape.rounds * problem.shape.dim * (problem.options.buckets / 2), 4);
  }
  Pass(const LshAttentionShape& s, Layout layout, float q_size, float v_size)
      : q(s, s.dim, layout, 1, q_size),
        v(s, s.value_dim, layout, 2, v_size),
        grad_out(s, s.value_dim, layout, 3, 1),
        out(s, s.value_dim, layout),
        grad_q(s, s.dim, layout),
        grad_v(s, s.value_dim, layout),
        sums(LshAttentionSums(s) + 1, kCanary),
        delta(s.batch * s.heads * s.length + 1, kCanary),
        places(LshAttentionPlaces(s) + 1, kIntCanary) {}

  void Go(const Problem& problem, size_t slots, ParallelFor parallel_for) {
    const LshAttentionShape& shape = problem.shape;
    Floats scratch(LshAttentionScratch(shape, problem.options) * slots + 1, NAN);
    const Scratch work{scratch.data() + problem.layout.shift % 2, slots};
    const int64_t* lengths = problem.lengths.empty() ? nullptr : problem.lengths.data();
    LshAttentionForward(shape, problem.options,
                        {.q = q.In(),
                         .v = v.In(),
                         .out = out.To(),
                         .planes = problem.options.buckets > 1 ? planes.data() : nullptr,
                         .lengths = lengths,
                         .places = places.data(),
                         .sums = sums.data()},
                        work, parallel_for);
    LshAttentionBackward(shape, problem.options,
                         {.q = q.In(),
                          .v = v.In(),
                          .out = out.In(),
                          .grad_out = grad_out.In(),
                          .lengths = lengths,
                          .places = places.data(),
                          .sums = sums.data(),
                          .delta = delta.data(),
                          .grad_q = grad_q.To(),
                          .grad_v = grad_v.To()},
                         work, parallel_for);
  }
  std::array<Rows*, 3> Written() { return {&out, &grad_q, &grad_v}; }
};

size_t Valid(const Problem& problem, size_t n) {
  if (problem.lengths.empty()) return problem.shape.length;
  return std::min(problem.shape.length,
                  static_cast<size_t>(std::max<int64_t>(problem.lengths[n], 0)));
}

// The buckets that the kernel chose for a head's positions, from `run.places`. Checks that they
// equal the reference's, except near ties.
std::vector<std::vector<size_t>> Buckets(const Problem& problem, const Pass& run, size_t n,
                                         size_t h) {
  const LshAttentionShape& s = problem.shape;
  const size_t head = n * s.heads + h, valid = Valid(problem, n);
  const size_t half = problem.options.buckets / 2;
  const int32_t* order = run.places.data() + head * s.rounds * s.length;
  const int32_t* code =
      run.places.data() + s.batch * s.heads * s.rounds * s.length + head * s.rounds * s.length;
  const Doubles q = run.q.Head(n, h);
  std::vector<std::vector<size_t>> buckets(s.rounds, std::vector<size_t>(valid));
  for (size_t r = 0; r < s.rounds; ++r) {
    for (size_t place = 0; place < valid; ++place) {
      const auto i = static_cast<size_t>(order[r * s.length + place]);
      const size_t chunk = place / problem.options.chunk;
      buckets[r][i] = (static_cast<size_t>(code[i * s.rounds + r]) - chunk) / 2;
      const LshBucketRef want(&q[i * s.dim], run.planes.data() + r * s.dim * half, s.dim, half);
      if (want.margin > 1e-4 * problem.q_size) {
        EXPECT_EQ(buckets[r][i], want.bucket) << r << " " << i;
      }
    }
  }
  return buckets;
}

struct Tolerance {
  double out = 1e-5, q = 3e-5, v = 1e-5;
};

// Compares the forward and backward of one problem with the reference.
void CheckPass(const Problem& problem, Pass& run, Tolerance tolerance = {}) {
  const LshAttentionShape& s = problem.shape;
  SCOPED_TRACE(testing::Message() << "N " << s.batch << " L " << s.length << " H " << s.heads
                                  << " D " << s.dim << " M " << s.value_dim << " R " << s.rounds
                                  << " buckets " << problem.options.buckets << " chunk "
                                  << problem.options.chunk
                                  << (problem.options.causal ? " causal" : ""));
  run.Go(problem, 1, SerialFor);
  for (size_t n = 0; n < s.batch; ++n) {
    for (size_t h = 0; h < s.heads; ++h) {
      const LshAttentionRef ref(s, problem.options, run.q.Head(n, h), run.v.Head(n, h),
                                Valid(problem, n), Buckets(problem, run, n, h));
      const Doubles g = run.grad_out.Head(n, h);
      EXPECT_LT(Difference(run.out.Head(n, h), ref.Out()), tolerance.out);
      EXPECT_LT(Difference(run.grad_q.Head(n, h), ref.GradQ(g)), tolerance.q);
      EXPECT_LT(Difference(run.grad_v.Head(n, h), ref.GradV(g)), tolerance.v);
    }
  }
  for (const Rows* x : run.Written()) EXPECT_TRUE(x->NothingElseWritten());
  EXPECT_EQ(run.sums.back(), kCanary);
  EXPECT_EQ(run.delta.back(), kCanary);
  EXPECT_EQ(run.places.back(), kIntCanary);
}

void CheckProblem(const Problem& problem, Tolerance tolerance = {}) {
  Pass run(problem);
  CheckPass(problem, run, tolerance);
}

LINNET_SUITE_ON_EACH_ISA(LshAttention);

// The shapes are {N, L, H, D, M, R} and {buckets, chunk}. They include sizes of 1, and sizes just
// below and above those of tiles, panels and blocks of queries and keys.
TEST_P(LshAttention, MatchesTheReferenceOverRaggedShapes) {
  const std::vector<std::pair<LshAttentionShape, LshAttentionOptions>> problems = {
      {{1, 1, 1, 1, 1, 1}, {1, 1}},         {{1, 2, 1, 1, 1, 2}, {1, 1}},
      {{2, 3, 2, 5, 7, 2}, {2, 2}},         {{1, 7, 2, 3, 2, 4}, {4, 1}},
      {{1, 31, 1, 16, 16, 2}, {6, 4}},      {{2, 33, 2, 17, 15, 4}, {4, 8}},
      {{1, 100, 2, 32, 32, 1}, {8, 32}},    {{1, 130, 1, 33, 31, 4}, {64, 32}},
      {{1, 257, 1, 8, 24, 4}, {1, 32}},     {{1, 200, 1, 4, 40, 2}, {2, 7}},
      {{1, 300, 1, 32, 32, 4}, {10, 32}},   {{1, 290, 1, 5, 3, 2}, {2, 130}},
      {{1, 260, 1, 6, 9, 2}, {1, 97}},      {{1, 300, 1, 64, 48, 1}, {2, 500}},
      {{1, 205, 2, 12, 12, 4}, {34, 16}},   {{1, 150, 1, 9, 1, 2}, {66, 24}},
      {{1, 50, 1, 70, 129, 2}, {2, 10}},    {{1, 210, 1, 2, 2, 3}, {2, 3}},
      {{1, 450, 1, 7, 7, 2}, {4, 1 << 20}}, {{1, 230, 1, 24, 8, 9}, {4, 96}}};
  for (const auto& [shape, given] : problems) {
    for (const bool causal : {false, true}) {
      LshAttentionOptions options = given;
      options.causal = causal;
      CheckProblem({shape, options, {}, {.shift = shape.length % 4, .head_major = causal}});
      if (shape.length < 140) CheckProblem({shape, options, {}, {.shift = 3, .gap = 5}});
    }
  }
}

TEST_P(LshAttention, TakesLengths) {
  const LshAttentionShape shape{7, 140, 2, 8, 12, 2};
  for (const bool causal : {false, true}) {
    CheckProblem({shape, {4, 32, causal}, {140, 0, 1, 139, 50, -3, 1000}, {.shift = 2}});
    CheckProblem({shape, {1, 5, causal}, {2, 96, 97, 3, 128, 64, 65}});
  }
}

// Inputs at positions from lengths[n] on may be NaN; outputs there are zeros.
TEST_P(LshAttention, PaddingMakesNoNan) {
  const Problem problem{{4, 50, 2, 5, 7, 2}, {4, 8, true}, {0, 17, 50, 33}};
  Pass plain(problem), with_nan(problem);
  for (size_t n = 0; n < 4; ++n) {
    for (size_t l = Valid(problem, n); l < 50; ++l) {
      for (size_t h = 0; h < 2; ++h) {
        for (Rows* x : {&with_nan.q, &with_nan.v, &with_nan.grad_out}) {
          std::fill_n(x->At(n, l, h), x->width, NAN);
        }
      }
    }
  }
  plain.Go(problem, 1, SerialFor);
  with_nan.Go(problem, 1, SerialFor);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(with_nan.Written()[i]->Dense(), plain.Written()[i]->Dense()) << i;
    EXPECT_EQ(plain.Written()[i]->At(0, 3, 1)[0], 0);
    EXPECT_EQ(plain.Written()[i]->At(1, 17, 1)[0], 0);
  }
}

// The scores have both signs and are too large for exponentials without a running maximum.
TEST_P(LshAttention, LargerScores) {
  for (const bool causal : {false, true}) {
    CheckProblem({{1, 150, 2, 16, 16, 4}, {4, 32, causal}, {}, {}, 20}, {1e-4, 1e-3, 1e-4});
    CheckProblem({{1, 300, 1, 16, 16, 2}, {1, 160, causal}, {}, {}, 100}, {1e-4, 1e-3, 1e-4});
  }
}

// With queries of magnitude 10,000, one key usually outweighs all others by far.
TEST_P(LshAttention, ValuesOf10000) {
  for (const bool causal : {false, true}) {
    const Problem queries{{1, 120, 1, 8, 12, 2}, {4, 16, causal}, {}, {}, 1e4f};
    Pass run(queries);
    CheckPass(queries, run, {3e-3, INFINITY, 3e-3});
    for (const float x : run.grad_q.Dense()) EXPECT_TRUE(std::isfinite(x));
    CheckProblem({{1, 120, 1, 8, 12, 2}, {4, 16, causal}, {}, {}, 1, 1e4f}, {1e-6, 1e-5, 1e-6});
  }
}

// Zero queries and keys are in bucket 0. Dividing by the lower bound of |q|, 1e-12, makes their
// gradient large.
TEST_P(LshAttention, ZeroQueries) {
  for (const bool causal : {false, true}) {
    const Problem problem{{1, 100, 1, 8, 5, 2}, {4, 16, causal}};
    Pass some(problem), all(problem);
    for (size_t l = 0; l < 100; l += 7) std::fill_n(some.q.At(0, l, 0), 8, 0.0f);
    CheckPass(problem, some);
    all.q.Each([](float& x) { x = 0; });
    CheckPass(problem, all);
    for (const float x : all.grad_q.Dense()) EXPECT_EQ(x, 0);
  }
}

// With equal planes, a query sees the same keys in each round; each key counts once.
TEST_P(LshAttention, EqualRoundsAreOneRound) {
  const Problem one{{1, 200, 2, 8, 16, 1}, {8, 16}}, three{{1, 200, 2, 8, 16, 3}, {8, 16}};
  Pass a(one), b(three);
  for (size_t i = 0; i < b.planes.size(); ++i) b.planes[i] = a.planes[i % a.planes.size()];
  a.Go(one, 1, SerialFor);
  b.Go(three, 1, SerialFor);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a.Written()[i]->Dense(), b.Written()[i]->Dense());
  }
}

TEST_P(LshAttention, EmptyShapes) {
  for (const LshAttentionShape& shape :
       {LshAttentionShape{2, 0, 1, 3, 4, 2}, LshAttentionShape{0, 5, 1, 3, 4, 2}}) {
    for (const size_t slots : {1, 3}) {
      const Problem problem{shape, {4, 8}};
      Pass(problem).Go(problem, slots, SerialFor);
    }
  }
}

// A visible NaN propagates, so that training notices it.
TEST_P(LshAttention, VisibleNanPropagates) {
  const Problem problem{{1, 40, 1, 8, 8, 2}, {1, 20}};
  for (const bool in_q : {false, true}) {
    Pass run(problem);
    (in_q ? run.q : run.v).At(0, 5, 0)[3] = NAN;
    run.Go(problem, 1, SerialFor);
    EXPECT_TRUE(std::isnan(run.out.At(0, 6, 0)[3]));
    EXPECT_TRUE(std::isnan(run.grad_q.At(0, 6, 0)[3]));
  }
  // A query with a NaN or infinity gets an unspecified bucket, which must be within range.
  const Problem hashed{{1, 40, 1, 8, 8, 2}, {2, 20}};
  Pass run(hashed);
  for (size_t l = 0; l < 40; l += 3) run.q.At(0, l, 0)[l % 8] = l % 2 == 0 ? NAN : INFINITY;
  run.Go(hashed, 1, SerialFor);
}

// Results do not depend on how the work is divided among slots and threads. A single head is also
// divided, into blocks of positions, if there are several slots.
TEST_P(LshAttention, ResultsDoNotDependOnThreads) {
  for (const bool causal : {false, true}) {
    for (const auto& [shape, options] : {
             std::pair{LshAttentionShape{1, 700, 1, 20, 24, 2}, LshAttentionOptions{8, 32, causal}},
             std::pair{LshAttentionShape{2, 301, 3, 33, 8, 3}, LshAttentionOptions{2, 96, causal}},
             std::pair{LshAttentionShape{1, 500, 1, 8, 8, 2}, LshAttentionOptions{1, 150, causal}},
         }) {
      const Problem problem{shape, options, {}, {.gap = 3}};
      Pass one(problem);
      one.Go(problem, 1, SerialFor);
      for (const size_t slots : {2, 3, 4, 16}) {
        Pass other(problem);
        other.Go(problem, slots, Threads);
        EXPECT_EQ(other.places, one.places);
        EXPECT_EQ(other.sums, one.sums);
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(other.Written()[i]->Dense(), one.Written()[i]->Dense()) << slots << " " << i;
        }
      }
    }
  }
}

// Compares the gradients of the reference and of the kernel with finite differences of the
// reference's forward.
TEST_P(LshAttention, GradientsMatchFiniteDifferences) {
  for (const bool causal : {false, true}) {
    const Problem problem{{1, 13, 1, 3, 2, 3}, {4, 3, causal}};
    const LshAttentionShape& shape = problem.shape;
    Pass run(problem);
    run.Go(problem, 1, SerialFor);
    const auto buckets = Buckets(problem, run, 0, 0);
    const Doubles g = run.grad_out.Head(0, 0);
    std::array<Doubles, 2> x = {run.q.Head(0, 0), run.v.Head(0, 0)};
    const std::array<Doubles, 2> got = {run.grad_q.Head(0, 0), run.grad_v.Head(0, 0)};
    const auto make = [&] {
      return LshAttentionRef(shape, problem.options, x[0], x[1], shape.length, buckets);
    };
    const auto loss = [&] {
      const LshAttentionRef ref = make();
      double sum = 0;
      for (size_t i = 0; i < g.size(); ++i) sum += ref.Out()[i] * g[i];
      return sum;
    };
    const std::array<Doubles, 2> want = {make().GradQ(g), make().GradV(g)};
    for (size_t which = 0; which < 2; ++which) {
      for (size_t i = 0; i < x[which].size(); ++i) {
        const double at = x[which][i], h = 1e-5;
        x[which][i] = at + h;
        const double up = loss();
        x[which][i] = at - h;
        const double down = loss();
        x[which][i] = at;
        EXPECT_NEAR(want[which][i], (up - down) / (2 * h), 1e-8) << which << " " << i;
        EXPECT_NEAR(got[which][i], (up - down) / (2 * h), 1e-5) << which << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
