// For tests of the scan: a problem with all its tensors, run by the kernel and by the reference.
//
//   ScanProblem x = MakeScan(shape, options, ScanStrength::kStrong);
//   const ScanResults got = RunScan(x, /*slots=*/1, SerialFor);
//   const ScanRefResults want = RunScanRef(x);
#ifndef LINNET_KERNELS_SCAN_TEST_UTIL_H_
#define LINNET_KERNELS_SCAN_TEST_UTIL_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "linnet/kernels/scan.h"
#include "linnet/kernels/scan_ref.h"
#include "linnet/kernels/test_util.h"

namespace linnet::kernels {

inline constexpr ScanDecay kScanDecays[] = {ScanDecay::kNone, ScanDecay::kHead, ScanDecay::kKey};
inline constexpr ScanWrite kScanWrites[] = {ScanWrite::kAdd, ScanWrite::kDelta,
                                            ScanWrite::kTwoSided, ScanWrite::kRwkv7};

inline Doubles ToDoubles(const Floats& x) { return Doubles(x.begin(), x.end()); }

// Calls body(options) for each valid combination of decay, write and normalize.
template <class Body>
void ForScanPolicies(const Body& body) {
  for (ScanDecay decay : kScanDecays) {
    for (ScanWrite write : kScanWrites) {
      for (bool normalize : {false, true}) {
        if (normalize && write != ScanWrite::kAdd) continue;
        SCOPED_TRACE(testing::Message()
                     << "decay " << int{static_cast<uint8_t>(decay)} << " write "
                     << int{static_cast<uint8_t>(write)} << (normalize ? " normalized" : ""));
        body(ScanOptions{decay, write, normalize, 0.5f, 1e-6f});
      }
    }
  }
}

// Tensors of a scan, dense, with the shapes of ScanTensors; unused ones are empty.
template <typename T>
struct ScanValues {
  std::vector<T> q, k, v, decay, erase, write, s0, z0;
};

struct ScanProblem {
  ScanShape shape;
  ScanOptions options;
  ScanValues<float> in;
  Floats grad_out, grad_s, grad_z;
  std::vector<int64_t> lengths = {}, offsets = {};
  bool constant_decay = false;  // `decay` is [H]

