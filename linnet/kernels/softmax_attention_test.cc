#include "linnet/kernels/softmax_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "linnet/kernels/softmax_attention_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

constexpr float kUnseen = -std::numeric_limits<float>::infinity();
constexpr float kCanary = 77.0f;

void Threads(size_t count, RangeBody body) {
  std::vector<std::thread> running;
  for (size_t i = 0; i < count; ++i) running.emplace_back([=] { body(i, i + 1); });
  for (std::thread& thread : running) thread.join();
}

// The largest difference divided by the largest expected value, or by 1 if all are smaller: inputs
// have a magnitude of about 1, so smaller results are held to an absolute tolerance.
class Difference {
 public:
  void Add(const float* got, const Doubles& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      // The negated comparison makes a NaN fail.
      const double off = std::abs(got[i] - want[i]);
      if (!(off <= largest_)) largest_ = off;
      scale_ = std::max(scale_, std::abs(want[i]));
    }
  }
  double relative() const { return largest_ / std::max(scale_, 1.0); }

 private:
  double largest_ = 0, scale_ = 0;
};

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

  Rows(size_t batch, size_t length, size_t heads, size_t width, Layout layout)
      : batch(batch),
        length(length),
        heads(heads),
        width(width),
        layout(layout),
        memory(layout.shift + batch * length * (heads * width + layout.gap) + 16, kCanary) {}
  Rows(size_t batch, size_t length, size_t heads, size_t width, Layout layout, const Floats& from)
      : Rows(batch, length, heads, width, layout) {
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

  template <class Body>
  void Each(Body body) {
    for (size_t n = 0; n < batch; ++n) {
      for (size_t l = 0; l < length; ++l) {
        for (size_t h = 0; h < heads; ++h) {
          for (size_t c = 0; c < width; ++c) body(To().At(n, l, h)[c]);
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
  SoftmaxAttentionShape shape;
  SoftmaxAttentionOptions options;
  std::vector<int64_t> lengths = {};
  Layout layout = {};
  float size = 1;  // standard deviation of queries and keys
};

// All inputs and outputs of a problem's forward and backward.
struct Pass {
  Rows q, k, v, grad_out, out, grad_q, grad_k, grad_v;
  Floats log2_sum, delta;

  explicit Pass(const Problem& problem)
      : Pass(problem.shape, problem.layout, problem.size, problem.layout) {}
  Pass(const SoftmaxAttentionShape& s, Layout layout, float size, Layout out_layout)
      : q(s.batch, s.queries, s.heads, s.dim, layout,
          Random(s.batch * s.queries * s.heads * s.dim, 1, size)),
        k(s.batch, s.keys, s.heads / s.readers, s.dim, layout,
          Random(s.batch * s.keys * s.heads * s.dim, 2, size)),
        v(s.batch, s.keys, s.heads / s.readers, s.value_dim, layout,
          Random(s.batch * s.keys * s.heads * s.value_dim, 3)),
        grad_out(s.batch, s.queries, s.heads, s.value_dim, layout,
                 Random(s.batch * s.queries * s.heads * s.value_dim, 4)),
        out(s.batch, s.queries, s.heads, s.value_dim, out_layout),
        grad_q(s.batch, s.queries, s.heads, s.dim, out_layout),
        grad_k(s.batch, s.keys, s.heads, s.dim, out_layout),
        grad_v(s.batch, s.keys, s.heads, s.value_dim, out_layout),
        log2_sum(s.batch * s.heads * s.queries + 1, kCanary),
        delta(log2_sum) {}

  void Go(const Problem& problem, size_t slots, ParallelFor parallel_for) {
    Floats scratch(SoftmaxAttentionScratch(problem.shape) * slots + 1, NAN);
    const Scratch work{scratch.data() + problem.layout.shift % 2, slots};
    const int64_t* lengths = problem.lengths.empty() ? nullptr : problem.lengths.data();
    SoftmaxAttentionForward(problem.shape, problem.options,
                            {.q = q.In(),
                             .k = k.In(),
                             .v = v.In(),
                             .out = out.To(),
                             .lengths = lengths,
                             .log2_sum = log2_sum.data()},
                            work, parallel_for);
    SoftmaxAttentionBackward(problem.shape, problem.options,
                             {.q = q.In(),
                              .k = k.In(),
                              .v = v.In(),
                              .out = out.In(),
                              .grad_out = grad_out.In(),
                              .lengths = lengths,
                              .log2_sum = log2_sum.data(),
                              .delta = delta.data(),
                              .grad_q = grad_q.To(),
                              .grad_k = grad_k.To(),
                              .grad_v = grad_v.To()},
                             work, parallel_for);
  }
  std::array<Rows*, 4> Written() { return {&out, &grad_q, &grad_k, &grad_v}; }
};

size_t Valid(const Problem& problem, size_t n) {
  if (problem.lengths.empty()) return problem.shape.keys;
  return static_cast<size_t>(std::max<int64_t>(problem.lengths[n], 0));
}

// Compares the forward and backward of one problem with the reference.
void CheckProblem(const Problem& problem, double tolerance = 1e-5) {
  const SoftmaxAttentionShape& shape = problem.shape;
  SCOPED_TRACE(testing::Message() << "N " << shape.batch << " L " << shape.queries << " S "
                                  << shape.keys << " H " << shape.heads << " D " << shape.dim
                                  << " M " << shape.value_dim << " shift " << problem.layout.shift
                                  << (problem.options.causal ? " causal, offset " : " offset ")
                                  << problem.options.offset << " window " << problem.options.window
                                  << " readers " << shape.readers);
  Pass run(problem);
  run.Go(problem, 1, SerialFor);
  Difference in_out, in_sum, in_q, in_k, in_v;
  for (size_t n = 0; n < shape.batch; ++n) {
    for (size_t h = 0; h < shape.heads; ++h) {
      const size_t read = h / shape.readers;
      const SoftmaxAttentionRef ref(shape, problem.options, run.q.Head(n, h), run.k.Head(n, read),
                                    run.v.Head(n, read), Valid(problem, n));
      const Doubles g = run.grad_out.Head(n, h);
      for (size_t l = 0; l < shape.queries; ++l) {
        in_out.Add(run.out.At(n, l, h), ref.Out(l));
        in_q.Add(run.grad_q.At(n, l, h), ref.GradQ(l, g));
        const float sum = run.log2_sum[(n * shape.heads + h) * shape.queries + l];
        if (std::isinf(ref.Log2Sum(l))) {
          EXPECT_EQ(sum, kUnseen);
        } else {
          in_sum.Add(&sum, {ref.Log2Sum(l)});
        }
      }
      for (size_t j = 0; j < shape.keys; ++j) {
        in_k.Add(run.grad_k.At(n, j, h), ref.GradK(j, g));
        in_v.Add(run.grad_v.At(n, j, h), ref.GradV(j, g));
      }
    }
  }
  EXPECT_LT(in_out.relative(), tolerance);
  EXPECT_LT(in_sum.relative(), tolerance);
  EXPECT_LT(in_q.relative(), tolerance);
  EXPECT_LT(in_k.relative(), tolerance);
  EXPECT_LT(in_v.relative(), tolerance);
  for (const Rows* x : run.Written()) EXPECT_TRUE(x->NothingElseWritten());
  EXPECT_EQ(run.log2_sum.back(), kCanary);
  EXPECT_EQ(run.delta.back(), kCanary);
}

LINNET_SUITE_ON_EACH_ISA(SoftmaxAttention);

// {N, L, S, H, D, M}: sizes of 1, sizes around a tile's rows, a tile's width and a block of keys,
// and odd sizes.
const std::vector<SoftmaxAttentionShape> kShapes = {
    {1, 1, 1, 1, 1, 1},      {2, 3, 5, 2, 5, 7},     {1, 11, 12, 1, 3, 2},
    {1, 12, 13, 2, 16, 16},  {1, 13, 31, 1, 17, 15}, {2, 31, 33, 3, 32, 32},
    {1, 1, 400, 1, 8, 24},   {1, 97, 1, 1, 4, 4},    {1, 25, 191, 2, 33, 1},
    {1, 100, 192, 1, 1, 33}, {1, 96, 193, 2, 7, 9},  {1, 200, 203, 1, 64, 48},
    {1, 9, 40, 1, 256, 3},   {1, 14, 50, 1, 5, 256}, {1, 6, 7, 1, 255, 129}};

TEST_P(SoftmaxAttention, MatchesTheReferenceOverRaggedShapes) {
  for (const SoftmaxAttentionShape& shape : kShapes) {
    const float scale = 1 / std::sqrt(static_cast<float>(shape.dim));
    CheckProblem({shape, {scale}, {}, {.shift = shape.queries % 4}});
    CheckProblem({shape, {scale}, {}, {.shift = 1, .head_major = true}});
    CheckProblem({shape, {scale, true}, {}, {.shift = 3, .gap = 5}});
    const size_t before = shape.keys > shape.queries ? shape.keys - shape.queries : 2;
    CheckProblem({shape, {scale, true, before}, {}, {.gap = 1}});
  }
}

TEST_P(SoftmaxAttention, TakesLengths) {
  const SoftmaxAttentionShape shape{5, 210, 215, 2, 8, 12};
  for (bool causal : {false, true}) {
    CheckProblem({shape, {0.5f, causal, 3}, {215, 0, 1, 193, 50}, {.shift = 2}});
    CheckProblem({shape, {0.5f, causal, 0}, {-3, 1000, 2, 192, 32}});
  }
}

// Windows of one key, about as long as a block of keys or a task's block of queries, and longer
// than the sequence. They are tested on whole sequences, on the last chunk of a sequence, and where
// the windows of some or all queries lie after the last key.
TEST_P(SoftmaxAttention, TakesWindows) {
  for (size_t window : {1, 2, 13, 96, 191, 192, 193, 300, 1000}) {
    CheckProblem({{1, 420, 420, 1, 5, 9}, {0.5f, true, 0, window}, {}, {.shift = 1}});
    CheckProblem({{1, 33, 33 + window - 1, 2, 16, 7}, {0.5f, true, window - 1, window}});
    CheckProblem({{4, 230, 240, 2, 8, 12}, {0.5f, true, 10, window}, {240, 0, 1, 150}});
  }
  CheckProblem({{1, 20, 30, 1, 4, 4}, {0.5f, true, 60, 40}});
  CheckProblem({{1, 20, 30, 1, 4, 4}, {0.5f, true, 500, 40}});
}

TEST_P(SoftmaxAttention, HeadsShareKeysAndValues) {
  for (bool causal : {false, true}) {
    CheckProblem({{2, 40, 50, 6, 8, 5, /*readers=*/3}, {0.5f, causal, 10}, {50, 20}, {.gap = 3}});
    CheckProblem({{1, 210, 210, 4, 8, 5, /*readers=*/4}, {0.5f, causal, 0, 30}, {}, {.shift = 1}});
  }
}

// Scores large enough that few keys dominate the softmax, with scales of both signs.
TEST_P(SoftmaxAttention, LargerScores) {
  CheckProblem({{1, 30, 220, 1, 16, 16}, {1.0f}, {}, {}, 2}, 1e-4);
  CheckProblem({{1, 230, 230, 1, 16, 16}, {-1.0f, true}, {}, {}, 2}, 1e-4);
}

bool Finite(const Floats& x) {
  return std::all_of(x.begin(), x.end(), [](float y) { return std::isfinite(y); });
}

// One key outweighs all others by far: out is that key's value, and the softmax's gradient
// vanishes.
TEST_P(SoftmaxAttention, ValuesOf10000) {
  const SoftmaxAttentionShape shape{1, 40, 230, 2, 8, 12};
  for (bool causal : {false, true}) {
    const Problem problem{shape, {1, causal, 190}, {}, {}, 1e4f};
    Pass run(problem);
    run.Go(problem, 1, SerialFor);
    for (size_t h = 0; h < 2; ++h) {
      const SoftmaxAttentionRef ref(shape, problem.options, run.q.Head(0, h), run.k.Head(0, h),
                                    run.v.Head(0, h), shape.keys);
      Difference in_out, in_v;
      const Doubles g = run.grad_out.Head(0, h);
      for (size_t l = 0; l < 40; ++l) in_out.Add(run.out.At(0, l, h), ref.Out(l));
      for (size_t j = 0; j < 230; ++j) in_v.Add(run.grad_v.At(0, j, h), ref.GradV(j, g));
      EXPECT_LT(in_out.relative(), 1e-6);
      EXPECT_LT(in_v.relative(), 1e-6);
    }
    // The exact gradients are 0; rounding errors of v . grad_out - delta are multiplied by keys or
    // queries of 1e4.
    for (float x : run.grad_q.Dense()) EXPECT_LT(std::abs(x), 1e-5 * 1e4);
    for (float x : run.grad_k.Dense()) EXPECT_LT(std::abs(x), 1e-4 * 1e4);
  }
  Problem values{shape, {0.3f}};
  Pass run(values);
  run.v.Each([](float& x) { x *= 1e4f; });
  run.Go(values, 1, SerialFor);
  for (Rows* x : run.Written()) EXPECT_TRUE(Finite(x->Dense()));
}

// Equal scores give the mean of the visible values.
TEST_P(SoftmaxAttention, ZeroQueries) {
  const SoftmaxAttentionShape shape{1, 20, 210, 1, 8, 5};
  const Problem problem{shape, {1, true, 190}};
  Pass run(problem);
  run.q.Each([](float& x) { x = 0; });
  run.v.Each([](float& x) { x = 3; });
  run.Go(problem, 1, SerialFor);
  for (float x : run.out.Dense()) EXPECT_NEAR(x, 3, 1e-6);
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(run.log2_sum[i], std::log2(191.0 + i), 1e-5);
  for (float x : run.grad_k.Dense()) EXPECT_EQ(x, 0);
}

// Keys that no query sees may hold anything. A query that sees no key gives zeros and contributes
// nothing to gradients.
TEST_P(SoftmaxAttention, HiddenNanDoesNotPropagate) {
  for (bool causal : {false, true}) {
    const Problem problem{{3, 30, 240, 2, 5, 7}, {1, causal, 150}, {0, 17, 240}};
    Pass plain(problem), with_nan(problem);
    plain.Go(problem, 1, SerialFor);
    const auto spoil = [&](Rows& x) {
      for (size_t n = 0; n < 3; ++n) {
        const size_t seen = std::min(Valid(problem, n), causal ? size_t{180} : size_t{240});
        for (size_t j = seen; j < 240; ++j) {
          for (size_t h = 0; h < 2; ++h) std::fill_n(x.To().At(n, j, h), x.width, NAN);
        }
      }
    };
    spoil(with_nan.k);
    spoil(with_nan.v);
    with_nan.Go(problem, 1, SerialFor);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(with_nan.Written()[i]->Dense(), plain.Written()[i]->Dense()) << i;
    }
    for (size_t i = 0; i < 60; ++i) EXPECT_EQ(plain.log2_sum[i], kUnseen);
    for (Rows* x : plain.Written()) {
      for (size_t l = 0; l < x->length; ++l) EXPECT_EQ(x->At(0, l, 0)[0], 0);
    }
  }
}

TEST_P(SoftmaxAttention, EmptyShapes) {
  for (const SoftmaxAttentionShape& shape :
       {SoftmaxAttentionShape{2, 5, 0, 1, 3, 4}, SoftmaxAttentionShape{2, 0, 5, 1, 3, 4},
        SoftmaxAttentionShape{0, 5, 5, 1, 3, 4}}) {
    for (size_t slots : {1, 3}) {
      const Problem problem{shape, {1, true}};
      Pass run(problem);
      run.Go(problem, slots, SerialFor);
      for (Rows* x : run.Written()) {
        for (float y : x->Dense()) EXPECT_EQ(y, 0);
      }
    }
  }
}

// A visible NaN propagates, so that training notices it.
TEST_P(SoftmaxAttention, VisibleNanPropagates) {
  const Problem problem{{1, 20, 40, 1, 8, 8}, {1}};
  for (size_t which = 0; which < 3; ++which) {
    Pass run(problem);
    Rows& x = which == 0 ? run.q : which == 1 ? run.k : run.v;
    x.To().At(0, 5, 0)[3] = NAN;
    run.Go(problem, 1, SerialFor);
    EXPECT_TRUE(std::isnan(run.out.At(0, 5, 0)[3])) << which;
    EXPECT_TRUE(std::isnan(run.grad_q.At(0, 5, 0)[3])) << which;
    EXPECT_EQ(std::isnan(run.out.At(0, 6, 0)[2]), which == 1) << which;
  }
}

// Results do not depend on how the work is divided. One head on several slots uses the backward's
// two sweeps.
TEST_P(SoftmaxAttention, ResultsDoNotDependOnThreads) {
  for (bool causal : {false, true}) {
    for (const SoftmaxAttentionShape& shape : {SoftmaxAttentionShape{1, 500, 500, 1, 20, 24},
                                               SoftmaxAttentionShape{2, 230, 260, 3, 33, 8}}) {
      const Problem problem{shape, {0.3f, causal, 7, causal ? size_t{90} : 0}, {}, {.gap = 3}};
      Pass one(problem);
      one.Go(problem, 1, SerialFor);
      for (size_t slots : {2, 3, 4, 16}) {
        Pass other(problem);
        other.Go(problem, slots, Threads);
        EXPECT_EQ(other.log2_sum, one.log2_sum);
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(other.Written()[i]->Dense(), one.Written()[i]->Dense()) << slots << " " << i;
        }
      }
    }
  }
}

void ExpectPiecesEqualTheWhole(size_t window) {
  const size_t length = 450;
  const Problem whole{{1, length, length, 2, 20, 24}, {0.3f, true, 0, window}};
  Pass run(whole);
  run.Go(whole, 1, SerialFor);
  size_t begin = 0;
  for (size_t end : {1, 2, 100, 193, 450}) {
    const SoftmaxAttentionShape shape{1, end - begin, end, 2, 20, 24};
    Rows out(1, end - begin, 2, 24, {});
    Floats scratch(SoftmaxAttentionScratch(shape));
    Strided<const float> q = run.q.In();
    q.data = q.At(0, begin, 0);
    SoftmaxAttentionForward(shape, {0.3f, true, begin, window},
                            {.q = q, .k = run.k.In(), .v = run.v.In(), .out = out.To()},
                            {scratch.data(), 1}, SerialFor);
    for (size_t l = begin; l < end; ++l) {
      for (size_t h = 0; h < 2; ++h) {
        const float* want = run.out.At(0, l, h);
        EXPECT_TRUE(std::equal(want, want + 24, out.At(0, l - begin, h))) << l;
      }
    }
    begin = end;
  }
}

// A causal sequence processed in pieces, each over all keys so far, gives the same bits as in one
// call.
TEST_P(SoftmaxAttention, PiecesEqualTheWhole) {
  for (const size_t window : {0, 7, 200}) {
    SCOPED_TRACE(window);
    ExpectPiecesEqualTheWhole(window);
  }
}

// Compares the reference's gradients with finite differences of its forward.
TEST(SoftmaxAttentionRef, GradientsMatchFiniteDifferences) {
  const SoftmaxAttentionShape shape{1, 4, 6, 1, 3, 2};
  const auto doubles = [](const Floats& x) { return Doubles(x.begin(), x.end()); };
  for (bool causal : {false, true}) {
    const SoftmaxAttentionOptions options{0.7f, causal, 1};
    std::array<Doubles, 3> x = {doubles(Random(12, 1)), doubles(Random(18, 2)),
                                doubles(Random(12, 3))};
    const Doubles g = doubles(Random(8, 4));
    const auto make = [&] { return SoftmaxAttentionRef(shape, options, x[0], x[1], x[2], 5); };
    const auto loss = [&] {
      const SoftmaxAttentionRef ref = make();
      double sum = 0;
      for (size_t i = 0; i < 8; ++i) sum += ref.Out(i / 2)[i % 2] * g[i];
      return sum;
    };
    const SoftmaxAttentionRef ref = make();
    for (size_t which = 0; which < x.size(); ++which) {
      const size_t width = which < 2 ? 3 : 2;
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
        EXPECT_NEAR(row[i % width], (up - down) / (2 * h), 1e-8) << which << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
