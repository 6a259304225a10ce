// Causal linear attention: compares the fused form with the plain form, and tests states, pieces,
// packed sequences and masks.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/test_util.h"

namespace linnet::ops {
namespace {

using kernels::CausalLinearOptions;
using kernels::FeatureMap;
using torch::Tensor;

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

// Options for q and k to which the caller has already applied a feature map.
constexpr CausalLinearOptions kMapped{FeatureMap::kIdentity, true, 1e-6f};

// Attention over t = {q, k, v[, s0[, z0]]}, where s0 and z0 are the initial state. Returns {out, s}
// or, if options.normalize, {out, s, z}. Makes z0 and, with the identity map, q and k positive, so
// that no denominator is near 0.
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
              // With one position, out is v whatever q and k are, and the gradients of q and k are
              // only rounding error. Therefore only v is differentiated.
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

// A sequence in pieces gives the same results as the whole sequence: outputs, final state, and
// gradients through all pieces.
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

// The caller's state tensors do not change: the struct refers to new tensors afterwards.
TEST(CausalLinear, DoesNotWriteToTheStateGiven) {
  const Tensor q = Random({1, 4, 2, 3}), s = Random({1, 2, 3, 3}), z = torch::ones({1, 2, 3});
  const Tensor s_before = s.clone();
  CausalLinearState state{s, z};
  CausalLinearAttention(q, q, q, {}, {}, state);
  EXPECT_TRUE(torch::equal(s, s_before));
  EXPECT_TRUE(torch::equal(z, torch::ones({1, 2, 3})));
  EXPECT_FALSE(torch::equal(state.s, s));
}

// Outputs at earlier positions do not change by a bit, whatever later keys and values hold, NaN and
// infinity included.
TEST(CausalLinear, IsCausalBitForBit) {
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
          // In the plain form, a NaN or infinity in v reaches all positions of its chunk, because 0
          // times it is NaN. Then only the outputs before that chunk must be equal.
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

// Passes features that the caller has computed. 561 is D (D + 1) / 2 + D + 1, the number of
// monomials up to degree 2, for D = 32.
TEST(CausalLinear, TakesFeaturesOfAnySize) {
  torch::manual_seed(12);
  for (const auto& [f, m] : {std::pair<int64_t, int64_t>{561, 32}, {64, 16}}) {
    ExpectFusedEqualsPlain([](const Tensors& t) { return WithState(t, {}, kMapped); },
                           {Random({1, 70, 2, f}), Random({1, 70, 2, f}), Random({1, 70, 2, m}),
                            Random({1, 2, f, m}), Random({1, 2, f})},
                           1e-5);
  }
}

// Packed attention over t = {q, k, v[, s0, z0]}. Returns {out, s, z}.
Tensors Packed(const Tensors& t, const Tensor& cu_seqlens) {
  CausalLinearState state;
  if (t.size() > 3) state = {t[3], t[4].abs() + 1};
  const Tensor out = CausalLinearAttentionPacked(t[0], t[1], t[2], cu_seqlens, {}, state);
  return {out, state.s, state.z};
}

// The results of Packed(), computed from each sequence alone.
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

TEST(CausalLinear, PackedEqualsSeparateBitForBit) {
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

// A sequence whose keys are all masked has outputs and gradients of 0, whatever its keys hold, for
// any eps, and also if another sequence of the batch has keys.
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

TEST(CausalLinear, RefusesInvalidArguments) {
  const auto kind = [](const std::function<void()>& run) {
    try {
      run();
    } catch (const InputError&) {
      return std::string("input");
    } catch (const RuntimeError&) {
      return std::string("runtime");
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

}  // namespace
}  // namespace linnet::ops
