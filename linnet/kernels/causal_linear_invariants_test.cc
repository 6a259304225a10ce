// Tests invariants of causal linear attention: results do not depend, bit for bit, on packing, on
// masked rows or on threads, and NaNs propagate.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <vector>

#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(CausalLinearInvariants);

// NaNs propagate, so that a broken model is noticed.
TEST_P(CausalLinearInvariants, NanPropagates) {
  const CausalLinearShape shape{1, 3, 1, 20, 20};
  for (int which : {0, 1, 2}) {
    std::array<Floats, 3> x = {Random(60, 1), Random(60, 2), Random(60, 3)};
    x[static_cast<size_t>(which)][20] = NAN;  // in the second token
    Floats out(60), scratch(CausalLinearScratch(shape));
    const auto in = [](const Floats& x) { return RowMajor<const float>(x.data(), 3, 1, 20); };
    CausalLinearForward(
        shape, {},
        {.q = in(x[0]), .k = in(x[1]), .v = in(x[2]), .out = RowMajor(out.data(), 3, 1, 20)},
        {scratch.data(), 1}, SerialFor);
    for (size_t i : {0, 1, 2}) {
      const bool none = i == 1 || (i == 2 && which > 0);
      EXPECT_EQ(std::isnan(out[i * 20]), none) << which << " " << i;
    }
  }
}

// All outputs of a forward and a backward.
struct Results {
  Floats out, s, z, grad_q, grad_k, grad_v, grad_s0, grad_z0;
  friend bool operator==(const Results&, const Results&) = default;
};

