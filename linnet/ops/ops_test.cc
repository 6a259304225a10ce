// Every fused operation against its plain form, and the plain forms against finite differences in
// double precision.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/ops/adam.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/ops/cross_entropy.h"
#include "linnet/ops/ctc.h"
#include "linnet/ops/layer_rows.h"
#include "linnet/ops/linear_attention.h"
#include "linnet/ops/lsh_attention.h"
#include "linnet/ops/mixture_of_logistics.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/softmax_attention.h"

namespace linnet::ops {
namespace {

using kernels::Activation;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

// The operation under test: a function of differentiable inputs.
using Operation = std::function<Tensors(const Tensors&)>;

bool HasBf16() {
  try {
    return PrecisionNamed("bf16") == Precision::kBf16;
  } catch (const Error&) {
    return false;
  }
}

Tensors Leaves(const Tensors& x, torch::Dtype dtype) {
  Tensors leaves;
  for (const Tensor& t : x) leaves.push_back(t.detach().to(dtype).clone().requires_grad_());
  return leaves;
}

Tensors RandomLike(const Tensors& x) {
  Tensors random;
  for (const Tensor& t : x) random.push_back(torch::randn(t.sizes(), torch::kDouble));
  return random;
}

Tensor Loss(const Tensors& outputs, const Tensors& weights) {
  Tensor loss = torch::zeros({}, outputs[0].options());
  for (size_t i = 0; i < outputs.size(); ++i) {
    loss = loss + (outputs[i] * weights[i].to(outputs[i].dtype())).sum();
  }
  return loss;
}

// The largest difference relative to the largest magnitude.
double RelativeOff(const Tensor& got, const Tensor& want) {
  const double size = want.abs().max().item<double>();
  return (got.to(torch::kDouble) - want).abs().max().item<double>() / (size > 0 ? size : 1);
}

// Outputs and gradients: the fused form in fp32 against the plain one in double.
void ExpectFusedEqualsPlain(const Operation& operation, const Tensors& x, double tolerance) {
  const Tensors fused = Leaves(x, torch::kFloat32), plain = Leaves(x, torch::kDouble);
  const Tensors got = operation(fused), want = operation(plain);
  ASSERT_EQ(got.size(), want.size());
  const Tensors weights = RandomLike(want);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), torch::kFloat32);
    EXPECT_LT(RelativeOff(got[i], want[i]), tolerance) << "output " << i;
  }
  const auto got_grads = torch::autograd::grad({Loss(got, weights)}, fused);
  const auto want_grads = torch::autograd::grad({Loss(want, weights)}, plain);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(got_grads[i].sizes(), fused[i].sizes());
    EXPECT_LT(RelativeOff(got_grads[i], want_grads[i]), tolerance) << "gradient " << i;
  }
  // The result is the same without gradients.
  torch::NoGradGuard no_grad;
  const Tensors again = operation(fused);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(again[i], got[i]));
}

// The plain form's gradients against central differences, all in double.
void ExpectGradientsMatchDifferences(const Operation& operation, const Tensors& x) {
  const Tensors leaves = Leaves(x, torch::kDouble);
  const Tensors out = operation(leaves);
  const Tensors weights = RandomLike(out);
  const auto grads = torch::autograd::grad({Loss(out, weights)}, leaves);
  torch::NoGradGuard no_grad;
  for (size_t n = 0; n < leaves.size(); ++n) {
    double* at = leaves[n].data_ptr<double>();
    for (int64_t i = 0; i < leaves[n].numel(); ++i) {
      const double value = at[i], h = 1e-6;
      at[i] = value + h;
      const double up = Loss(operation(leaves), weights).item<double>();
      at[i] = value - h;
      const double down = Loss(operation(leaves), weights).item<double>();
      at[i] = value;
      const double grad = grads[n].contiguous().data_ptr<double>()[i];
      EXPECT_NEAR(grad, (up - down) / (2 * h), 1e-6 * (1 + std::abs(grad))) << n << ", " << i;
    }
  }
}

// Both checks; finite differences only for small problems.
void Check(const Operation& operation, const Tensors& x, bool small) {
  ExpectFusedEqualsPlain(operation, x, 1e-5);
  if (small) ExpectGradientsMatchDifferences(operation, x);
}

Tensor Random(at::IntArrayRef shape) { return torch::randn(shape); }
// Weights that preserve the scale of their input.
Tensor Weight(int64_t out, int64_t in) {
  return torch::randn({out, in}) / std::sqrt(static_cast<double>(in));
}

struct Sizes {
  int64_t batch, length, dim, hidden;
};
// Small; ragged; several blocks of rows.
const Sizes kSizes[] = {{1, 3, 4, 6}, {2, 37, 33, 70}, {3, 700, 24, 40}};

TEST(Linears, FusedEqualsPlain) {
  torch::manual_seed(1);
  for (const Sizes& s : kSizes) {
    for (const bool normed : {false, true}) {
      const Operation operation = [&](const Tensors& t) {
        const Norm norm = normed ? Norm{t[7], t[8]} : Norm{};
        return Linears(t[0], {t[1], t[3], t[5]}, {t[2], t[4], t[6]}, Precision::kFp32, norm);
      };
      Tensors x = {Random({s.batch, s.length, s.dim})};
      for (const int64_t out : {s.hidden, int64_t{1}, s.dim}) {
        x.insert(x.end(), {Weight(out, s.dim), Random({out})});
      }
      if (normed) x.insert(x.end(), {Random({s.dim}), Random({s.dim})});
      Check(operation, x, s.dim < 10);
    }
  }
}

TEST(Project, FusedEqualsPlain) {
  torch::manual_seed(2);
  for (const Sizes& s : kSizes) {
    for (const bool normed : {false, true}) {
      const Operation operation = [&](const Tensors& t) {
        const Norm norm = normed ? Norm{t[4], t[5]} : Norm{};
        return Tensors{Project(t[0], t[1], t[2], t[3], norm, Precision::kFp32)};
      };
      Tensors x = {Random({s.batch, s.length, s.hidden}), Weight(s.dim, s.hidden), Random({s.dim}),
                   Random({s.batch, s.length, s.dim})};
      if (normed) x.insert(x.end(), {Random({s.dim}), Random({s.dim})});
      Check(operation, x, s.dim < 10);
    }
  }
}

Tensors FeedForwardInputs(const Sizes& s, int norms) {
  Tensors x = {Random({s.batch, s.length, s.dim}), Weight(s.hidden, s.dim), Random({s.hidden}),
               Weight(s.dim, s.hidden), Random({s.dim})};
  for (int i = 0; i < norms; ++i) x.insert(x.end(), {Random({s.dim}), Random({s.dim})});
  return x;
}

Operation FeedForwardOperation(bool before, bool after, Activation activation,
                               Precision precision) {
  return [=](const Tensors& t) {
    FeedForwardOptions options{.activation = activation, .precision = precision};
    size_t at = 5;
    if (before) options.norm_before = {t[at], t[at + 1]}, at += 2;
    if (after) options.norm_after = {t[at], t[at + 1]};
    return Tensors{FeedForward(t[0], t[1], t[2], t[3], t[4], options)};
  };
}

