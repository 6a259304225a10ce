// Gated recurrences: compares the fused form with the plain form, and the plain form with finite
// differences; tests states, pieces and masks.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "linnet/error.h"
#include "linnet/ops/plain.h"
#include "linnet/ops/scan.h"
#include "linnet/ops/test_util.h"

namespace linnet::ops {
namespace {

using kernels::ScanDecay;
using kernels::ScanOptions;
using kernels::ScanWrite;
using torch::Tensor;

struct Case {
  int64_t n, l, h, d, m, group = 1;
};

std::vector<ScanOptions> AllOptions() {
  std::vector<ScanOptions> all;
  for (const ScanDecay decay : {ScanDecay::kNone, ScanDecay::kHead, ScanDecay::kKey}) {
    for (const ScanWrite write :
         {ScanWrite::kAdd, ScanWrite::kDelta, ScanWrite::kTwoSided, ScanWrite::kRwkv7}) {
      all.push_back({.decay = decay, .write = write, .scale = 0.5f});
    }
  }
  return all;
}

// Random q, k, v, decay, erase, write, and the initial state.
Tensors Draw(const Case& c, const ScanOptions& options) {
  const auto rows = [&](int64_t heads, int64_t width) { return Random({c.n, c.l, heads, width}); };
  const int64_t erase = options.write == ScanWrite::kDelta ? 1 : c.d;
  const int64_t write = options.write == ScanWrite::kTwoSided ? c.m : c.d;
  const int64_t decay = options.decay == ScanDecay::kHead ? 1 : c.d;
  return {rows(c.h / c.group, c.d),
          rows(c.h / c.group, c.d),
          rows(c.h, c.m),
          rows(c.h, decay),
          rows(c.h, erase),
          rows(c.h, write),
          Random({c.n, c.h, c.d, c.m})};
}

// Turns random tensors into inputs whose states stay bounded: keys of norm at most 1, decays of at
// most 1, and erase and write factors in (0, 1) or, for kRwkv7, vectors of norm at most 1.
ScanInputs Bounded(const Tensors& t, const ScanOptions& options) {
  const Tensor norm = (t[1].square().sum(3, true) + 1e-3).sqrt(), k = t[1] / norm;
  ScanInputs in{t[0], k, t[2], -t[3].abs(), t[4].sigmoid(), t[5].sigmoid()};
  if (options.write == ScanWrite::kRwkv7) {
    const Tensor a = t[4] / (t[4].square().sum(3, true) + 1e-3).sqrt();
    in.erase = -a, in.write = a * in.write;
  }
  return in;
}

// Selects the tensors that the options use, and the initial state if `begun`.
Tensors Used(const Tensors& t, const ScanOptions& options, bool begun) {
  Tensors used = {t[0], t[1], t[2]};
  if (options.decay != ScanDecay::kNone) used.push_back(t[3]);
  if (options.write != ScanWrite::kAdd) used.push_back(t[4]);
  if (options.write > ScanWrite::kDelta) used.push_back(t[5]);
  if (begun) used.push_back(t[6]);
  return used;
}
// The inverse of Used(): the tensors of `all`, with the selected ones replaced by those of `used`,
// and the others converted to the type of `used`.
Tensors Filled(const Tensors& used, const Tensors& all, const ScanOptions& options, bool begun) {
  Tensors t;
  size_t next = 3;
  for (size_t i = 0; i < all.size(); ++i) t.push_back(all[i].to(used[0].dtype()));
  for (size_t i = 0; i < 3; ++i) t[i] = used[i];
  if (options.decay != ScanDecay::kNone) t[3] = used[next++];
  if (options.write != ScanWrite::kAdd) t[4] = used[next++];
  if (options.write > ScanWrite::kDelta) t[5] = used[next++];
  if (begun) t[6] = used[next];
  return t;
}

TEST(Scan, FusedEqualsPlainAndDifferences) {
  torch::manual_seed(3);
  for (const ScanOptions& options : AllOptions()) {
    for (const Case& c : {Case{2, 5, 2, 3, 2}, Case{2, 67, 4, 9, 17, 2}}) {
      const Tensors all = Draw(c, options);
      for (const bool begun : {false, true}) {
        for (const Tensor& lengths : {Tensor(), torch::tensor({c.l, int64_t{3}})}) {
          const auto run = [&](const Tensors& used) {
            const Tensors t = Filled(used, all, options, begun);
            Tensor state = begun ? t[6] : Tensor();
            const Tensor out = Scan(Bounded(t, options), options, lengths, state);
            return Tensors{out, state};
          };
          SCOPED_TRACE(static_cast<int>(options.decay) * 10 + static_cast<int>(options.write));
          Check(run, Used(all, options, begun), c.l < 10 && begun);
        }
      }
    }
  }
}

// Outputs, final states and gradients of a sequence in pieces equal those of the whole sequence.
TEST(Scan, PiecesEqualTheWhole) {
  torch::manual_seed(4);
  const Case c{2, 203, 2, 8, 12};
  for (const ScanOptions& options : AllOptions()) {
    const Tensors x = Draw(c, options);
    const Tensor lengths = torch::tensor({int64_t{90}, c.l});
    for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
      const Tensors whole_x = Leaves(x, dtype), pieces_x = Leaves(x, dtype);
      Tensor state = whole_x[6];
      const Tensor out = Scan(Bounded(whole_x, options), options, lengths, state);
      Tensor carried = pieces_x[6];
      Tensors outs;
      int64_t begin = 0;
      for (const int64_t end : {int64_t{1}, int64_t{38}, int64_t{171}, c.l}) {
        Tensors piece;
        for (size_t i = 0; i < 6; ++i) piece.push_back(pieces_x[i].narrow(1, begin, end - begin));
        outs.push_back(
            Scan(Bounded(piece, options), options, (lengths - begin).clamp_min(0), carried));
        begin = end;
      }
      const Tensors whole = {out, state}, pieces = {torch::cat(outs, 1), carried};
      const double tolerance = dtype == torch::kDouble ? 1e-12 : 1e-5;
      const Tensors weights = RandomLike(whole);
      const auto gradients = [&](const Tensors& results, const Tensors& leaves) {
        return torch::autograd::grad({Loss(results, weights)}, leaves, {}, {}, false,
                                     /*allow_unused=*/true);
      };
      const auto want = gradients(whole, whole_x), got = gradients(pieces, pieces_x);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LT(RelativeOff(pieces[i], whole[i].to(torch::kDouble)), tolerance) << i;
      }
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].defined(), want[i].defined()) << i;
        if (!want[i].defined()) continue;
        EXPECT_LT(RelativeOff(got[i], want[i].to(torch::kDouble)), 10 * tolerance) << i;
      }
    }
  }
}

