#include "linnet/kernels/linear_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <thread>
#include <vector>

#include "linnet/kernels/linear_attention_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

// All outputs of a forward and a backward, in tensors [N, L, H, width].
template <typename T>
struct Results {
  std::vector<T> out, grad_q, grad_k, grad_v;
};

// Runs forward and backward on x = {q, k, v, grad_out}, each misaligned by `offset` numbers. The
// backward reads out_before, if given, in place of the forward's out.
template <typename T>
Results<T> Compute(const LinearAttentionShape& shape, const LinearAttentionOptions& options,
                   const std::array<std::vector<T>, 4>& x, size_t offset, const int64_t* lengths,
                   size_t slots, ParallelFor parallel_for,
                   const std::vector<T>* out_before = nullptr) {
  const size_t d = shape.dim, m = shape.value_dim;
  const size_t rows_q = shape.batch * shape.queries * shape.heads;
  const size_t rows_k = shape.batch * shape.keys * shape.heads;
  const size_t canary = 16;
  Results<T> r;
  const auto sized = [&](size_t n) { return std::vector<T>(n + canary, T{}); };
  r.out = sized(rows_q * m), r.grad_q = sized(rows_q * d);
  r.grad_k = sized(rows_k * d), r.grad_v = sized(rows_k * m);
  Floats kept(1 + LinearAttentionKept(shape)), scratch(LinearAttentionScratch(shape) * slots);
  const auto in = [&](const std::vector<T>& y, size_t length, size_t width) {
    return RowMajor<const T>(y.data() + offset, length, shape.heads, width);
  };
  const auto to = [&](std::vector<T>& y, size_t length, size_t width) {
    return RowMajor<T>(y.data(), length, shape.heads, width);
  };
  LinearAttentionForward(shape, options,
                         LinearAttentionForwardArgsOf<T>{.q = in(x[0], shape.queries, d),
                                                         .k = in(x[1], shape.keys, d),
                                                         .v = in(x[2], shape.keys, m),
                                                         .out = to(r.out, shape.queries, m),
                                                         .lengths = lengths,
                                                         .kept = kept.data() + 1},
                         {scratch.data(), slots}, parallel_for);
  const std::vector<T>& out = out_before ? *out_before : r.out;
  LinearAttentionBackward(shape, options,
                          LinearAttentionBackwardArgsOf<T>{
                              .q = in(x[0], shape.queries, d),
                              .k = in(x[1], shape.keys, d),
                              .v = in(x[2], shape.keys, m),
                              .out = RowMajor<const T>(out.data(), shape.queries, shape.heads, m),
                              .grad_out = in(x[3], shape.queries, m),
                              .kept = kept.data() + 1,
                              .lengths = lengths,
                              .grad_q = to(r.grad_q, shape.queries, d),
                              .grad_k = to(r.grad_k, shape.keys, d),
                              .grad_v = to(r.grad_v, shape.keys, m)},
                          {scratch.data(), slots}, parallel_for);
  return r;
}

// One head of a dense [N, L, H, width] tensor, in double.
Doubles Head(const float* x, const LinearAttentionShape& shape, size_t length, size_t width,
             size_t n, size_t h) {
  Doubles head;
  for (size_t l = 0; l < length; ++l) {
    const float* row = x + ((n * length + l) * shape.heads + h) * width;
    head.insert(head.end(), row, row + width);
  }
  return head;
}

// The largest difference, relative to the largest wanted value.
double Difference(const Doubles& got, const Doubles& want) {
  double largest = 0, scale = 0.1;
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(got[i] - want[i]);
    if (!(off <= largest)) largest = off;  // a NaN fails
    scale = std::max(scale, std::abs(want[i]));
  }
  return largest / scale;
}

LINNET_SUITE_ON_EACH_ISA(LinearAttention);