TEST(FeedForward, FusedEqualsPlain) {
  torch::manual_seed(3);
  for (const Sizes& s : kSizes) {
    for (const int norms : {0, 1, 2, 3}) {
      const bool before = norms & 1, after = norms & 2;
      for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
        Check(FeedForwardOperation(before, after, activation, Precision::kFp32),
              FeedForwardInputs(s, before + after), s.dim < 10);
      }
    }
  }
}

// Each thread sums its own gradients; the returned tensor must not contain the threads' memory.
TEST(FeedForward, ThreadsAgreeAndLeaveNothingBehind) {
  torch::manual_seed(13);
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const Sizes s{8, 1024, 64, 128};
  const Operation operation =
      FeedForwardOperation(false, true, Activation::kGelu, Precision::kFp32);
  ExpectFusedEqualsPlain(operation, FeedForwardInputs(s, 1), 1e-5);
  Tensors inputs = FeedForwardInputs(s, 1);
  int64_t parameters = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = inputs[i].detach().requires_grad_();
    if (i > 0) parameters += inputs[i].numel();
  }
  operation(inputs)[0].sum().backward();
  EXPECT_LE(inputs[1].grad().storage().nbytes(), static_cast<size_t>(parameters) * sizeof(float));
  at::set_num_threads(before);
}

// In bf16 both forms round the same numbers, except for gradients in the backward.
TEST(FeedForward, Bf16FusedIsNearPlain) {
  if (!HasBf16()) GTEST_SKIP() << "this processor has no products in bf16";
  torch::manual_seed(4);
  const Sizes s = kSizes[1];
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    ExpectFusedEqualsPlain(FeedForwardOperation(true, true, activation, Precision::kBf16),
                           FeedForwardInputs(s, 2), 0.02);
  }
}

// The plain form in fp32 tensors against the plain one in double, which rounds fewer gradients.
TEST(FeedForward, PlainBf16IsNearPlainInDouble) {
  torch::manual_seed(14);
  const PlainGuard plain;
  const Sizes s = kSizes[1];
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    ExpectFusedEqualsPlain(FeedForwardOperation(true, true, activation, Precision::kBf16),
                           FeedForwardInputs(s, 2), 0.03);
  }
}

// Three products of one x in plain operations, against sums of the rounded operands in double.
TEST(Linears, PlainBf16RoundsTheOperandsOnly) {
  torch::manual_seed(6);
  const PlainGuard plain;
  for (const int products : {1, 2, 3}) {
    Tensors x = {Random({2, 9, 24}).requires_grad_()}, grads, weights, biases;
    for (int i = 0; i < products; ++i) {
      weights.push_back(Weight(5 + i, 24).requires_grad_());
      biases.push_back(Random({5 + i}).requires_grad_());
      grads.push_back(Random({2, 9, 5 + i}));
    }
    const auto rounded = [](const Tensor& t) {
      return t.detach().to(torch::kBFloat16).to(torch::kDouble);
    };
    const Tensors y = Linears(x[0], weights, biases, Precision::kBf16);
    Tensors leaves = x;
    leaves.insert(leaves.end(), weights.begin(), weights.end());
    leaves.insert(leaves.end(), biases.begin(), biases.end());
    const auto got = torch::autograd::grad({y.begin(), y.end()}, leaves, grads);
    Tensor grad_x = torch::zeros({18, 24}, torch::kDouble);
    const Tensor rows = rounded(x[0]).flatten(0, 1);
    for (int i = 0; i < products; ++i) {
      const Tensor weight = rounded(weights[i]), grad = rounded(grads[i]).flatten(0, 1);
      const Tensor out = torch::matmul(rows, weight.t()) + biases[i].detach().to(torch::kDouble);
      EXPECT_LT(RelativeOff(y[i].flatten(0, 1), out), 1e-5);
      EXPECT_LT(RelativeOff(got[1 + i], torch::matmul(grad.t(), rows)), 1e-5);
      EXPECT_LT(
          RelativeOff(got[1 + products + i], grads[i].to(torch::kDouble).flatten(0, 1).sum(0)),
          1e-5);
      grad_x += torch::matmul(grad, weight);
    }
    EXPECT_LT(RelativeOff(got[0].flatten(0, 1), grad_x), 1e-5);
  }
}

// The products around an attention in bf16, in plain operations, against fp32.
TEST(Linears, PlainNarrowIsNearFp32) {
  torch::manual_seed(7);
  const PlainGuard plain;
  const Tensors x = {Random({2, 9, 24}), Weight(8, 24), Random({8}),  Weight(16, 24), Random({16}),
                     Weight(24, 24),     Random({24}),  Random({24}), Random({24})};
  for (const bool normed : {false, true}) {
    const auto run = [&](bool narrow) {
      const Tensors t = Leaves(x, torch::kFloat32);
      Tensors y = narrow ? NarrowLinears(t[0], {t[1], t[3]}, {t[2], t[4]})
                         : Linears(t[0], {t[1], t[3]}, {t[2], t[4]}, Precision::kFp32);
      EXPECT_EQ(y[1].scalar_type(), narrow ? torch::kBFloat16 : torch::kFloat32);
      const Norm norm = normed ? Norm{t[7], t[8]} : Norm{};
      const Tensor out = Project(torch::cat(y, 2), t[5], t[6], t[0], norm,
                                 narrow ? Precision::kBf16 : Precision::kFp32);
      EXPECT_EQ(out.scalar_type(), torch::kFloat32);
      Tensors all = {out.detach()};
      const Tensors leaves(t.begin(), t.begin() + (normed ? 9 : 7));
      const Tensor weight = torch::arange(out.numel(), torch::kFloat32).cos().view(out.sizes());
      for (const Tensor& grad : torch::autograd::grad({(out * weight).sum()}, leaves)) {
        all.push_back(grad);
      }
      return all;
    };
    const Tensors want = run(false), got = run(true);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), torch::kFloat32);
      EXPECT_LT(RelativeOff(got[i], want[i].to(torch::kDouble)), 0.03) << i << " " << normed;
    }
  }
}

// bf16 must be near fp32 but not equal; otherwise bf16 was not tested.
TEST(Linears, Bf16IsNearFp32) {
  EXPECT_THROW(PrecisionNamed("fp8"), Error);
  if (!HasBf16()) GTEST_SKIP() << "this processor has no products in bf16";
  torch::manual_seed(5);
  const Tensors x = {Random({3, 17, 24}), Weight(13, 24), Random({13})};
  const auto run = [&](Precision precision) {
    const Tensors leaves = Leaves(x, torch::kFloat32);
    const Tensor y = Linear(leaves[0], leaves[1], leaves[2], precision);
    Tensors all = {y.detach()};
    for (const Tensor& grad : torch::autograd::grad({y.square().sum()}, leaves)) {
      EXPECT_EQ(grad.scalar_type(), torch::kFloat32);
      all.push_back(grad);
    }
    return all;
  };
  const Tensors fp32 = run(Precision::kFp32), bf16 = run(Precision::kBf16);
  for (size_t i = 0; i < fp32.size(); ++i) {
    const double off = RelativeOff(bf16[i], fp32[i].to(torch::kDouble));
    EXPECT_LT(off, 0.02) << i;
    EXPECT_GT(off, 0) << i;
  }
}