  size_t tokens() const {
    return offsets.empty() ? shape.batch * shape.length : static_cast<size_t>(offsets.back());
  }
};

struct ScanResults {
  Floats out, s, z;
  ScanValues<float> grad;
};

// Decay at each position: mild, or any g from 0 to -infinity.
enum class ScanStrength { kMild, kStrong };

// Random inputs of the magnitudes that models use. Delta rules get keys of norm 1, and `erase` and
// `write` in (0, 1), so that states stay bounded. With `normalize`, q, k and z0 are positive.
inline ScanProblem MakeScan(const ScanShape& shape, const ScanOptions& options,
                            ScanStrength strength, size_t tokens = SIZE_MAX) {
  if (tokens == SIZE_MAX) tokens = shape.batch * shape.length;
  const size_t d = shape.dim, m = shape.value_dim, rows = tokens * shape.heads;
  const ScanWidths width(options, d, m);
  ScanProblem x{shape, options, {}, {}, {}, {}};
  const auto normalize = [&](Floats& rows_of_d) {
    for (size_t i = 0; i < rows_of_d.size(); i += d) {
      float sum = 1e-6f;
      for (size_t c = 0; c < d; ++c) sum += rows_of_d[i + c] * rows_of_d[i + c];
      for (size_t c = 0; c < d; ++c) rows_of_d[i + c] /= std::sqrt(sum);
    }
  };
  const auto sigmoid = [](Floats& values) {
    for (float& value : values) value = 1 / (1 + std::exp(-value));
  };
  x.in.q = Random(rows / shape.group * d, 1), x.in.k = Random(rows / shape.group * d, 2);
  x.in.v = Random(rows * m, 3), x.in.decay = Random(rows * width.decay, 4);
  x.in.erase = Random(rows * width.erase, 5), x.in.write = Random(rows * width.write, 6);
  const size_t heads = shape.batch * shape.heads;
  x.in.s0 = Random(heads * d * m, 7), x.in.z0 = Random(heads * d, 8);
  for (size_t i = 0; i < x.in.decay.size(); ++i) {
    float& g = x.in.decay[i];
    const float kind = std::abs(g) * 10 - std::floor(std::abs(g) * 10);
    g = -0.1f * std::abs(g);
    if (strength == ScanStrength::kMild) continue;
    if (kind < 0.3f) g *= 20;
    if (kind < 0.2f) g = 0;
    if (kind < 0.1f) g = -30;
    if (kind < 0.07f) g = -100;
    if (kind < 0.03f) g = -std::numeric_limits<float>::infinity();
  }
  if (options.write == ScanWrite::kDelta || options.write == ScanWrite::kTwoSided) {
    normalize(x.in.k);
    sigmoid(x.in.erase), sigmoid(x.in.write);
  }
  if (options.write == ScanWrite::kRwkv7) {
    normalize(x.in.write), normalize(x.in.k);
    x.in.erase = x.in.write;
    const Floats eta = Random(rows * d, 12);
    for (size_t i = 0; i < rows * d; ++i) {
      x.in.erase[i] *= -1;
      x.in.write[i] /= 1 + std::exp(-eta[i]);
    }
  }
  if (options.normalize) {
    for (Floats* y : {&x.in.q, &x.in.k, &x.in.z0}) {
      for (float& value : *y) value = std::abs(value) + 0.1f;
    }
  }
  x.grad_out = Random(rows * m, 9), x.grad_s = Random(heads * d * m, 10);
  x.grad_z = Random(heads * d, 11);
  return x;
}

// Runs the forward and, if `backward`, the backward. Every tensor is misaligned by `offset` floats.
// A canary follows each output and must survive.
inline ScanResults RunScan(const ScanProblem& x, size_t slots, ParallelFor parallel_for,
                           bool backward = true, size_t offset = 0) {
  const ScanShape& shape = x.shape;
  const size_t d = shape.dim, m = shape.value_dim, rows = x.tokens() * shape.heads;
  const size_t length = x.offsets.empty() ? shape.length : x.tokens();
  const ScanWidths width(x.options, d, m);
  const size_t canary = 16;
  std::vector<Floats> inputs;
  inputs.reserve(8);
  const auto in = [&](const Floats& values, size_t size, size_t heads) {
    inputs.push_back(values);
    inputs.back().insert(inputs.back().begin(), offset, NAN);
    return RowMajor<const float>(inputs.back().data() + offset, length, heads, size);
  };
  const auto make = [&](size_t size) { return Floats(offset + size + canary, 77.0f); };
  const auto to = [&](Floats& values, size_t size) {
    return RowMajor(values.data() + offset, length, shape.heads, size);
  };
  const auto done = [&](Floats& values) {
    for (size_t i = 0; i < canary; ++i) EXPECT_EQ(values[values.size() - 1 - i], 77.0f);
    values = Floats(values.begin() + static_cast<ptrdiff_t>(offset),
                    values.end() - static_cast<ptrdiff_t>(canary));
  };
  const bool packed = !x.offsets.empty();
  Floats kept(ScanKept(shape, x.options, packed), NAN);
  ScanResults r{make(rows * m), x.in.s0, x.in.z0, {}};
  ScanForwardArgs forward{.in = {.q = in(x.in.q, d, shape.heads / shape.group),
                                 .k = in(x.in.k, d, shape.heads / shape.group),
                                 .v = in(x.in.v, m, shape.heads),
                                 .decay = in(x.in.decay, width.decay, shape.heads),
                                 .erase = in(x.in.erase, width.erase, shape.heads),
                                 .write = in(x.in.write, width.write, shape.heads)},
                          .out = to(r.out, m),
                          .lengths = x.lengths.empty() ? nullptr : x.lengths.data(),
                          .offsets = packed ? x.offsets.data() : nullptr,
                          .kept = kept.data(),
                          .s = r.s.data(),
                          .z = r.z.data()};
  if (x.constant_decay) forward.in.decay.batch = forward.in.decay.time = 0;
  Floats scratch(ScanForwardScratch(shape, x.options) * slots + 1, NAN);
  ScanForward(shape, x.options, forward, {scratch.data() + offset % 2, slots}, parallel_for);
  if (backward) {
    r.grad = {make(rows * d),
              make(rows * d),
              make(rows * m),
              make(rows * width.decay),
              make(rows * width.erase),
              make(rows * width.write),
              Floats(x.in.s0.size(), 77.0f),
              Floats(x.in.z0.size(), 77.0f)};
    const ScanBackwardArgs args{
        .in = forward.in,
        .out = RowMajor<const float>(r.out.data() + offset, length, shape.heads, m),
        .grad_out = in(x.grad_out, m, shape.heads),
        .kept = kept.data(),
        .lengths = forward.lengths,
        .offsets = forward.offsets,
        .grad = {.q = to(r.grad.q, d),
                 .k = to(r.grad.k, d),
                 .v = to(r.grad.v, m),
                 .decay = to(r.grad.decay, width.decay),
                 .erase = to(r.grad.erase, width.erase),
                 .write = to(r.grad.write, width.write)},
        .grad_s = x.grad_s.data(),
        .grad_z = x.grad_z.data(),
        .grad_s0 = r.grad.s0.data(),
        .grad_z0 = r.grad.z0.data()};
    scratch.assign(ScanBackwardScratch(shape, x.options) * slots + 1, NAN);
    ScanBackward(shape, x.options, args, {scratch.data() + offset % 2, slots}, parallel_for);
    for (Floats* y : {&r.grad.q, &r.grad.k, &r.grad.v, &r.grad.decay, &r.grad.erase, &r.grad.write})
      done(*y);
  }
  done(r.out);
  return r;
}

// The results of the reference, in double.
struct ScanRefResults {
  Doubles out, s, z;
  ScanValues<double> grad;
};

// Runs the reference on every head. `scale`, if not 0, replaces options.scale, which is a float.
template <typename T>
ScanRefResults RunScanRef(const ScanProblem& x, const ScanValues<T>& in, bool backward = true,
                          double scale = 0) {
  const ScanShape& shape = x.shape;
  const size_t d = shape.dim, m = shape.value_dim, rows = x.tokens() * shape.heads;
  const ScanWidths width(x.options, d, m);
  ScanRefResults r;
  r.out.resize(rows * m);
  if (scale == 0) scale = x.options.scale;
  if (backward) {
    r.grad.q.resize(rows * d), r.grad.k = r.grad.q, r.grad.v.resize(rows * m);
    r.grad.decay.resize(rows * width.decay), r.grad.erase.resize(rows * width.erase);
    r.grad.write.resize(rows * width.write);
  }
  for (size_t n = 0; n < shape.batch; ++n) {
    const size_t first = x.offsets.empty() ? n * shape.length : static_cast<size_t>(x.offsets[n]);
    const size_t length =
        x.offsets.empty() ? shape.length : static_cast<size_t>(x.offsets[n + 1]) - first;
    for (size_t h = 0; h < shape.heads; ++h) {
      const auto head = [&](const auto& values, size_t size, size_t group) {
        Doubles y;
        for (size_t t = 0; t < length && size > 0; ++t) {
          const auto* row =
              values.data() + ((first + t) * (shape.heads / group) + h / group) * size;
          y.insert(y.end(), row, row + size);
        }
        return y;
      };
      const auto put = [&](const Doubles& y, size_t size, Doubles& to) {
        for (size_t i = 0; i < y.size(); ++i) {
          to[((first + i / size) * shape.heads + h) * size + i % size] = y[i];
        }
      };
      const auto state = [&](const auto& values, size_t size) {
        const auto* at = values.data() + (n * shape.heads + h) * size;
        return values.empty() ? Doubles() : Doubles(at, at + size);
      };
      const auto append = [](Doubles& to, const Doubles& y) {
        to.insert(to.end(), y.begin(), y.end());
      };
      ScanSequence one{.length = length, .dim = d, .value_dim = m};
      if (!x.lengths.empty()) one.valid = static_cast<size_t>(std::max<int64_t>(x.lengths[n], 0));
      one.options = x.options;
      one.options.scale = 1;  // q is scaled below, in double
      one.q = head(in.q, d, shape.group), one.k = head(in.k, d, shape.group);
      for (double& q : one.q) q *= scale;
      one.v = head(in.v, m, 1);
      one.decay = x.constant_decay ? Doubles(length, in.decay[h]) : head(in.decay, width.decay, 1);
      one.erase = head(in.erase, width.erase, 1), one.write = head(in.write, width.write, 1);
      one.s0 = state(in.s0, d * m), one.z0 = state(in.z0, d);
      const ScanRef ref(one);
      put(ref.out(), m, r.out);
      append(r.s, ref.s()), append(r.z, ref.z());
      if (!backward) continue;
      ScanSequence grad = ref.Gradients(head(x.grad_out, m, 1), state(x.grad_s, d * m),
                                        x.options.normalize ? state(x.grad_z, d) : Doubles());
      for (double& q : grad.q) q *= scale;
      put(grad.q, d, r.grad.q), put(grad.k, d, r.grad.k), put(grad.v, m, r.grad.v);
      put(grad.decay, width.decay, r.grad.decay), put(grad.erase, width.erase, r.grad.erase);
      put(grad.write, width.write, r.grad.write);
      append(r.grad.s0, grad.s0), append(r.grad.z0, grad.z0);
    }
  }
  return r;
}
inline ScanRefResults RunScanRef(const ScanProblem& x, bool backward = true) {
  return RunScanRef(x, x.in, backward);
}

// max |got - want| / max(max |want|, floor). A NaN in `got` counts as an infinite difference.
template <class Got>
double ScanDifference(const Got& got, const Doubles& want, double floor = 0.1) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double off = 0, scale = floor;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(got[i] - want[i]);
    if (!(difference <= off)) {
      off = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    }
    scale = std::max(scale, std::abs(want[i]));
  }
  return off / scale;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SCAN_TEST_UTIL_H_