TEST_P(LinearAttention, MatchesTheReferenceOverRaggedShapes) {
  for (const LinearAttentionShape& shape :
       std::vector<LinearAttentionShape>{{1, 1, 1, 1, 1, 1},
                                         {2, 3, 70, 2, 5, 7},
                                         {2, 65, 4, 3, 16, 20},
                                         {1, 3, 1, 2, 16, 20},
                                         {1, 130, 64, 1, 32, 32},
                                         {1, 1100, 700, 1, 5, 3},
                                         {1, 33, 90, 2, 33, 17},
                                         {2, 7, 9, 1, 64, 48},
                                         {1, 5, 40, 1, 256, 1}}) {
    for (const bool normalize : {false, true}) {
      for (const FeatureMap map : {FeatureMap::kElu, FeatureMap::kIdentity}) {
        for (const bool masked : {false, true}) {
          const size_t offset = shape.queries % 4, d = shape.dim, m = shape.value_dim;
          const LinearAttentionOptions options{map, normalize, 1e-6f};
          const size_t q_size = shape.batch * shape.queries * shape.heads;
          const size_t k_size = shape.batch * shape.keys * shape.heads;
          std::array<Floats, 4> x = {Random(offset + q_size * d, 1), Random(offset + k_size * d, 2),
                                     Random(offset + k_size * m, 3),
                                     Random(offset + q_size * m, 4)};
          // Features of mixed sign could make a denominator vanish.
          if (map == FeatureMap::kIdentity) {
            for (size_t i : {0, 1}) {
              for (float& value : x[i]) value = std::abs(value);
            }
          }
          std::vector<int64_t> lengths;
          for (size_t n = 0; n < shape.batch; ++n) {
            lengths.push_back(static_cast<int64_t>(shape.keys - n % shape.keys));
          }
          if (masked) lengths.back() = static_cast<int64_t>(shape.keys / 2);
          const Results<float> got = Compute<float>(
              shape, options, x, offset, masked ? lengths.data() : nullptr, 1, SerialFor);
          SCOPED_TRACE(testing::Message()
                       << shape.queries << " x " << shape.keys << " D " << d << " M " << m
                       << (normalize ? " normalized" : "") << (masked ? " masked" : ""));
          for (size_t n = 0; n < shape.batch; ++n) {
            for (size_t h = 0; h < shape.heads; ++h) {
              const auto head = [&](const Floats& y, size_t length, size_t width, size_t at) {
                return Head(y.data() + at, shape, length, width, n, h);
              };
              const size_t valid = masked ? static_cast<size_t>(lengths[n]) : shape.keys;
              const LinearAttentionRef ref(
                  options, shape.queries, shape.keys, d, m, head(x[0], shape.queries, d, offset),
                  head(x[1], shape.keys, d, offset), head(x[2], shape.keys, m, offset), valid);
              const auto grad = ref.GradientsOf(head(x[3], shape.queries, m, offset));
              EXPECT_LT(Difference(head(got.out, shape.queries, m, 0), ref.out), 1e-5);
              EXPECT_LT(Difference(head(got.grad_q, shape.queries, d, 0), grad.q), 1e-5);
              EXPECT_LT(Difference(head(got.grad_k, shape.keys, d, 0), grad.k), 1e-5);
              EXPECT_LT(Difference(head(got.grad_v, shape.keys, m, 0), grad.v), 1e-5);
            }
          }
          for (const Floats* y : {&got.out, &got.grad_q, &got.grad_k, &got.grad_v}) {
            EXPECT_TRUE(std::all_of(y->end() - 16, y->end(), [](float c) { return c == 0.0f; }));
          }
        }
      }
    }
  }
}

// Masked keys do not contribute even if they hold NaN. If all keys are masked, out and the
// gradients are zero, even if eps = 0.
TEST_P(LinearAttention, MaskedKeysMakeNoNan) {
  const LinearAttentionShape shape{2, 5, 70, 1, 5, 3};
  const std::array<Floats, 4> x = {Random(50, 1), Floats(700, NAN), Floats(420, NAN),
                                   Random(30, 4)};
  const std::vector<int64_t> lengths = {0, -1};
  for (const float eps : {0.0f, 1e-6f}) {
    const Results<float> got =
        Compute<float>(shape, {FeatureMap::kElu, true, eps}, x, 0, lengths.data(), 1, SerialFor);
    for (const Floats* y : {&got.out, &got.grad_q, &got.grad_k, &got.grad_v}) {
      EXPECT_EQ(*y, Floats(y->size(), 0.0f)) << eps;
    }
  }
}