TEST(CausalLinear, FusedEqualsPlain) {
  torch::manual_seed(6);
  struct Case {
    int64_t n, l, h, d, m;
  };
  for (const Case& c : {Case{1, 5, 2, 3, 2}, Case{2, 64, 1, 7, 5}, Case{2, 201, 3, 16, 33}}) {
    for (const bool padded : {false, true}) {
      const Operation operation = [&](const Tensors& t) {
        const Tensor lengths =
            padded ? torch::tensor({int64_t{3}, c.l}).slice(0, 0, c.n) : Tensor();
        return Tensors{CausalLinearAttention(t[0], t[1], t[2], lengths)};
      };
      Check(operation,
            {Random({c.n, c.l, c.h, c.d}), Random({c.n, c.l, c.h, c.d}),
             Random({c.n, c.l, c.h, c.m})},
            c.l < 10);
    }
  }
}

using kernels::CausalLinearOptions;
using kernels::FeatureMap;
constexpr CausalLinearOptions kMapped{FeatureMap::kIdentity, true, 1e-6f};

// Attention of t = q, k, v and optionally the initial state s0 (, z0) -> out, s (, z). Without a
// feature map, features and z0 are made positive: otherwise the normalizer may vanish.
Tensors WithState(const Tensors& t, const Tensor& lengths, const CausalLinearOptions& options) {
  const bool mapped = options.feature_map == FeatureMap::kIdentity;
  const auto features = [&](const Tensor& x) { return mapped ? x.abs() : x; };
  CausalLinearState state;
  if (t.size() > 3) state.s = t[3];
  if (t.size() > 4) state.z = t[4].abs() + 1;
  const Tensor out =
      CausalLinearAttention(features(t[0]), features(t[1]), t[2], lengths, options, state);
  Tensors results = {out, state.s};
  if (options.normalize) results.push_back(state.z);
  return results;
}

TEST(CausalLinear, StatesFusedEqualPlain) {
  torch::manual_seed(10);
  for (const int64_t length : {1, 5, 64, 150}) {
    const bool small = length < 10;
    const int64_t n = 2, h = 2, d = small ? 3 : 20, m = small ? 2 : 33;
    for (const FeatureMap map : {FeatureMap::kElu, FeatureMap::kIdentity}) {
      for (const bool normalize : {false, true}) {
        for (const bool begun : {false, true}) {
          const Tensor lengths = torch::tensor({length - 1, length});
          Tensors x = {Random({n, length, h, d}), Random({n, length, h, d}),
                       Random({n, length, h, m})};
          if (begun) x.push_back(Random({n, h, d, m}));
          if (begun && normalize) x.push_back(Random({n, h, d}));
          for (const Tensor& l : {Tensor(), lengths}) {
            if (length == 1 && normalize && !begun) {
              // out is v whatever q and k are, so their gradients are pure rounding error.
              const Tensor q = x[0], k = x[1];
              Check(
                  [&](const Tensors& t) {
                    const auto type = t[0].dtype();
                    return WithState({q.to(type), k.to(type), t[0]}, l, {map, normalize, 1e-6f});
                  },
                  {x[2]}, small);
              continue;
            }
            Check(
                [&](const Tensors& t) {
                  return WithState(t, l, {map, normalize, 1e-6f});
                },
                x, small);
          }
        }
      }
    }
  }
}

// A sequence in pieces equals the whole: outputs, final state, and gradients through all pieces.
TEST(CausalLinear, PiecesEqualTheWhole) {
  torch::manual_seed(11);
  const int64_t length = 203;
  const Tensors x = {Random({2, length, 3, 16}), Random({2, length, 3, 16}),
                     Random({2, length, 3, 20})};
  const Tensor lengths = torch::tensor({int64_t{90}, length});
  for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
    for (const bool padded : {false, true}) {
      const Tensors whole_x = Leaves(x, dtype), pieces_x = Leaves(x, dtype);
      const Tensors whole = WithState(whole_x, padded ? lengths : Tensor(), {});
      CausalLinearState state;
      Tensors outs;
      int64_t begin = 0;
      for (const int64_t end : {int64_t{1}, int64_t{38}, int64_t{102}, int64_t{171}, length}) {
        const auto piece = [&](const Tensor& t) { return t.narrow(1, begin, end - begin); };
        outs.push_back(CausalLinearAttention(piece(pieces_x[0]), piece(pieces_x[1]),
                                             piece(pieces_x[2]),
                                             padded ? lengths - begin : Tensor(), {}, state));
        begin = end;
      }
      const Tensors pieces = {torch::cat(outs, 1), state.s, state.z};
      const double tolerance = dtype == torch::kDouble ? 1e-12 : 1e-5;
      const Tensors weights = RandomLike(whole);
      const auto want = torch::autograd::grad({Loss(whole, weights)}, whole_x);
      const auto got = torch::autograd::grad({Loss(pieces, weights)}, pieces_x);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_LT(RelativeOff(pieces[i], whole[i].to(torch::kDouble)), tolerance) << "output " << i;
        EXPECT_LT(RelativeOff(got[i], want[i].to(torch::kDouble)), tolerance) << "gradient " << i;
      }
    }
  }
}

// The caller's state tensors do not change; only the struct refers to the new ones.
TEST(CausalLinear, DoesNotWriteToTheStateGiven) {
  const Tensor q = Random({1, 4, 2, 3}), s = Random({1, 2, 3, 3}), z = torch::ones({1, 2, 3});
  const Tensor s_before = s.clone();
  CausalLinearState state{s, z};
  CausalLinearAttention(q, q, q, {}, {}, state);
  EXPECT_TRUE(torch::equal(s, s_before));
  EXPECT_TRUE(torch::equal(z, torch::ones({1, 2, 3})));
  EXPECT_FALSE(torch::equal(state.s, s));
}

// Earlier positions keep the same bits whatever later ones hold, NaN and infinity included.
TEST(CausalLinear, TheFutureDoesNotReachThePast) {
  torch::manual_seed(15);
  const int64_t length = 3 * kPlainChunk - 10, last = length - 1, chunk = 2 * kPlainChunk;
  const Tensor q = Random({1, length, 2, 4}), k = Random({1, length, 2, 4});
  const Tensor v = Random({1, length, 2, 3});
  for (const bool plain : {false, true}) {
    for (const FeatureMap map : {FeatureMap::kElu, FeatureMap::kIdentity}) {
      for (const bool begun : {false, true}) {
        const auto run = [&](const Tensor& keys, const Tensor& values) {
          CausalLinearState state;
          if (begun) state = {torch::ones({1, 2, 4, 3}), torch::ones({1, 2, 4})};
          const CausalLinearOptions options{map, true, 1e-6f};
          if (!plain) return CausalLinearAttention(q, keys, values, {}, options, state);
          PlainGuard guard;
          return CausalLinearAttention(q, keys, values, {}, options, state);
        };
        const Tensor want = run(k, v);
        for (const float later : {1e4f, 1e30f, NAN, INFINITY}) {
          const auto with = [&](const Tensor& x) {
            const Tensor changed = x.clone();
            changed.select(1, last).fill_(later);
            return changed;
          };
          // In the last chunk, the plain form multiplies a later NaN or infinity by zero.
          const int64_t past = plain && !std::isfinite(later) ? chunk : last;
          const auto same = [&](const Tensor& got, int64_t until) {
            return torch::equal(got.slice(1, 0, until), want.slice(1, 0, until));
          };
          EXPECT_TRUE(same(run(with(k), v), last)) << plain << begun << " key " << later;
          EXPECT_TRUE(same(run(k, with(v)), past)) << plain << begun << " value " << later;
          EXPECT_TRUE(same(run(with(k), with(v)), past)) << plain << begun << " both " << later;
        }
      }
    }
  }
}

