// The tables of position embeddings of spec.h.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "linnet/model/spec.h"

namespace linnet {
namespace {

// Sinusoidal embedding of position t in `dim` dimensions.
void SineRow(int64_t t, int dim, float* to) {
  for (int i = 0; i < dim; i += 2) {
    const double frequency = std::exp(-std::log(10000.0) * i / dim);
    to[i] = static_cast<float>(std::sin(static_cast<double>(t) * frequency));
    if (i + 1 < dim) to[i + 1] = static_cast<float>(std::cos(static_cast<double>(t) * frequency));
  }
}

}  // namespace

void PositionRow(const ModelSpec& spec, int64_t t, float* to) {
  const int dim = spec.PositionDims();
  if (spec.input.positions != Positions::kGrid) return SineRow(t, dim, to);
  const int half = dim / 2, quarter = dim / 4, row_bytes = spec.image()->RowBytes();
  SineRow(t, half, to);
  SineRow((t + 1) / row_bytes, quarter, to + half);
  SineRow((t + 1) % row_bytes, quarter, to + half + quarter);
}

std::vector<float> PositionTable(const ModelSpec& spec) {
  const int dim = spec.PositionDims();
  std::vector<float> table(static_cast<size_t>(spec.input.max_length) * static_cast<size_t>(dim));
  for (int t = 0; t < spec.input.max_length; ++t) {
    PositionRow(spec, t, table.data() + static_cast<ptrdiff_t>(t) * dim);
  }
  return table;
}

std::vector<float> PositionTable(int length, int dim) {
  std::vector<float> table(static_cast<size_t>(length) * static_cast<size_t>(dim));
  for (int t = 0; t < length; ++t) SineRow(t, dim, table.data() + static_cast<ptrdiff_t>(t) * dim);
  return table;
}

}  // namespace linnet