TEST_P(LinearAttention, ResultsDoNotDependOnThreads) {
  const auto threads = [](size_t count, RangeBody body) {
    std::vector<std::thread> running;
    for (size_t i = 0; i < count; ++i) running.emplace_back([=] { body(i, i + 1); });
    for (std::thread& thread : running) thread.join();
  };
  for (const LinearAttentionShape& shape :
       {LinearAttentionShape{2, 70, 90, 3, 20, 24}, LinearAttentionShape{1, 1000, 800, 2, 5, 7}}) {
    const size_t heads = shape.batch * shape.heads;
    const std::array<Floats, 4> x = {Random(shape.queries * heads * shape.dim, 1),
                                     Random(shape.keys * heads * shape.dim, 2),
                                     Random(shape.keys * heads * shape.value_dim, 3),
                                     Random(shape.queries * heads * shape.value_dim, 4)};
    const Results<float> one = Compute<float>(shape, {}, x, 0, nullptr, 1, SerialFor);
    for (size_t slots : {2, 3, 4, 8}) {
      const Results<float> some = Compute<float>(shape, {}, x, 0, nullptr, slots, threads);
      EXPECT_EQ(some.out, one.out) << slots;
      EXPECT_EQ(some.grad_q, one.grad_q) << slots;
      EXPECT_EQ(some.grad_k, one.grad_k) << slots;
      EXPECT_EQ(some.grad_v, one.grad_v) << slots;
    }
  }
}

// The bf16 kernel computes in fp32: its results equal those of the fp32 kernel for the same inputs,
// rounded once to bf16.
TEST_P(LinearAttention, Bf16IsFp32RoundedAtTheEnds) {
  const LinearAttentionShape shape{2, 70, 33, 2, 20, 7};
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
  const std::array<std::vector<BFloat16>, 4> x = {
      narrow(Random(70 * 4 * 20, 1)), narrow(Random(33 * 4 * 20, 2)), narrow(Random(33 * 4 * 7, 3)),
      narrow(Random(70 * 4 * 7, 4))};
  const Results<BFloat16> half = Compute<BFloat16>(shape, {}, x, 0, nullptr, 1, SerialFor);
  const Floats out = widen(half.out);  // both backwards read the same out
  const Results<float> full =
      Compute<float>(shape, {}, {widen(x[0]), widen(x[1]), widen(x[2]), widen(x[3])}, 0, nullptr, 1,
                     SerialFor, &out);
  EXPECT_EQ(out, widen(narrow(full.out)));
  EXPECT_EQ(widen(half.grad_q), widen(narrow(full.grad_q)));
  EXPECT_EQ(widen(half.grad_k), widen(narrow(full.grad_k)));
  EXPECT_EQ(widen(half.grad_v), widen(narrow(full.grad_v)));
}

// Verifies the reference's own gradients.
TEST(LinearAttentionRef, GradientsMatchFiniteDifferences) {
  const size_t l = 4, s = 5, d = 3, m = 2, valid = 4;
  const auto doubles = [](const Floats& x) { return Doubles(x.begin(), x.end()); };
  for (const bool normalize : {false, true}) {
    const LinearAttentionOptions options{FeatureMap::kElu, normalize, 1e-6f};
    std::array<Doubles, 3> x = {doubles(Random(l * d, 1)), doubles(Random(s * d, 2)),
                                doubles(Random(s * m, 3))};
    const Doubles g = doubles(Random(l * m, 4));
    const auto loss = [&] {
      const LinearAttentionRef ref(options, l, s, d, m, x[0], x[1], x[2], valid);
      double sum = 0;
      for (size_t i = 0; i < g.size(); ++i) sum += g[i] * ref.out[i];
      return sum;
    };
    const auto grad =
        LinearAttentionRef(options, l, s, d, m, x[0], x[1], x[2], valid).GradientsOf(g);
    const std::array<const Doubles*, 3> want = {&grad.q, &grad.k, &grad.v};
    for (size_t which = 0; which < 3; ++which) {
      for (size_t i = 0; i < x[which].size(); ++i) {
        const double before = x[which][i], step = 1e-6;
        x[which][i] = before + step;
        const double above = loss();
        x[which][i] = before - step;
        const double below = loss();
        x[which][i] = before;
        EXPECT_NEAR((*want[which])[i], (above - below) / (2 * step), 1e-7) << which << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace linnet::kernels