// Features made by the caller, whose size differs from the queries': F = D (D + 1) / 2 + D + 1.
TEST(CausalLinear, TakesFeaturesOfAnySize) {
  torch::manual_seed(12);
  for (const auto& [f, m] : {std::pair<int64_t, int64_t>{561, 32}, {64, 16}}) {
    ExpectFusedEqualsPlain([](const Tensors& t) { return WithState(t, {}, kMapped); },
                           {Random({1, 70, 2, f}), Random({1, 70, 2, f}), Random({1, 70, 2, m}),
                            Random({1, 2, f, m}), Random({1, 2, f})},
                           1e-5);
  }
}

// Packed attention of t = q, k, v (, s0, z0) -> out, s, z.
Tensors Packed(const Tensors& t, const Tensor& cu_seqlens) {
  CausalLinearState state;
  if (t.size() > 3) state = {t[3], t[4].abs() + 1};
  const Tensor out = CausalLinearAttentionPacked(t[0], t[1], t[2], cu_seqlens, {}, state);
  return {out, state.s, state.z};
}

// The same, each sequence alone.
Tensors Alone(const Tensors& t, const std::vector<int64_t>& offsets) {
  Tensors outs, s, z;
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    const auto row = static_cast<int64_t>(n);
    const int64_t length = offsets[n + 1] - offsets[n];
    CausalLinearState state = {
        torch::zeros({1, t[0].size(1), t[0].size(2), t[2].size(2)}, t[0].options()),
        torch::zeros({1, t[0].size(1), t[0].size(2)}, t[0].options())};
    if (t.size() > 3) state = {t[3].narrow(0, row, 1), t[4].narrow(0, row, 1).abs() + 1};
    if (length > 0) {
      const auto rows = [&](const Tensor& x) {
        return x.narrow(0, offsets[n], length).unsqueeze(0);
      };
      outs.push_back(
          CausalLinearAttention(rows(t[0]), rows(t[1]), rows(t[2]), {}, {}, state).squeeze(0));
    }
    s.push_back(state.s), z.push_back(state.z);
  }
  return {torch::cat(outs), torch::cat(s), torch::cat(z)};
}

TEST(CausalLinear, PackedEqualsEachAloneToTheBit) {
  torch::manual_seed(13);
  const std::vector<int64_t> offsets = {0, 0, 70, 71, 71, 103, 240, 240};
  const Tensor cu_seqlens = torch::tensor(offsets);
  const Tensors rows = {Random({240, 3, 20}), Random({240, 3, 20}), Random({240, 3, 17})};
  for (const bool begun : {false, true}) {
    Tensors x = rows;
    if (begun) x.insert(x.end(), {Random({7, 3, 20, 17}), Random({7, 3, 20})});
    ExpectFusedEqualsPlain([&](const Tensors& t) { return Packed(t, cu_seqlens); }, x, 1e-5);
    const Tensors packed_x = Leaves(x, torch::kFloat32), alone_x = Leaves(x, torch::kFloat32);
    const Tensors packed = Packed(packed_x, cu_seqlens), alone = Alone(alone_x, offsets);
    const Tensors weights = RandomLike(alone);
    const auto got = torch::autograd::grad({Loss(packed, weights)}, packed_x);
    const auto want = torch::autograd::grad({Loss(alone, weights)}, alone_x);
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(torch::equal(packed[i], alone[i])) << i;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
    // The result is the same without a state.
    if (!begun) {
      EXPECT_TRUE(
          torch::equal(CausalLinearAttentionPacked(x[0], x[1], x[2], cu_seqlens), packed[0]));
    }
  }
  const Tensor small = torch::tensor({int64_t{0}, int64_t{2}, int64_t{2}, int64_t{5}});
  ExpectGradientsMatchDifferences([&](const Tensors& t) { return Packed(t, small); },
                                  {Random({5, 2, 3}), Random({5, 2, 3}), Random({5, 2, 2}),
                                   Random({3, 2, 3, 2}), Random({3, 2, 3})});
  const Tensor none = torch::empty({0, 2, 3});
  EXPECT_EQ(CausalLinearAttentionPacked(none, none, none, torch::zeros({3}, torch::kInt64)).size(0),
            0);
}

// Where all keys are masked, out and gradients are zero, whatever they hold and whatever eps is. A
// sequence of another length in the batch does not change that.
TEST(CausalLinear, MaskedRowsMakeNoNan) {
  torch::manual_seed(14);
  const Tensor lengths = torch::tensor({int64_t{0}, int64_t{3}});
  const Tensor masked = torch::arange(70) >= lengths.unsqueeze(1);
  for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
    for (const float eps : {0.0f, 1e-6f}) {
      Tensors x = {Random({2, 70, 2, 5}), Random({2, 70, 2, 5}), Random({2, 70, 2, 3})};
      x[1].index_put_({masked}, NAN);
      x[2].index_put_({masked}, NAN);
      const Tensors leaves = Leaves(x, dtype);
      const Tensor out = CausalLinearAttention(leaves[0], leaves[1], leaves[2], lengths,
                                               {FeatureMap::kElu, true, eps});
      Tensors all = {out};
      for (const Tensor& g : torch::autograd::grad({out.square().sum() + out.sum()}, leaves)) {
        all.push_back(g);
      }
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(torch::isfinite(all[i]).all().item<bool>()) << i;
        EXPECT_EQ(all[i][0].abs().max().item<double>(), 0) << i;
        EXPECT_GT(all[i][1].abs().max().item<double>(), 0) << i;
      }
    }
  }
}