// At masked positions, all inputs but q may hold anything and get no gradient.
TEST(Scan, MaskedPositionsChangeNothing) {
  torch::manual_seed(5);
  const Tensor lengths = torch::tensor({int64_t{0}, int64_t{3}});
  const Tensor masked = torch::arange(40) >= lengths.unsqueeze(1);
  for (const ScanOptions& options : AllOptions()) {
    for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
      const ScanInputs x = Bounded(Draw({2, 40, 2, 5, 3}, options), options);
      Tensors leaves = Leaves({x.q, x.k, x.v, x.decay, x.erase, x.write}, dtype);
      {
        const torch::NoGradGuard no_grad;
        for (size_t i = 1; i < leaves.size(); ++i) leaves[i].index_put_({masked}, NAN);
      }
      Tensor state;
      const Tensor out = Scan({leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], leaves[5]},
                              options, lengths, state);
      EXPECT_TRUE(torch::isfinite(out).all().item<bool>());
      EXPECT_EQ(out[0].abs().max().item<double>(), 0);
      const auto grads = torch::autograd::grad({out.square().sum() + state.sum()}, leaves, {}, {},
                                               false, /*allow_unused=*/true);
      for (size_t i = 0; i < grads.size(); ++i) {
        if (!grads[i].defined()) continue;
        EXPECT_TRUE(torch::isfinite(grads[i]).all().item<bool>()) << i;
        if (i > 0) {
          EXPECT_EQ(grads[i].index({masked}).abs().max().item<double>(), 0) << i;
        }
      }
    }
  }
}

