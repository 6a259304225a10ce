// A sequence gives the same results in pieces, in steps, packed with others and on several threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "linnet/kernels/scan_test_util.h"

namespace linnet::kernels {
namespace {

LINNET_SUITE_ON_EACH_ISA(ScanInvariants);

// Rows [begin, end) of all sequences of a problem.
ScanProblem Slice(const ScanProblem& x, size_t begin, size_t end) {
  ScanProblem y = x;
  y.shape.length = end - begin;
  const auto cut = [&](Floats& values) {
    const size_t row = values.size() / (x.shape.batch * x.shape.length);
    Floats part;
    for (size_t n = 0; n < x.shape.batch; ++n) {
      const auto at = values.begin() + static_cast<ptrdiff_t>(n * x.shape.length * row);
      part.insert(part.end(), at + static_cast<ptrdiff_t>(begin * row),
                  at + static_cast<ptrdiff_t>(end * row));
    }
    values = part;
  };
  for (Floats* values :
       {&y.in.q, &y.in.k, &y.in.v, &y.in.decay, &y.in.erase, &y.in.write, &y.grad_out}) {
    cut(*values);
  }
  return y;
}

// At every split, the second piece continues from the final state of the first. Its blocks begin at
// other positions than those of the whole sequence, so the last bits differ.
TEST_P(ScanInvariants, PiecesEqualWhole) {
  ForScanPolicies([](const ScanOptions& options) {
    const ScanShape shape{1, 70, 1, 12, 20};
    const ScanProblem x = MakeScan(shape, options, ScanStrength::kStrong);
    const ScanResults whole = RunScan(x, 1, SerialFor, /*backward=*/false);
    for (size_t split = 0; split <= shape.length; ++split) {
      SCOPED_TRACE(split);
      const ScanProblem before = Slice(x, 0, split);
      ScanProblem after = Slice(x, split, shape.length);
      const ScanResults first = RunScan(before, 1, SerialFor, /*backward=*/false);
      after.in.s0 = first.s, after.in.z0 = first.z;
      const ScanResults second = RunScan(after, 1, SerialFor, /*backward=*/false);
      Floats out = first.out;
      out.insert(out.end(), second.out.begin(), second.out.end());
      EXPECT_LT(ScanDifference(out, ToDoubles(whole.out)), 2e-6);
      EXPECT_LT(ScanDifference(second.s, ToDoubles(whole.s)), 2e-6);
      EXPECT_LT(ScanDifference(second.z, ToDoubles(whole.z)), 2e-6);
    }
  });
}

// Steps two sequences, whose states lie in memory in reverse order, with a gap between them.
TEST_P(ScanInvariants, StepsEqualWhole) {
  ForScanPolicies([](const ScanOptions& options) {
    for (const auto& [dim, value_dim] : {std::pair<size_t, size_t>{5, 3}, {33, 100}}) {
      const ScanShape shape{2, 40, 4, dim, value_dim, /*group=*/2};
      const ScanProblem x = MakeScan(shape, options, ScanStrength::kStrong);
      const ScanResults whole = RunScan(x, 1, SerialFor, /*backward=*/false);
      const size_t size = shape.heads * dim * value_dim, z_size = shape.heads * dim;
      const size_t stride = size + 3, z_stride = z_size + 1;
      Floats s(2 * stride), z(2 * z_stride), scratch(ScanStepScratch(shape));
      const size_t order[] = {1, 0};
      for (size_t n : {0, 1}) {
        std::copy_n(&x.in.s0[n * size], size, &s[order[n] * stride]);
        std::copy_n(&x.in.z0[n * z_size], z_size, &z[order[n] * z_stride]);
      }
      Floats out(whole.out.size());
      const ScanWidths width(options, dim, value_dim);
      for (size_t t = 0; t < shape.length; ++t) {
        const auto in = [&](const Floats& values, size_t row, size_t heads) {
          return RowMajor(values.data() + t * heads * row, shape.length, heads, row);
        };
        ScanStep(shape, options,
                 {.in = {.q = in(x.in.q, dim, 2),
                         .k = in(x.in.k, dim, 2),
                         .v = in(x.in.v, value_dim, 4),
                         .decay = in(x.in.decay, width.decay, 4),
                         .erase = in(x.in.erase, width.erase, 4),
                         .write = in(x.in.write, width.write, 4)},
                  .out = RowMajor(out.data() + t * 4 * value_dim, shape.length, 4, value_dim),
                  .s = s.data(),
                  .z = z.data(),
                  .s_stride = static_cast<ptrdiff_t>(stride),
                  .z_stride = static_cast<ptrdiff_t>(z_stride),
                  .sequences = order,
                  .scratch = scratch.data()});
      }
      EXPECT_LT(ScanDifference(out, ToDoubles(whole.out)), 4e-6);
      for (size_t n : {0, 1}) {
        const auto part = [](const Floats& values, size_t first, size_t count) {
          const auto at = values.begin() + static_cast<ptrdiff_t>(first);
          return Doubles(at, at + static_cast<ptrdiff_t>(count));
        };
        EXPECT_LT(ScanDifference(part(s, order[n] * stride, size), part(whole.s, n * size, size)),
                  4e-6);
        if (!options.normalize) continue;
        EXPECT_LT(
            ScanDifference(part(z, order[n] * z_stride, z_size), part(whole.z, n * z_size, z_size)),
            4e-6);
      }
    }
  });
}

std::vector<Floats> All(const ScanResults& r) {
  return {r.out,        r.s,          r.z,          r.grad.q,  r.grad.k, r.grad.v,
          r.grad.decay, r.grad.erase, r.grad.write, r.grad.s0, r.grad.z0};
}

void Threads(size_t count, RangeBody body) {
  std::vector<std::thread> running;
  for (size_t i = 0; i < count; ++i) running.emplace_back([=] { body(i, i + 1); });
  for (std::thread& thread : running) thread.join();
}

// Packed sequences, some of them empty, give the same bits as each sequence alone, on any number of
// threads.
TEST_P(ScanInvariants, PackedSequencesEqualEachAlone) {
  ForScanPolicies([](const ScanOptions& options) {
    const size_t heads = 3, d = 20, m = 24, count = 6;
    const std::vector<int64_t> offsets = {0, 0, 70, 71, 71, 103, 380},
                               lengths = {4, 33, 1, 0, 0, 270};
    const ScanShape shape{count, 380, heads, d, m};
    ScanProblem packed = MakeScan(shape, options, ScanStrength::kStrong, /*tokens=*/380);
    packed.offsets = offsets, packed.lengths = lengths;
    std::vector<Floats> alone(All(ScanResults()).size());
    for (size_t n = 0; n < count; ++n) {
      ScanProblem all = packed;
      all.offsets.clear();
      all.shape.batch = 1;
      ScanProblem one =
          Slice(all, static_cast<size_t>(offsets[n]), static_cast<size_t>(offsets[n + 1]));
      one.lengths = {lengths[n]};
      const auto part = [&](Floats& values, size_t size) {
        const auto at = values.begin() + static_cast<ptrdiff_t>(n * size);
        values = Floats(at, at + static_cast<ptrdiff_t>(size));
      };
      part(one.in.s0, heads * d * m), part(one.in.z0, heads * d);
      part(one.grad_s, heads * d * m), part(one.grad_z, heads * d);
      const std::vector<Floats> results = All(RunScan(one, 1, SerialFor));
      for (size_t i = 0; i < alone.size(); ++i) {
        alone[i].insert(alone[i].end(), results[i].begin(), results[i].end());
      }
    }
    for (size_t slots : {1, 2, 3, 8, 50}) {
      EXPECT_EQ(All(RunScan(packed, slots, Threads)), alone) << slots;
    }
  });
}

// Returns x with zeros from position `length` on: the gradients of masked positions are zero.
Doubles Masked(Doubles x, int64_t length) {
  for (size_t t = static_cast<size_t>(length); t < x.size(); ++t) x[t] = 0;
  return x;
}

// Compares the elementwise scan with its reference: packed, masked, from a state, on several
// threads.
TEST_P(ScanInvariants, ChannelsMatchReference) {
  const std::vector<int64_t> offsets = {0, 40, 40, 47}, lengths = {33, 2, 7};
  for (size_t channels : {1, 16, 37}) {
    const size_t count = 3, tokens = 47;
    const Floats x = Random(tokens * channels, 1), grad_out = Random(tokens * channels, 2);
    const Floats h0 = Random(count * channels, 3), grad_h = Random(count * channels, 4);
    Floats g = Random(tokens * channels, 5, /*deviation=*/10);
    for (float& value : g) value = std::min(value, 0.0f);
    Floats out(tokens * channels), grad_x = out, grad_g = out, h = h0, grad_h0(h0.size());
    const ChannelScanShape shape{count, tokens, channels};
    const auto in = [&](const Floats& values) {
      return RowMajor<const float>(values.data(), tokens, 1, channels);
    };
    const auto to = [&](Floats& values) { return RowMajor(values.data(), tokens, 1, channels); };
    ChannelScanForward(shape,
                       {.x = in(x),
                        .g = in(g),
                        .out = to(out),
                        .lengths = lengths.data(),
                        .offsets = offsets.data(),
                        .h = h.data()},
                       Threads);
    ChannelScanBackward(shape,
                        {.g = in(g),
                         .out = in(out),
                         .grad_out = in(grad_out),
                         .lengths = lengths.data(),
                         .offsets = offsets.data(),
                         .h0 = h0.data(),
                         .grad_h = grad_h.data(),
                         .grad_x = to(grad_x),
                         .grad_g = to(grad_g),
                         .grad_h0 = grad_h0.data()},
                        Threads);
    for (size_t n = 0; n < count; ++n) {
      for (size_t c = 0; c < channels; ++c) {
        const auto column = [&](const Floats& values, bool masked) {
          Doubles y;
          for (int64_t t = offsets[n]; t < offsets[n + 1]; ++t) {
            y.push_back(values[static_cast<size_t>(t) * channels + c]);
            // The reference sees masked positions as g = 0 and x = 0.
            if (masked && t - offsets[n] >= lengths[n]) y.back() = 0;
          }
          return y;
        };
        const size_t at = n * channels + c;
        const ChannelScanRef ref(column(x, true), column(g, true), h0[at], column(grad_out, false),
                                 grad_h[at]);
        EXPECT_LT(ScanDifference(column(out, false), ref.out), 1e-6);
        EXPECT_LT(ScanDifference(column(grad_x, false), Masked(ref.grad_x, lengths[n])), 1e-6);
        EXPECT_LT(ScanDifference(column(grad_g, false), Masked(ref.grad_g, lengths[n])), 1e-6);
        EXPECT_NEAR(h[at], ref.h, 1e-5);
        EXPECT_NEAR(grad_h0[at], ref.grad_h0, 1e-5);
      }
    }
  }
}

// A NaN reaches the outputs of its own head, and no other outputs.
TEST_P(ScanInvariants, NanStaysNan) {
  ForScanPolicies([](const ScanOptions& options) {
    const ScanProblem good = MakeScan({1, 40, 2, 20, 20}, options, ScanStrength::kMild);
    ScanValues<float> ScanProblem::*const in = &ScanProblem::in;
    for (Floats ScanValues<float>::*which :
         {&ScanValues<float>::q, &ScanValues<float>::k, &ScanValues<float>::v,
          &ScanValues<float>::decay, &ScanValues<float>::erase, &ScanValues<float>::write}) {
      ScanProblem x = good;
      Floats& values = (x.*in).*which;
      if (values.empty()) continue;
      values[values.size() / 40 * 20] = NAN;  // head 0 of position 20
      const Floats out = RunScan(x, 1, SerialFor, /*backward=*/false).out;
      const auto row = [&](size_t t, size_t h) {
        return std::any_of(&out[(t * 2 + h) * 20], &out[(t * 2 + h) * 20] + 20,
                           [](float y) { return std::isnan(y); });
      };
      EXPECT_TRUE(row(20, 0));
      EXPECT_EQ(row(39, 0), which != &ScanValues<float>::q);
      EXPECT_FALSE(row(20, 1));
      EXPECT_FALSE(row(39, 1));
    }
  });
}

}  // namespace
}  // namespace linnet::kernels