TEST(CausalLinear, RefusesWhatDoesNotFit) {
  const auto kind = [](const std::function<void()>& run) {
    try {
      run();
    } catch (const Error& error) {
      return error.kind() == Error::Kind::kInput ? std::string("input") : std::string("runtime");
    }
    return std::string("none");
  };
  for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
    const auto zeros = [&](at::IntArrayRef sizes) { return torch::zeros(sizes, dtype); };
    const Tensor x = zeros({2, 5, 3, 4}), rows = zeros({5, 3, 4});
    const Tensor none = zeros({2, 0, 3, 4}), thin = zeros({2, 5, 3, 0});
    EXPECT_EQ(kind([&] { CausalLinearAttention(none, none, none); }), "input");
    EXPECT_EQ(kind([&] { CausalLinearAttention(x, x, thin); }), "input");
    EXPECT_EQ(kind([&] { CausalLinearAttention(thin, thin, x); }), "input");
    EXPECT_EQ(kind([&] { CausalLinearAttention(x, zeros({2, 4, 3, 4}), x); }), "input");
    const Tensor half = x.to(torch::kHalf);
    EXPECT_EQ(kind([&] { CausalLinearAttention(half, x, x); }), "input");
    EXPECT_EQ(kind([&] { CausalLinearAttention(x, half, x); }), "input");
    EXPECT_EQ(kind([&] { CausalLinearAttention(x, x, half); }), "input");
    const Tensor s = zeros({2, 3, 4, 4}), z = zeros({2, 3, 4});
    for (const CausalLinearState& bad :
         {CausalLinearState{s, {}}, CausalLinearState{{}, z}, CausalLinearState{s, s},
          CausalLinearState{zeros({2, 3, 4, 5}), z}, CausalLinearState{s.to(torch::kHalf), z}}) {
      CausalLinearState state = bad;
      EXPECT_EQ(kind([&] { CausalLinearAttention(x, x, x, {}, {}, state); }), "input");
    }
    CausalLinearState unnormalized{s, {}};
    EXPECT_EQ(kind([&] {
                CausalLinearAttention(x, x, x, {}, {FeatureMap::kElu, false}, unnormalized);
              }),
              "none");
    const auto packed = [&](const Tensor& cu_seqlens) {
      return kind([&] { CausalLinearAttentionPacked(rows, rows, rows, cu_seqlens); });
    };
    const auto offsets = [](std::vector<int64_t> at) { return torch::tensor(at); };
    EXPECT_EQ(packed(offsets({0, 2, 5})), "none");
    EXPECT_EQ(packed(offsets({0, 3, 2, 5})), "input");
    EXPECT_EQ(packed(offsets({0, 2, 4})), "input");
    EXPECT_EQ(packed(offsets({0, 2, 6})), "input");
    EXPECT_EQ(packed(offsets({1, 5})), "input");
    EXPECT_EQ(packed(offsets({-1, 5})), "input");
    EXPECT_EQ(packed(torch::empty({0}, torch::kInt64)), "input");
    EXPECT_EQ(packed(offsets({0, 5}).to(torch::kInt32)), "input");
    EXPECT_EQ(packed(offsets({0, 5}).unsqueeze(0)), "input");
    EXPECT_EQ(packed(Tensor()), "input");
    EXPECT_EQ(kind([&] { CausalLinearAttentionPacked(x, x, x, offsets({0, 2})); }), "input");
    CausalLinearState state{s, z};
    EXPECT_EQ(kind([&] {
                CausalLinearAttentionPacked(rows, rows, rows, offsets({0, 2, 2, 5}), {}, state);
              }),
              "input");
  }
}

TEST(LinearAttention, FusedEqualsPlain) {
  torch::manual_seed(21);
  struct Case {
    int64_t n, l, s, h, d, m;
  };
  for (const Case& c : {Case{1, 5, 4, 2, 3, 2}, Case{2, 4, 7, 1, 2, 3}, Case{2, 70, 201, 2, 16, 33},
                        Case{2, 130, 65, 3, 33, 8}}) {
    for (const bool normalize : {false, true}) {
      for (const bool padded : {false, true}) {
        const Operation operation = [&](const Tensors& t) {
          const Tensor lengths =
              padded ? torch::tensor({int64_t{3}, c.s}).slice(0, 0, c.n) : Tensor();
          return Tensors{LinearAttention(t[0], t[1], t[2], lengths,
                                         {kernels::FeatureMap::kElu, normalize, 1e-6f})};
        };
        Check(operation,
              {Random({c.n, c.l, c.h, c.d}), Random({c.n, c.s, c.h, c.d}),
               Random({c.n, c.s, c.h, c.m})},
              c.l < 10);
      }
    }
  }
}

TEST(LinearAttention, TakesAnyStrides) {
  torch::manual_seed(22);
  const Operation operation = [](const Tensors& t) {
    // Strides: heads before positions, features first, a slice of a wider tensor.
    return Tensors{
        LinearAttention(t[0].transpose(1, 2), t[1].permute({1, 2, 3, 0}), t[2].slice(3, 1, 6))};
  };
  Check(operation, {Random({2, 3, 6, 4}), Random({4, 2, 5, 3}), Random({2, 5, 3, 7})}, true);
}

TEST(LinearAttention, RefusesWhatDoesNotFit) {
  const Tensor q = Random({2, 5, 3, 4}), k = Random({2, 6, 3, 4}), v = Random({2, 6, 3, 7});
  EXPECT_THROW(LinearAttention(q, k, v.narrow(1, 0, 5)), Error);
  EXPECT_THROW(LinearAttention(q, k.narrow(3, 0, 3), v), Error);
  EXPECT_THROW(LinearAttention(q[0], k[0], v[0]), Error);
  EXPECT_THROW(LinearAttention(q, k.narrow(1, 0, 0), v.narrow(1, 0, 0)), Error);
  EXPECT_THROW(LinearAttention(q, k.to(torch::kDouble), v), Error);
  EXPECT_THROW(LinearAttention(q, k, v, torch::tensor({3, 4}, torch::kInt32)), Error);
  EXPECT_THROW(LinearAttention(q, k, v, torch::tensor({int64_t{3}})), Error);
  EXPECT_NO_THROW(LinearAttention(q, k, v, torch::tensor({int64_t{3}, int64_t{4}})));
}

// The bf16 kernels read and write bf16 and add in fp32: they match fp32 up to bf16 rounding.
TEST(Attention, TakesBf16) {
  torch::manual_seed(23);
  const Tensors x = {Random({2, 300, 3, 16}), Random({2, 300, 3, 16}), Random({2, 300, 3, 8})};
  const Tensor weights = Random({2, 300, 3, 8});
  for (const bool causal : {false, true}) {
    const auto run = [&](torch::Dtype dtype) {
      const Tensors leaves = Leaves(x, dtype);
      const Tensor out = causal ? CausalLinearAttention(leaves[0], leaves[1], leaves[2])
                                : LinearAttention(leaves[0], leaves[1], leaves[2]);
      EXPECT_EQ(out.scalar_type(), dtype);
      Tensors all = torch::autograd::grad({(out * weights.to(dtype)).sum()}, leaves);
      all.push_back(out);
      return all;
    };
    const Tensors half = run(torch::kBFloat16), full = run(torch::kFloat32);
    for (size_t i = 0; i < half.size(); ++i) {
      EXPECT_LT(RelativeOff(half[i].to(torch::kFloat32), full[i]), 0.02) << causal << " " << i;
    }
  }
}