TEST(Scan, DoesNotWriteToTheStateGiven) {
  const Tensor x = Random({1, 4, 2, 3}), given = Random({1, 2, 3, 3}), before = given.clone();
  Tensor state = given;
  Scan({.q = x, .k = x, .v = x}, {}, {}, state);
  EXPECT_TRUE(torch::equal(given, before));
  EXPECT_FALSE(torch::equal(state, before));
  const Tensor row = Random({1, 4, 3}), h = Random({1, 3}), h_before = h.clone();
  state = h;
  ChannelScan(row, -row.abs(), {}, state);
  EXPECT_TRUE(torch::equal(h, h_before));
  EXPECT_FALSE(torch::equal(state, h_before));
}

// The inputs are x, g and, if `begun`, a state. x is a strided slice of a tensor with twice the
// channels.
TEST(ChannelScan, FusedEqualsPlainAndDifferences) {
  torch::manual_seed(6);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 5, 3}, {3, 1, 1}, {2, 67, 37}, {1, 300, 16}}) {
    for (const bool begun : {false, true}) {
      for (const bool masked : {false, true}) {
        SCOPED_TRACE(StrCat(shape[1], " x ", shape[2], begun ? ", begun" : "", masked));
        Tensor lengths;
        if (masked) lengths = torch::arange(shape[0]) % shape[1];
        const auto run = [&](const Tensors& t) {
          Tensor state = begun ? t[2] : Tensor();
          const Tensor x = torch::cat({t[0], t[0]}, 2).narrow(2, 0, shape[2]);
          const Tensor out = ChannelScan(x, -t[1].abs(), lengths, state);
          EXPECT_TRUE(torch::equal(out.select(1, shape[1] - 1), state));
          if (!begun) {
            EXPECT_TRUE(torch::equal(ChannelScan(x, -t[1].abs(), lengths), out));
          }
          return Tensors{out, state};
        };
        Tensors x = {Random(shape), Random(shape)};
        if (begun) x.push_back(Random({shape[0], shape[2]}));
        Check(run, x, shape[1] < 10);
      }
    }
  }
}

// Outputs and gradients of a sequence in pieces equal those of the whole sequence.
TEST(ChannelScan, PiecesEqualTheWhole) {
  torch::manual_seed(7);
  const Tensor lengths = torch::tensor({int64_t{90}, int64_t{130}});
  for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
    const Tensors leaves =
        Leaves({Random({2, 130, 19}), -Random({2, 130, 19}).abs(), Random({2, 19})}, dtype);
    Tensor state = leaves[2], carried = leaves[2];
    const Tensor whole = ChannelScan(leaves[0], leaves[1], lengths, state);
    Tensors outs;
    int64_t begin = 0;
    for (const int64_t end : {1, 38, 100, 130}) {
      outs.push_back(ChannelScan(leaves[0].narrow(1, begin, end - begin),
                                 leaves[1].narrow(1, begin, end - begin),
                                 (lengths - begin).clamp_min(0), carried));
      begin = end;
    }
    const Tensor pieces = torch::cat(outs, 1), weights = torch::randn_like(pieces);
    const double tolerance = dtype == torch::kDouble ? 1e-12 : 1e-5;
    EXPECT_LT(RelativeOff(pieces, whole.to(torch::kDouble)), tolerance);
    EXPECT_LT(RelativeOff(carried, state.to(torch::kDouble)), tolerance);
    const auto want = torch::autograd::grad({(whole * weights).sum() + state.sum()}, leaves);
    const auto got = torch::autograd::grad({(pieces * weights).sum() + carried.sum()}, leaves);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LT(RelativeOff(got[i], want[i].to(torch::kDouble)), 10 * tolerance) << i;
    }
  }
}

