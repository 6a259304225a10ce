// Two programs are built from this file. cuda_scan_test runs the scan's kernels on a GPU, and skips
// its tests if there is none. cuda_scan_on_executor_test runs them on the CPU.
#include "linnet/kernels/cuda/scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <list>
#include <vector>

#include "linnet/kernels/scan_test_util.h"

namespace linnet::kernels::cuda {
namespace {

class CudaScan : public testing::Test {
 protected:
  void SetUp() override {
    try {
      on_gpu_ = Device::Open().name != "executor";
    } catch (const CudaError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  bool on_gpu_ = false;
};

// Copies of tensors in device memory, kept until the Tensors end.
class Tensors {
 public:
  // `fill` floats of NaN behind the values show writes beyond them.
  float* Copy(const Floats& values) {
    Floats padded = values;
    padded.resize(values.size() + 16, NAN);
    buffers_.emplace_back(padded.size());
    buffers_.back().Write(padded.data());
    return buffers_.back().data();
  }
  float* Empty(size_t size) { return Copy(Floats(size, NAN)); }
  const int64_t* Copy(const std::vector<int64_t>& values) {
    if (values.empty()) return nullptr;
    integers_.emplace_back(values.size());
    integers_.back().Write(values.data());
    return integers_.back().data();
  }
  static Floats Read(const float* from, size_t size) {
    Floats values(size + 16);
    CopyToHost(values.data(), from, values.size() * sizeof(float));
    for (size_t i = size; i < values.size(); ++i) EXPECT_TRUE(std::isnan(values[i]));
    values.resize(size);
    return values;
  }

 private:
  std::list<DeviceBuffer<float>> buffers_;
  std::list<DeviceBuffer<int64_t>> integers_;
};

ScanResults RunOnDevice(const ScanProblem& x, bool with_state = true) {
  const ScanShape& shape = x.shape;
  const size_t d = shape.dim, m = shape.value_dim, rows = x.tokens() * shape.heads;
  const bool packed = !x.offsets.empty();
  const size_t length = packed ? x.tokens() : shape.length;
  const ScanWidths width(x.options, d, m);
  ScanShape planned = shape;
  planned.length = length;
  const ScanPlan plan = PlanScan(planned, x.options, packed);
  Tensors on;
  const auto in = [&](const Floats& values, size_t size, size_t heads) {
    return RowMajor<const float>(on.Copy(values), length, heads, size);
  };
  const auto to = [&](size_t size) {
    return RowMajor(on.Empty(rows * size), length, shape.heads, size);
  };
  const size_t shared = shape.heads / shape.group;
  ScanForwardArgs forward{.in = {.q = in(x.in.q, d, shared),
                                 .k = in(x.in.k, d, shared),
                                 .v = in(x.in.v, m, shape.heads),
                                 .decay = in(x.in.decay, width.decay, shape.heads),
                                 .erase = in(x.in.erase, width.erase, shape.heads),
                                 .write = in(x.in.write, width.write, shape.heads)},
                          .out = to(m),
                          .lengths = on.Copy(x.lengths),
                          .offsets = on.Copy(x.offsets),
                          .kept = on.Empty(plan.kept),
                          .s = with_state ? on.Copy(x.in.s0) : nullptr};
  if (x.constant_decay) forward.in.decay.batch = forward.in.decay.time = 0;
  ScanForward(plan, forward, nullptr);
  const ScanBackwardArgs backward{
      .in = forward.in,
      .out = RowMajor<const float>(forward.out.data, length, shape.heads, m),
      .grad_out = in(x.grad_out, m, shape.heads),
      .kept = forward.kept,
      .lengths = forward.lengths,
      .offsets = forward.offsets,
      .grad = {to(d), to(d), to(m), to(width.decay), to(width.erase), to(width.write)},
      .grad_s = with_state ? on.Copy(x.grad_s) : nullptr,
      .grad_s0 = with_state ? on.Empty(x.in.s0.size()) : nullptr};
  ScanBackward(plan, backward, on.Empty(plan.scratch), nullptr);
  Synchronize();
  const auto read = [&](const Strided<float>& from, size_t size) {
    return Tensors::Read(from.data, rows * size);
  };
  ScanResults r;
  r.out = read(forward.out, m);
  r.grad.q = read(backward.grad.q, d), r.grad.k = read(backward.grad.k, d);
  r.grad.v = read(backward.grad.v, m);
  r.grad.decay = read(backward.grad.decay, width.decay);
  r.grad.erase = read(backward.grad.erase, width.erase);
  r.grad.write = read(backward.grad.write, width.write);
  if (with_state) {
    r.s = Tensors::Read(forward.s, x.in.s0.size());
    r.grad.s0 = Tensors::Read(backward.grad_s0, x.in.s0.size());
  }
  return r;
}

void ExpectMatches(const ScanProblem& x, bool with_state = true) {
  const ScanResults got = RunOnDevice(x, with_state);
  ScanProblem reference = x;
  if (!with_state) {
    reference.in.s0.clear(), reference.in.z0.clear();
    reference.grad_s.clear(), reference.grad_z.clear();
  }
  const ScanRefResults want = RunScanRef(reference);
  constexpr double kTolerance = 2e-5;
  EXPECT_LT(ScanDifference(got.out, want.out), kTolerance);
  EXPECT_LT(ScanDifference(got.grad.q, want.grad.q), kTolerance);
  EXPECT_LT(ScanDifference(got.grad.k, want.grad.k), kTolerance);
  EXPECT_LT(ScanDifference(got.grad.v, want.grad.v), kTolerance);
  EXPECT_LT(ScanDifference(got.grad.decay, want.grad.decay), kTolerance);
  EXPECT_LT(ScanDifference(got.grad.erase, want.grad.erase), kTolerance);
  EXPECT_LT(ScanDifference(got.grad.write, want.grad.write), kTolerance);
  if (!with_state) return;
  EXPECT_LT(ScanDifference(got.s, want.s), kTolerance);
  EXPECT_LT(ScanDifference(got.grad.s0, want.grad.s0), kTolerance);
}

// Calls body(options) for each combination of decay and write.
template <class Body>
void ForPolicies(const Body& body) {
  ForScanPolicies([&](const ScanOptions& options) {
    if (!options.normalize) body(options);
  });
}

TEST_F(CudaScan, MatchesReference) {
  struct Size {
    size_t length, dim, value_dim, heads;
  };
  std::vector<Size> sizes = {{1, 4, 4, 1},    {7, 16, 32, 2},   {9, 36, 16, 1},
                             {17, 64, 68, 1}, {19, 32, 128, 1}, {8, 128, 100, 1}};
  if (on_gpu_) sizes.push_back({783, 32, 32, 8}), sizes.push_back({300, 128, 128, 2});
  ForPolicies([&](const ScanOptions& options) {
    for (const Size& size : sizes) {
      SCOPED_TRACE(testing::Message()
                   << "L " << size.length << " D " << size.dim << " M " << size.value_dim);
      const ScanShape shape = {2, size.length, size.heads, size.dim, size.value_dim};
      ExpectMatches(MakeScan(shape, options, ScanStrength::kMild));
    }
  });
}

TEST_F(CudaScan, WithoutStatesMatchesReference) {
  ForPolicies([&](const ScanOptions& options) {
    ExpectMatches(MakeScan({1, 11, 2, 16, 8}, options, ScanStrength::kMild), false);
  });
}

TEST_F(CudaScan, StrongDecaysMatchReference) {
  ForPolicies([&](const ScanOptions& options) {
    ExpectMatches(MakeScan({1, 70, 2, 16, 8}, options, ScanStrength::kStrong));
  });
}

TEST_F(CudaScan, LengthsSharedHeadsAndConstantDecays) {
  ForPolicies([&](const ScanOptions& options) {
    ScanShape shape = {4, 21, 4, 16, 12};
    shape.group = 2;
    ScanProblem x = MakeScan(shape, options, ScanStrength::kMild);
    x.lengths = {0, 21, 9, 30};
    // Nothing may be read at positions beyond the length, except queries and grad_out.
    const auto spoil = [&](Floats& values, size_t width, size_t heads) {
      if (width == 0) return;
      for (size_t n = 0; n < shape.batch; ++n) {
        const size_t end = (n + 1) * shape.length * heads * width;
        size_t begin = (n * shape.length + static_cast<size_t>(x.lengths[n])) * heads * width;
        for (begin = std::min(begin, end); begin < end; ++begin) values[begin] = NAN;
      }
    };
    const ScanWidths width(options, shape.dim, shape.value_dim);
    spoil(x.in.k, shape.dim, 2), spoil(x.in.v, shape.value_dim, 4);
    spoil(x.in.erase, width.erase, 4), spoil(x.in.write, width.write, 4);
    if (options.decay == ScanDecay::kHead) {
      x.in.decay.resize(shape.heads);
      x.constant_decay = true;
    } else {
      spoil(x.in.decay, width.decay, 4);
    }
    ExpectMatches(x);
  });
}

TEST_F(CudaScan, PackedSequences) {
  ForPolicies([&](const ScanOptions& options) {
    ScanProblem x = MakeScan({4, 0, 2, 16, 20}, options, ScanStrength::kMild, 33);
    x.offsets = {0, 5, 5, 32, 33};
    ExpectMatches(x);
  });
}

// A sequence in two calls gives the bits of one call.
TEST_F(CudaScan, PiecesGiveTheBitsOfTheWhole) {
  ForPolicies([&](const ScanOptions& options) {
    const ScanShape shape = {1, 29, 2, 32, 24};
    const ScanProblem whole = MakeScan(shape, options, ScanStrength::kMild);
    const ScanResults want = RunOnDevice(whole);
    const ScanWidths width(options, shape.dim, shape.value_dim);
    Floats out, s = whole.in.s0;
    for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 13}, {13, 29}}) {
      ScanProblem piece = whole;
      piece.shape.length = end - begin;
      const auto cut = [&](Floats& values, size_t row) {
        values = Floats(values.begin() + static_cast<ptrdiff_t>(begin * shape.heads * row),
                        values.begin() + static_cast<ptrdiff_t>(end * shape.heads * row));
      };
      cut(piece.in.q, shape.dim), cut(piece.in.k, shape.dim), cut(piece.in.v, shape.value_dim);
      cut(piece.in.decay, width.decay), cut(piece.in.erase, width.erase);
      cut(piece.in.write, width.write), cut(piece.grad_out, shape.value_dim);
      piece.in.s0 = s;
      const ScanResults got = RunOnDevice(piece);
      s = got.s;
      out.insert(out.end(), got.out.begin(), got.out.end());
    }
    EXPECT_EQ(out, want.out);
    EXPECT_EQ(s, want.s);
  });
}

TEST_F(CudaScan, SupportsWhatItsContractSays) {
  const ScanShape good = {1, 1, 1, 128, 4};
  EXPECT_TRUE(SupportsScan(good, {}));
  EXPECT_FALSE(SupportsScan(good, {.normalize = true}));
  for (const size_t width : {0, 6, 132}) {
    ScanShape bad = good;
    bad.dim = width;
    EXPECT_FALSE(SupportsScan(bad, {}));
    bad = good, bad.value_dim = width;
    EXPECT_FALSE(SupportsScan(bad, {}));
  }
}

// h_t = e^g_t h_{t-1} + x_t of one channel in double, and its gradients.
struct ChannelRef {
  Doubles out, grad_x, grad_g;
  double h = 0, grad_h0 = 0;