// A kernel's gradients have no history, so second derivatives throw.
TEST(Attention, FusedRefusesSecondDerivatives) {
  torch::manual_seed(24);
  const Tensors x = {Random({1, 5, 1, 4}), Random({1, 5, 1, 4}), Random({1, 5, 1, 3})};
  using Attention = Tensor (*)(const Tensors&);
  for (const Attention attention : {
           Attention([](const Tensors& t) { return CausalLinearAttention(t[0], t[1], t[2]); }),
           Attention([](const Tensors& t) { return LinearAttention(t[0], t[1], t[2]); }),
           Attention([](const Tensors& t) { return SoftmaxAttention(t[0], t[1], t[2]); }),
       }) {
    const auto second = [&] {
      const Tensors leaves = Leaves(x, torch::kFloat32);
      const Tensors first = torch::autograd::grad({attention(leaves).square().sum()}, {leaves[0]},
                                                  {}, c10::nullopt, /*create_graph=*/true);
      return torch::autograd::grad({first[0].square().sum()}, {leaves[1]})[0];
    };
    EXPECT_THROW(second(), Error);
    PlainGuard plain;
    EXPECT_GT(second().abs().max().item<double>(), 0);
  }
}

TEST(SoftmaxAttention, FusedEqualsPlain) {
  torch::manual_seed(15);
  struct Case {
    int64_t n, l, s, h, d, m;
  };
  for (const Case& c : {Case{1, 5, 5, 2, 3, 2}, Case{2, 4, 7, 1, 2, 3}, Case{2, 70, 201, 2, 16, 33},
                        Case{2, 230, 230, 3, 33, 8}}) {
    for (const bool causal : {false, true}) {
      for (const bool padded : {false, true}) {
        const Operation operation = [&](const Tensors& t) {
          SoftmaxAttentionOptions options{.causal = causal, .offset = c.s - c.l};
          if (padded) options.lengths = torch::tensor({int64_t{3}, c.s}).slice(0, 0, c.n);
          return Tensors{SoftmaxAttention(t[0], t[1], t[2], options)};
        };
        Check(operation,
              {Random({c.n, c.l, c.h, c.d}), Random({c.n, c.s, c.h, c.d}),
               Random({c.n, c.s, c.h, c.m})},
              c.l < 10);
      }
    }
  }
}

TEST(SoftmaxAttention, TakesAnyStridesAndScale) {
  torch::manual_seed(16);
  const Operation operation = [](const Tensors& t) {
    // Strides: heads before positions, features first, a slice of a wider tensor.
    return Tensors{SoftmaxAttention(t[0].transpose(1, 2), t[1].permute({1, 2, 3, 0}),
                                    t[2].slice(3, 1, 6), {.causal = true, .scale = 0.9})};
  };
  Check(operation, {Random({2, 3, 6, 4}), Random({4, 2, 6, 3}), Random({2, 6, 3, 7})}, true);
}

TEST(SoftmaxAttention, HidesWhatItIsTold) {
  torch::manual_seed(17);
  const Tensors x = {Random({2, 9, 3, 4}), Random({2, 12, 3, 4}), Random({2, 12, 3, 5})};
  const auto run = [&](const SoftmaxAttentionOptions& options) {
    return SoftmaxAttention(x[0], x[1], x[2], options);
  };
  const Tensor hidden = torch::ones({9, 12}, torch::kBool).triu(4);
  const Tensor lengths = torch::tensor({int64_t{0}, int64_t{7}});
  const Tensor beyond = (torch::arange(12) >= lengths.unsqueeze(1)).view({2, 1, 1, 12});
  const auto near = [](const Tensor& a, const Tensor& b) {
    return torch::allclose(a, b, 1e-5, 1e-6);
  };
  const Tensor fused = run({.causal = true, .offset = 3, .lengths = lengths});
  EXPECT_TRUE(near(fused, run({.hidden = hidden.logical_or(beyond)})));
  EXPECT_TRUE(near(fused, run({.lengths = lengths, .hidden = hidden})));
  EXPECT_TRUE(near(fused, run({.causal = true, .offset = 3, .hidden = beyond})));
  EXPECT_EQ(fused[0].abs().max().item<double>(), 0);
  PlainGuard plain;
  EXPECT_TRUE(near(fused, run({.causal = true, .offset = 3, .lengths = lengths})));
}

TEST(SoftmaxAttention, ThreadsDoNotChangeABit) {
  torch::manual_seed(18);
  const Tensors x = {Random({1, 400, 1, 20}), Random({1, 400, 1, 20}), Random({1, 400, 1, 24})};
  const auto run = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const Tensors leaves = Leaves(x, torch::kFloat32);
    const Tensor out = SoftmaxAttention(leaves[0], leaves[1], leaves[2], {.causal = true});
    Tensors all = torch::autograd::grad({out.square().sum()}, leaves);
    all.push_back(out);
    at::set_num_threads(before);
    return all;
  };
  const Tensors one = run(1), two = run(2);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], two[i])) << i;
}

TEST(SoftmaxAttention, MaskedRowsMakeNoNan) {
  torch::manual_seed(19);
  const Tensor lengths = torch::tensor({int64_t{0}, int64_t{3}});
  const Tensor masked = torch::arange(70) >= lengths.unsqueeze(1);
  for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
    Tensors x = {Random({2, 70, 2, 5}), Random({2, 70, 2, 5}), Random({2, 70, 2, 3})};
    x[1].index_put_({masked}, NAN);
    x[2].index_put_({masked}, NAN);
    const Tensors leaves = Leaves(x, dtype);
    const Tensor out = SoftmaxAttention(leaves[0], leaves[1], leaves[2], {.lengths = lengths});
    Tensors all = {out};
    for (const Tensor& g : torch::autograd::grad({out.square().sum() + out.sum()}, leaves)) {
      all.push_back(g);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(torch::isfinite(all[i]).all().item<bool>()) << i;
      EXPECT_EQ(all[i][0].abs().max().item<double>(), 0) << i;
      EXPECT_GT(all[i][1].abs().max().item<double>(), 0) << i;
    }
  }
}

TEST(SoftmaxAttention, RefusesWhatDoesNotFit) {
  const Tensor x = torch::zeros({2, 5, 3, 4});
  const auto refuses = [](const Tensor& q, const Tensor& k, const Tensor& v,
                          const SoftmaxAttentionOptions& options = {}) {
    try {
      SoftmaxAttention(q, k, v, options);
    } catch (const Error& error) {
      return error.kind() == Error::Kind::kInput;
    }
    return false;
  };
  EXPECT_FALSE(refuses(x, x, x));
  EXPECT_FALSE(refuses(x, torch::zeros({2, 0, 3, 4}), torch::zeros({2, 0, 3, 4})));
  EXPECT_TRUE(refuses(x, torch::zeros({2, 5, 3, 3}), x));
  EXPECT_TRUE(refuses(x, torch::zeros({2, 4, 3, 4}), x));
  EXPECT_TRUE(refuses(x, x, torch::zeros({2, 5, 3, 0})));
  EXPECT_TRUE(refuses(x[0], x[0], x[0]));
  EXPECT_TRUE(refuses(x, x.to(torch::kDouble), x));
  EXPECT_TRUE(refuses(x, x, x, {.causal = true, .offset = -1}));
  EXPECT_TRUE(refuses(x, x, x, {.lengths = torch::tensor({int64_t{3}})}));
  EXPECT_TRUE(refuses(x, x, x, {.lengths = torch::tensor({3, 4}, torch::kInt32)}));
}