// Masked positions may hold anything, and get no gradient.
TEST(ChannelScan, MaskedPositionsChangeNothing) {
  const Tensor lengths = torch::tensor({int64_t{0}, int64_t{3}});
  const Tensor masked = torch::arange(9) >= lengths.unsqueeze(1);
  for (const auto dtype : {torch::kFloat32, torch::kDouble}) {
    const Tensors leaves = Leaves({Random({2, 9, 5}), -Random({2, 9, 5}).abs()}, dtype);
    {
      const torch::NoGradGuard no_grad;
      for (const Tensor& x : leaves) Tensor(x).index_put_({masked}, NAN);
    }
    const Tensor out = ChannelScan(leaves[0], leaves[1], lengths);
    EXPECT_TRUE(torch::isfinite(out).all().item<bool>());
    EXPECT_EQ(out[0].abs().max().item<double>(), 0);
    for (const Tensor& grad : torch::autograd::grad({out.square().sum()}, leaves)) {
      EXPECT_TRUE(torch::isfinite(grad).all().item<bool>());
      EXPECT_EQ(grad.index({masked}).abs().max().item<double>(), 0);
    }
  }
}

TEST(ChannelScan, RefusesInvalidArguments) {
  const Tensor x = torch::zeros({2, 5, 3});
  EXPECT_THROW(ChannelScan(Tensor(), x), InputError);
  EXPECT_THROW(ChannelScan(x[0], x[0]), InputError);
  EXPECT_THROW(ChannelScan(torch::zeros({2, 0, 3}), torch::zeros({2, 0, 3})), InputError);
  EXPECT_THROW(ChannelScan(x, x.narrow(1, 0, 4)), InputError);
  EXPECT_THROW(ChannelScan(x, x.to(torch::kDouble)), InputError);
  EXPECT_THROW(ChannelScan(x, x, torch::zeros({3}, torch::kInt64)), InputError);
  Tensor state = torch::zeros({2, 4});
  EXPECT_THROW(ChannelScan(x, x, {}, state), InputError);
}

TEST(Scan, RefusesInvalidArguments) {
  const Tensor x = torch::zeros({2, 5, 4, 3}), two = torch::zeros({2, 5, 2, 3});
  const Tensor one = torch::zeros({2, 5, 4, 1}), none = torch::zeros({2, 0, 4, 3});
  const ScanOptions delta{.decay = ScanDecay::kHead, .write = ScanWrite::kDelta};
  EXPECT_NO_THROW(Scan({two, two, x, one, one, {}}, delta));
  EXPECT_THROW(Scan({x, x, two}, {}), InputError);
  EXPECT_THROW(Scan({x, two, x}, {}), InputError);
  EXPECT_THROW(Scan({none, none, none}, {}), InputError);
  EXPECT_THROW(Scan({x, x, x}, delta), InputError);
  EXPECT_THROW(Scan({x, x, x, x, one, {}}, delta), InputError);
  EXPECT_THROW(Scan({x, x, x, one, x, {}}, delta), InputError);
  EXPECT_THROW(Scan({x, x.to(torch::kDouble), x}, {}), InputError);
  EXPECT_THROW(Scan({x, x, x}, {.normalize = true}), InputError);
  EXPECT_THROW(Scan({x, x, x}, {}, torch::zeros({3}, torch::kInt64)), InputError);
  Tensor state = torch::zeros({2, 4, 3, 2});
  EXPECT_THROW(Scan({x, x, x}, {}, {}, state), InputError);
}

}  // namespace
}  // namespace linnet::ops