// Packed sequences give the same bits as each sequence alone, for any number of slots. An empty
// sequence returns its initial state.
TEST_P(CausalLinearInvariants, PackedEqualsSeparate) {
  const size_t heads = 3, d = 20, m = 24, count = 6;
  const std::vector<int64_t> offsets = {0, 0, 70, 71, 71, 103, 140}, lengths = {4, 33, 1, 0, 0, 99};
  const auto tokens = static_cast<size_t>(offsets.back());
  const Floats q = Random(tokens * heads * d, 1), k = Random(tokens * heads * d, 2);
  const Floats v = Random(tokens * heads * m, 3), grad_out = Random(tokens * heads * m, 4);
  const Floats s0 = Random(count * heads * d * m, 5), grad_s = Random(count * heads * d * m, 7);
  const Floats grad_z = Random(count * heads * d, 8);
  Floats z0 = Random(count * heads * d, 6);
  for (float& value : z0) value = std::abs(value) + 1;
  // Runs `batch` sequences, starting with sequence `first`. If not `packed`, batch must be 1.
  const auto run = [&](size_t first, size_t batch, bool packed, size_t slots,
                       ParallelFor parallel_for) {
    const auto begin = static_cast<size_t>(offsets[first]);
    const size_t length = static_cast<size_t>(offsets[first + batch]) - begin;
    const CausalLinearShape shape{batch, length, heads, d, m};
    const auto in = [&](const Floats& x, size_t width) {
      return RowMajor<const float>(x.data() + begin * heads * width, length, heads, width);
    };
    const auto part = [&](const Floats& x, size_t width) {
      const auto at = x.begin() + static_cast<ptrdiff_t>(first * heads * width);
      return Floats(at, at + static_cast<ptrdiff_t>(batch * heads * width));
    };
    const Floats s = part(s0, d * m), z = part(z0, d), gs = part(grad_s, d * m),
                 gz = part(grad_z, d);
    Results r;
    r.s = s, r.z = z;
    r.grad_s0.resize(s.size()), r.grad_z0.resize(z.size());
    r.out.resize(length * heads * m), r.grad_v = r.out;
    r.grad_q.resize(length * heads * d), r.grad_k = r.grad_q;
    Floats kept(CausalLinearKept(shape, packed)), scratch(CausalLinearScratch(shape) * slots);
    const auto rows = [&](Floats& x, size_t width) {
      return RowMajor(x.data(), length, heads, width);
    };
    CausalLinearForward(shape, {},
                        {.q = in(q, d),
                         .k = in(k, d),
                         .v = in(v, m),
                         .out = rows(r.out, m),
                         .lengths = lengths.data() + first,
                         .offsets = packed ? offsets.data() + first : nullptr,
                         .kept = kept.data(),
                         .s = r.s.data(),
                         .z = r.z.data()},
                        {scratch.data(), slots}, parallel_for);
    CausalLinearBackward(shape, {},
                         {.q = in(q, d),
                          .k = in(k, d),
                          .v = in(v, m),
                          .out = RowMajor<const float>(r.out.data(), length, heads, m),
                          .grad_out = in(grad_out, m),
                          .kept = kept.data(),
                          .lengths = lengths.data() + first,
                          .offsets = packed ? offsets.data() + first : nullptr,
                          .grad_q = rows(r.grad_q, d),
                          .grad_k = rows(r.grad_k, d),
                          .grad_v = rows(r.grad_v, m),
                          .s = s.data(),
                          .z = z.data(),
                          .grad_s = gs.data(),
                          .grad_z = gz.data(),
                          .grad_s0 = r.grad_s0.data(),
                          .grad_z0 = r.grad_z0.data()},
                         {scratch.data(), slots}, parallel_for);
    return r;
  };
  const auto append = [](Floats& to, const Floats& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  Results alone;
  for (size_t n = 0; n < count; ++n) {
    const Results r = run(n, 1, false, 1, SerialFor);
    append(alone.out, r.out), append(alone.s, r.s), append(alone.z, r.z);
    append(alone.grad_q, r.grad_q), append(alone.grad_k, r.grad_k);
    append(alone.grad_v, r.grad_v);
    append(alone.grad_s0, r.grad_s0), append(alone.grad_z0, r.grad_z0);
  }
  EXPECT_TRUE(std::equal(s0.begin(), s0.begin() + heads * d * m, alone.s.begin()));
  for (size_t slots : {1, 2, 3, 8, 50}) {
    EXPECT_TRUE(run(0, count, true, slots, SerialFor) == alone) << slots;
  }
}

// Masked rows do not contribute even if they hold NaN. If all keys are masked, out and the
// gradients are zero, even if eps = 0.
TEST_P(CausalLinearInvariants, MaskedRowsMakeNoNan) {
  const CausalLinearShape shape{2, 40, 1, 5, 3};
  const Floats ones(2 * 40 * 5, 1.0f), nans(2 * 40 * 5, NAN);
  const std::vector<int64_t> lengths = {0, -1};
  Floats out(2 * 40 * 3, 77.0f), kept(CausalLinearKept(shape)), scratch(CausalLinearScratch(shape));
  Floats grad_q(2 * 40 * 5, 77.0f), grad_k = grad_q, grad_v = out;
  const auto in = [](const Floats& x, size_t width) {
    return RowMajor<const float>(x.data(), 40, 1, width);
  };
  for (float eps : {0.0f, 1e-6f}) {
    const CausalLinearOptions options{FeatureMap::kElu, true, eps};
    CausalLinearForward(shape, options,
                        {.q = in(ones, 5),
                         .k = in(nans, 5),
                         .v = in(nans, 3),
                         .out = RowMajor(out.data(), 40, 1, 3),
                         .lengths = lengths.data(),
                         .kept = kept.data()},
                        {scratch.data(), 1}, SerialFor);
    CausalLinearBackward(shape, options,
                         {.q = in(ones, 5),
                          .k = in(nans, 5),
                          .v = in(nans, 3),
                          .out = in(out, 3),
                          .grad_out = in(ones, 3),
                          .kept = kept.data(),
                          .lengths = lengths.data(),
                          .grad_q = RowMajor(grad_q.data(), 40, 1, 5),
                          .grad_k = RowMajor(grad_k.data(), 40, 1, 5),
                          .grad_v = RowMajor(grad_v.data(), 40, 1, 3)},
                         {scratch.data(), 1}, SerialFor);
    for (const Floats* x : {&out, &grad_q, &grad_k, &grad_v}) {
      EXPECT_EQ(*x, Floats(x->size(), 0.0f)) << eps;
    }
  }
}

// Results do not depend on the number of slots and threads. The work is divided by heads for the
// first shape, and by parts of the sequence for the second, which has few heads.
TEST_P(CausalLinearInvariants, ResultsDoNotDependOnThreads) {
  const auto threads = [](size_t count, RangeBody body) {
    std::vector<std::thread> running;
    for (size_t i = 0; i < count; ++i) running.emplace_back([=] { body(i, i + 1); });
    for (std::thread& thread : running) thread.join();
  };
  for (const CausalLinearShape& shape :
       {CausalLinearShape{2, 70, 3, 20, 24}, CausalLinearShape{1, 1000, 2, 5, 7}}) {
    const size_t tokens = shape.batch * shape.length * shape.heads, d = shape.dim,
                 m = shape.value_dim, heads = shape.batch * shape.heads;
    const Floats q = Random(tokens * d, 1), k = Random(tokens * d, 2), v = Random(tokens * m, 3);
    const Floats g = Random(tokens * m, 4);
    const auto run = [&](size_t slots, ParallelFor parallel_for) {
      Floats out(tokens * m), grad_q(tokens * d), grad_k(tokens * d), grad_v(tokens * m);
      Floats s(heads * d * m), z(heads * d);
      Floats kept(CausalLinearKept(shape)), scratch(CausalLinearScratch(shape) * slots);
      const auto in = [&](const Floats& x, size_t width) {
        return RowMajor<const float>(x.data(), shape.length, shape.heads, width);
      };
      const auto to = [&](Floats& x, size_t width) {
        return RowMajor(x.data(), shape.length, shape.heads, width);
      };
      CausalLinearForward(shape, {},
                          {.q = in(q, d),
                           .k = in(k, d),
                           .v = in(v, m),
                           .out = to(out, m),
                           .kept = kept.data(),
                           .s = s.data(),
                           .z = z.data()},
                          {scratch.data(), slots}, parallel_for);
      CausalLinearBackward(shape, {},
                           {.q = in(q, d),
                            .k = in(k, d),
                            .v = in(v, m),
                            .out = in(out, m),
                            .grad_out = in(g, m),
                            .kept = kept.data(),
                            .grad_q = to(grad_q, d),
                            .grad_k = to(grad_k, d),
                            .grad_v = to(grad_v, m)},
                           {scratch.data(), slots}, parallel_for);
      return std::vector<Floats>{out, s, z, grad_q, grad_k, grad_v};
    };
    const std::vector<Floats> one = run(1, SerialFor);
    for (size_t slots : {2, 3, 4, 8}) EXPECT_EQ(run(slots, threads), one) << slots;
  }
}

}  // namespace
}  // namespace linnet::kernels