TEST(LshAttention, FusedEqualsPlain) {
  torch::manual_seed(16);
  struct Case {
    int64_t n, l, h, d, m, rounds;
    LshOptions options;
  };
  for (const Case& c : {Case{1, 7, 2, 3, 2, 2, {.buckets = 2, .chunk = 3}},
                        Case{2, 100, 1, 8, 5, 1, {.buckets = 6, .chunk = 8}},
                        Case{2, 150, 2, 32, 33, 4, {.buckets = 8, .chunk = 32}},
                        Case{1, 64, 2, 16, 16, 4, {.buckets = 64, .chunk = 16}},
                        Case{3, 50, 1, 4, 4, 2, {.buckets = 1, .chunk = 7}}}) {
    const Tensor planes = Random({c.rounds, c.d, (c.options.buckets + 1) / 2});
    for (const bool causal : {false, true}) {
      for (const bool padded : {false, true}) {
        const Operation operation = [&](const Tensors& t) {
          LshOptions options = c.options;
          options.causal = causal;
          const Tensor lengths =
              padded ? torch::tensor({c.l / 2 + 1, int64_t{0}, c.l}).slice(0, 0, c.n) : Tensor();
          // Strided rows, as a joint projection of all heads produces them.
          const Tensor q = torch::cat({t[0], t[0]}, 3).narrow(3, c.d, c.d);
          const Tensor v = t[1].transpose(1, 2).contiguous().transpose(1, 2);
          return Tensors{LshAttention(q, v, lengths, planes.to(q.dtype()), options)};
        };
        Check(operation, {Random({c.n, c.l, c.h, c.d}), Random({c.n, c.l, c.h, c.m})}, c.l < 10);
      }
    }
  }
}

TEST(LshAttention, ThreadsDoNotChangeABit) {
  torch::manual_seed(17);
  const Tensor q = torch::randn({1, 500, 1, 16}), v = torch::randn({1, 500, 1, 16});
  const Tensor planes = torch::randn({2, 16, 4});
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    const Tensor leaf = q.clone().requires_grad_();
    const Tensor out = LshAttention(leaf, v, {}, planes, {.buckets = 8, .causal = true});
    return Tensors{out.detach(), torch::autograd::grad({out.square().sum()}, {leaf})[0]};
  };
  const int before = at::get_num_threads();
  const Tensors one = run(1), three = run(3);
  at::set_num_threads(before);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::equal(one[i], three[i])) << i;
}