  ChannelRef(const Doubles& x, const Doubles& g, const Doubles& grad_out, double h0, double grad_h,
             size_t valid)
      : out(x.size()), grad_x(x.size()), grad_g(x.size()), h(h0), grad_h0(grad_h) {
    for (size_t t = 0; t < x.size(); ++t) {
      if (t < valid) h = std::exp(g[t]) * h + x[t];
      out[t] = h;
    }
    for (size_t t = x.size(); t-- > 0;) {
      grad_h0 += grad_out[t];
      if (t >= valid) continue;
      grad_x[t] = grad_h0;
      grad_h0 *= std::exp(g[t]);
      grad_g[t] = grad_h0 * (t > 0 ? out[t - 1] : h0);
    }
  }
};

// Compares the scan by channel with ChannelRef. `offsets` are empty or those of packed sequences.
void CheckChannels(const ChannelScanShape& shape, const std::vector<int64_t>& lengths,
                   const std::vector<int64_t>& offsets) {
  const size_t tokens =
      offsets.empty() ? shape.batch * shape.length : static_cast<size_t>(offsets.back());
  const size_t c = shape.channels, count = tokens * c;
  Floats x = Random(count, 1), g = Random(count, 2);
  const Floats grad_out = Random(count, 3), h0 = Random(shape.batch * c, 4);
  const Floats grad_h = Random(shape.batch * c, 5);
  for (size_t i = 0; i < count; ++i) {
    g[i] = i % 17 == 3 ? -std::numeric_limits<float>::infinity() : -std::abs(g[i]);
  }
  Tensors on;
  const size_t length = offsets.empty() ? shape.length : tokens;
  const auto view = [&](float* data) { return RowMajor(data, length, 1, c); };
  const auto in = [&](const Floats& values) {
    return RowMajor<const float>(on.Copy(values), length, 1, c);
  };
  const ChannelScanArgs forward{.x = in(x),
                                .g = in(g),
                                .out = view(on.Empty(count)),
                                .lengths = on.Copy(lengths),
                                .offsets = on.Copy(offsets),
                                .h = on.Copy(h0)};
  ChannelScanForward(shape, forward, nullptr);
  const ChannelScanBackwardArgs backward{
      .g = forward.g,
      .out = RowMajor<const float>(forward.out.data, length, 1, c),
      .grad_out = in(grad_out),
      .lengths = forward.lengths,
      .offsets = forward.offsets,
      .h0 = on.Copy(h0),
      .grad_h = on.Copy(grad_h),
      .grad_x = view(on.Empty(count)),
      .grad_g = view(on.Empty(count)),
      .grad_h0 = on.Empty(h0.size())};
  ChannelScanBackward(shape, backward, nullptr);
  Synchronize();
  Doubles out(count), grad_x(count), grad_g(count), h, grad_h0;
  for (size_t n = 0; n < shape.batch; ++n) {
    const size_t first = offsets.empty() ? n * shape.length : static_cast<size_t>(offsets[n]);
    const size_t end = offsets.empty() ? first + shape.length : static_cast<size_t>(offsets[n + 1]);
    for (size_t channel = 0; channel < c; ++channel) {
      const auto column = [&](const Floats& values) {
        Doubles y;
        for (size_t t = first; t < end; ++t) y.push_back(values[t * c + channel]);
        return y;
      };
      const size_t valid = lengths.empty() ? SIZE_MAX : static_cast<size_t>(lengths[n]);
      const ChannelRef ref(column(x), column(g), column(grad_out), h0[n * c + channel],
                           grad_h[n * c + channel], valid);
      for (size_t t = first; t < end; ++t) {
        out[t * c + channel] = ref.out[t - first];
        grad_x[t * c + channel] = ref.grad_x[t - first];
        grad_g[t * c + channel] = ref.grad_g[t - first];
      }
      h.push_back(ref.h), grad_h0.push_back(ref.grad_h0);
    }
  }
  EXPECT_LT(ScanDifference(Tensors::Read(forward.out.data, count), out), 1e-5);
  EXPECT_LT(ScanDifference(Tensors::Read(forward.h, h.size()), h), 1e-5);
  EXPECT_LT(ScanDifference(Tensors::Read(backward.grad_x.data, count), grad_x), 1e-5);
  EXPECT_LT(ScanDifference(Tensors::Read(backward.grad_g.data, count), grad_g), 1e-5);
  EXPECT_LT(ScanDifference(Tensors::Read(backward.grad_h0, h.size()), grad_h0), 1e-5);
}

TEST_F(CudaScan, ChannelsMatchReference) {
  CheckChannels({2, 19, 70}, {}, {});
  CheckChannels({3, 16, 5}, {0, 16, 7}, {});
  CheckChannels({3, 0, 5}, {}, {0, 9, 9, 21});
}

}  // namespace
}  // namespace linnet::kernels::cuda
