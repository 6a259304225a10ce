#include <algorithm>
#include <cmath>

#include "bench/scan.h"
#include "linnet/base/larger_error.h"
#include "linnet/error.h"
#include "linnet/kernels/scan_ref.h"
#include "linnet/rng.h"

namespace linnet::bench {

using kernels::ScanWrite;

ScanData::ScanData(const ScanBench& bench, const ScanPolicy& policy, size_t length)
    : shape{.batch = bench.batch == 0 ? 1 : bench.batch,
            .length = length,
            .heads = bench.heads,
            .dim = bench.dim,
            .value_dim = bench.dim},
      options{.decay = policy.decay,
              .write = policy.write,
              .scale = 1 / std::sqrt(static_cast<float>(bench.dim))},
      widths(options, bench.dim, bench.dim),
      name_(policy.name),
      rows_(bench.layout == "row") {
  const size_t sizes[] = {shape.dim,    shape.dim,    shape.value_dim,
                          widths.decay, widths.erase, widths.write};
  const size_t rows = shape.batch * shape.heads * length;
  const auto fill = [&](Buffer& x, size_t size, uint64_t stream) {
    x = Buffer(rows * size);
    Philox rng(/*seed=*/length, stream);
    for (float& value : x) value = 2 * rng.Uniform() - 1;
  };
  for (size_t i = 0; i < 6; ++i) fill(in[i], sizes[i], i);
  fill(grad_out, shape.value_dim, 6);
  Prepare();
}

// Turns the random numbers in (-1, 1) of `in` into valid inputs: negative log-decays, erase and
// write strengths in (0, 1), and keys of norm 1.
void ScanData::Prepare() {
  for (float& g : in[3]) g = -0.05f * (1 + g);  // mean -0.05, as for trained gates
  if (options.write == ScanWrite::kAdd) return;
  Normalize(in[1]);
  if (options.write != ScanWrite::kRwkv7) {
    for (size_t i : {4, 5}) {
      for (float& x : in[i]) x = 0.5f * (1 + x);
    }
    return;
  }
  Normalize(in[5]);
  // In RWKV-7, erase is a = -kk and write is b = kk * eta, where kk is a key of norm 1.
  for (size_t i = 0; i < in[4].size(); ++i) {
    const float eta = 0.5f * (1 + in[4][i]);
    in[4][i] = -in[5][i], in[5][i] *= eta;
  }
}

void ScanData::Normalize(Buffer& rows) const {
  for (float* row = rows.begin(); row < rows.end(); row += shape.dim) {
    float sum = 1e-6f;
    for (size_t d = 0; d < shape.dim; ++d) sum += row[d] * row[d];
    for (size_t d = 0; d < shape.dim; ++d) row[d] /= std::sqrt(sum);
  }
}

// The first `length` rows of a head, row-major.
std::vector<double> ScanData::Head(const float* x, size_t width, size_t place,
                                   size_t length) const {
  std::vector<double> values;
  const auto view = View<const float>(x, width);
  for (size_t t = 0; t < length && width > 0; ++t) {
    const float* row = view.At(place / shape.heads, t, place % shape.heads);
    values.insert(values.end(), row, row + width);
  }
  return values;
}

void ScanData::Check(size_t place, const float* out, const float* const* grad) const {
  constexpr size_t kMostRows = 4096, kMostGradients = 512;
  const size_t length = std::min(shape.length, kMostRows);
  const size_t sizes[] = {shape.dim,    shape.dim,    shape.value_dim,
                          widths.decay, widths.erase, widths.write};
  kernels::ScanSequence x{
      .length = length, .dim = shape.dim, .value_dim = shape.value_dim, .options = options};
  std::vector<double>* const to[] = {&x.q, &x.k, &x.v, &x.decay, &x.erase, &x.write};
  for (size_t i = 0; i < 6; ++i) *to[i] = Head(in[i].data(), sizes[i], place, length);
  const auto error = [&](const float* got, size_t width, const std::vector<double>& want) {
    RelativeError relative;
    const std::vector<double> rows = Head(got, width, place, length);
    for (size_t i = 0; i < want.size(); ++i) relative.Add(rows[i], want[i]);
    return want.empty() ? 0 : relative.value();
  };
  const kernels::ScanRef reference(x);
  double worst = error(out, shape.value_dim, reference.out());
  if (grad != nullptr && shape.length <= kMostGradients) {
    const kernels::ScanSequence want =
        reference.Gradients(Head(grad_out.data(), shape.value_dim, place, length));
    const std::vector<double>* const wanted[] = {&want.q,     &want.k,     &want.v,
                                                 &want.decay, &want.erase, &want.write};
    for (size_t i = 0; i < 6; ++i) {
      worst = LargerError(worst, error(grad[i], sizes[i], *wanted[i]));
    }
  }
  if (!(worst <= 1e-4)) {
    throw RuntimeError("bench scan: at N = ", shape.length, " ", name_,
                       grad == nullptr ? " in steps" : "", " differs from its reference by ", worst,
                       " (allowed: 1e-4); not timed");
  }
}

}  // namespace linnet::bench