TEST(LshAttention, RefusesWhatDoesNotFit) {
  const Tensor q = torch::randn({2, 9, 1, 4}), v = torch::randn({2, 9, 1, 3});
  const Tensor planes = torch::randn({1, 4, 2});
  const auto refuses = [&](const Tensor& q, const Tensor& v, const Tensor& lengths,
                           const Tensor& planes, const LshOptions& options,
                           const std::string& what) {
    try {
      LshAttention(q, v, lengths, planes, options);
      FAIL() << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  const LshOptions options{.buckets = 4, .chunk = 4};
  refuses(q, v.narrow(1, 0, 8), {}, planes, options, "[N, L, H, M]");
  refuses(q, v, {}, planes.narrow(1, 0, 3), options, "planes");
  refuses(q, v, {}, planes, {.buckets = 8, .chunk = 4}, "planes");
  refuses(q, v, {}, planes, {.buckets = 3, .chunk = 4}, "even");
  refuses(q, v, {}, planes, {.buckets = 4, .chunk = 0}, "chunks");
  refuses(q, v, torch::zeros({3}, torch::kInt64), planes, options, "lengths");
}

TEST(CrossEntropy, FusedEqualsPlain) {
  torch::manual_seed(6);
  for (const int64_t classes : {1, 2, 11, 257, 8003}) {
    const Tensor targets = torch::randint(classes, {33}, torch::kInt64);
    const Operation operation = [&](const Tensors& t) {
      return Tensors{CrossEntropyNats(t[0], targets)};
    };
    ExpectFusedEqualsPlain(operation, {Random({33, classes}) * 4}, 1e-5);
  }
  const Tensor targets = torch::tensor({int64_t{0}, int64_t{4}, int64_t{2}});
  ExpectGradientsMatchDifferences(
      [&](const Tensors& t) { return Tensors{CrossEntropyNats(t[0], targets)}; }, {Random({3, 5})});
}

TEST(CrossEntropy, LargeLogitsAndNone) {
  const Tensor logits = torch::tensor({1e30F, 1e30F, -1e30F, 80.0F, 90.0F, -INFINITY}).view({2, 3});
  const Tensor nats = CrossEntropyNats(logits, torch::tensor({int64_t{1}, int64_t{0}}));
  EXPECT_NEAR(nats[0].item<double>(), std::log(2.0), 1e-6);
  EXPECT_NEAR(nats[1].item<double>(), 10 + std::log1p(std::exp(-10.0)), 1e-5);
  const Tensor leaf = logits.clone().requires_grad_();
  CrossEntropyNats(leaf, torch::tensor({int64_t{1}, int64_t{0}})).sum().backward();
  const double e = std::exp(-10.0) / (1 + std::exp(-10.0));
  const Tensor want = torch::tensor({0.5, -0.5, 0.0, e - 1, 1 - e, 0.0}).view({2, 3});
  EXPECT_LT((leaf.grad() - want).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(CrossEntropyNats(torch::zeros({0, 3}), torch::zeros({0}, torch::kInt64)).numel(), 0);
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  const auto refuses = [](const Tensor& logits, const Tensor& targets, const std::string& what) {
    try {
      CrossEntropyNats(logits, targets);
      ADD_FAILURE() << "no error about " << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refuses(torch::zeros({2, 3}), torch::zeros({3}, torch::kInt64), "[R, C]");
  refuses(torch::zeros({2, 3}), torch::zeros({2}), "int64");
  refuses(torch::zeros({2, 3}), torch::tensor({int64_t{0}, int64_t{3}}), "target 3");
  refuses(torch::zeros({2, 3}), torch::tensor({int64_t{-1}, int64_t{0}}), "target -1");
}

TEST(Ctc, FusedEqualsPlain) {
  torch::manual_seed(8);
  for (const int64_t classes : {3, 34}) {
    const Tensor targets = torch::randint(1, classes, {4, 40}, torch::kInt64);
    const auto of = [](std::vector<int64_t> values) { return torch::tensor(values); };
    // The third target cannot fit, the last is empty.
    const Tensor frames = of({130, 99, 20, 50}), tokens = of({40, 17, 40, 0});
    const Operation operation = [&](const Tensors& t) {
      const Tensor nats = CtcNats(torch::log_softmax(t[0], 2), targets, frames, tokens);
      return Tensors{torch::where(nats.isinf(), torch::zeros_like(nats), nats)};
    };
    ExpectFusedEqualsPlain(operation, {Random({4, 131, classes}) * 2}, 1e-4);
    // Infinite for lack of frames (the third) and because of a probability of 0 (the first).
    Tensor p = torch::log_softmax(Random({4, 131, classes}), 2);
    p[0].select(1, targets[0][5].item<int64_t>()).fill_(-INFINITY);
    for (const torch::Dtype type : {torch::kFloat32, torch::kFloat64}) {
      const Tensor nats = CtcNats(p.to(type), targets, frames, tokens);
      EXPECT_TRUE(torch::equal(nats.isinf(), torch::tensor({true, false, true, false}))) << nats;
    }
  }
}

TEST(MixtureOfLogistics, FusedEqualsPlain) {
  torch::manual_seed(7);
  const Tensor bytes = torch::randint(256, {3, 70}, torch::kInt64);
  const Operation operation = [&](const Tensors& t) {
    return Tensors{MixtureOfLogisticsNats(t[0], bytes)};
  };
  ExpectFusedEqualsPlain(operation, {Random({3, 70, 30})}, 1e-5);
  const Tensor two = torch::tensor({int64_t{0}, int64_t{100}, int64_t{255}});
  ExpectGradientsMatchDifferences(
      [&](const Tensors& t) { return Tensors{MixtureOfLogisticsNats(t[0], two)}; },
      {Random({3, 6})});
}

// Several steps over tensors of several sizes, one of them without a gradient.
TEST(Adam, FusedEqualsPlain) {
  torch::manual_seed(9);
  const std::vector<int64_t> sizes = {3, 70000, 131072, 5};
  Tensors parameters[2], first[2], second[2];
  for (const int64_t size : sizes) {
    const Tensor p = Random({size});
    for (const int plain : {0, 1}) {
      parameters[plain].push_back(p.clone().requires_grad_());
      first[plain].push_back(torch::zeros({size}));
      second[plain].push_back(torch::zeros({size}));
    }
  }
  torch::NoGradGuard no_grad;
  for (int step = 0; step < 4; ++step) {
    Tensors gradients;
    for (const int64_t size : sizes) gradients.push_back(Random({size}));
    std::vector<double> norms[2];
    for (const int plain : {0, 1}) {
      for (size_t i = 0; i + 1 < sizes.size(); ++i) {
        parameters[plain][i].mutable_grad() = gradients[i].clone();
      }
      const auto run = [&] {
        norms[plain] = GradientNorms(parameters[plain]);
        AdamUpdate(parameters[plain], first[plain], second[plain], {1, 0.5, 0.25, 1},
                   {.decay = 0.99f, .step = 0.1f, .root_scale = 1.1f, .adaptive = step > 0});
      };
      if (plain != 0) {
        PlainGuard guard;
        run();
      } else {
        run();
      }
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_NEAR(norms[0][i], norms[1][i], 1e-4 * (1 + norms[1][i]));
      EXPECT_LT((parameters[0][i] - parameters[1][i]).abs().max().item<double>(), 1e-5);
      EXPECT_FALSE(parameters[0][i].grad().defined());
    }
  }
}

// Clipping and several steps, one tensor without a gradient at some of them.
TEST(Adam, FlatEqualsSeparate) {
  torch::manual_seed(10);
  const std::vector<std::vector<int64_t>> shapes = {{3}, {70, 11}, {5, 2, 4}, {}};
  Tensors parameters[2], first, second;
  for (const std::vector<int64_t>& shape : shapes) {
    const Tensor p = Random(shape);
    for (Tensors& list : parameters) list.push_back(p.clone().requires_grad_());
    first.push_back(torch::zeros(shape));
    second.push_back(torch::zeros(shape));
  }
  FlatAdam flat(parameters[1]);
  torch::NoGradGuard no_grad;
  for (int step = 0; step < 6; ++step) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (i == 1 && step % 2 == 1) continue;
      const Tensor gradient = Random(shapes[i]);
      for (Tensors& list : parameters) list[i].mutable_grad() = gradient.clone();
    }
    constexpr double kClip = 2;
    const kernels::AdamStep now = {
        .decay = 0.99f, .step = 0.1f, .root_scale = step < 3 ? 1.1f : 1, .adaptive = step > 0};
    std::vector<double> scales = GradientNorms(parameters[0]);
    for (double& norm : scales) norm = norm > kClip ? kClip / (norm + 1e-6) : 1;
    AdamUpdate(parameters[0], first, second, scales, now);
    flat.Update(now, kClip);
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_FALSE(parameters[1][i].grad().defined());
      EXPECT_LT(RelativeOff(parameters[1][i], parameters[0][i].to(torch::kDouble)), 1e-5) << i;
      EXPECT_LT(RelativeOff(flat.first_moments()[i], first[i].to(torch::kDouble)), 1e-5) << i;
      EXPECT_LT(RelativeOff(flat.second_moments()[i], second[i].to(torch::kDouble)), 1e-5) << i;
    }
  }
}

TEST(Adam, FlatKeepsEverythingIfAGradientIsNotFinite) {
  torch::manual_seed(11);
  const Tensors parameters = {Random({40}).requires_grad_(), Random({7}).requires_grad_()};
  FlatAdam flat(parameters);
  torch::NoGradGuard no_grad;
  const auto update = [&](double last) {
    for (const Tensor& p : parameters) p.mutable_grad() = torch::ones_like(p);
    parameters[1].mutable_grad()[6] = last;
    flat.Update({.decay = 0.99f, .step = 0.1f}, /*clip=*/1);
  };
  update(1);
  EXPECT_TRUE(flat.Finite());
  Tensors before;
  const auto all = [&] {
    Tensors tensors = parameters;
    for (const Tensors& list : {flat.first_moments(), flat.second_moments()}) {
      tensors.insert(tensors.end(), list.begin(), list.end());
    }
    return tensors;
  };
  for (const Tensor& x : all()) before.push_back(x.clone());
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    update(bad);
    EXPECT_FALSE(flat.Finite());
    const Tensors after = all();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(after[i], before[i])) << i;
  }
  update(1);
  EXPECT_FALSE(flat.Finite());
}

TEST(PlainGuard, MakesOperationsPlain) {
  torch::manual_seed(8);
  const Tensor x = Random({4, 8}), weight = Weight(3, 8), bias = Random({3});
  EXPECT_TRUE(Fused(x));
  {
    PlainGuard plain;
    EXPECT_FALSE(Fused(x));
    EXPECT_TRUE(
        torch::equal(Linear(x, weight, bias, Precision::kFp32), at::linear(x, weight, bias)));
  }
  EXPECT_TRUE(Fused(x));
}

TEST(LayerRows, RefuseWhatDoesNotFit) {
  const Tensor x = Random({4, 8}), weight = Weight(3, 8), bias = Random({3});
  EXPECT_THROW(Linear(Random({4, 7}), weight, bias, Precision::kFp32), Error);
  EXPECT_THROW(Linear(x, weight, Random({4}), Precision::kFp32), Error);
  EXPECT_THROW(Project(x, weight, bias, Random({4, 4}), {}, Precision::kFp32), Error);
  EXPECT_THROW(FeedForward(x, weight, bias, Weight(8, 4), Random({8}), {}), Error);
}

}  // namespace
}  // namespace linnet::ops
