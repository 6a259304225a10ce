// Embedding, residual and layer norm, and gelu as tile programs (tile.h); contracts in decode.h. A
// warp computes a row.
#ifndef LINNET_KERNELS_CUDA_ROWS_TILE_H_
#define LINNET_KERNELS_CUDA_ROWS_TILE_H_

#include "linnet/kernels/cuda/decode.h"
#include "linnet/kernels/cuda/tile.h"

namespace linnet::kernels::cuda {

inline constexpr unsigned kRowThreads = 128;

// 8 bytes, read and written at once.
struct alignas(8) Vector8 {
  uint32_t word[2];
};

LINNET_TILE uint32_t BitsOfFloat(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}

LINNET_TILE void StoreAs(float* to, size_t i, float value) { to[i] = value; }
LINNET_TILE void StoreAs(BFloat16* to, size_t i, float value) { to[i] = ToBf16(value); }

// Four consecutive numbers.
struct Four {
  float at[4];
};
LINNET_TILE Four LoadFour(const float* from) {
  const Vector16 words = *reinterpret_cast<const Vector16*>(from);
  return {{FloatOfBits(words.word[0]), FloatOfBits(words.word[1]), FloatOfBits(words.word[2]),
           FloatOfBits(words.word[3])}};
}
LINNET_TILE Four LoadFour(const BFloat16* from) {
  const Vector8 words = *reinterpret_cast<const Vector8*>(from);
  return {{LowBf16(words.word[0]), HighBf16(words.word[0]), LowBf16(words.word[1]),
           HighBf16(words.word[1])}};
}
LINNET_TILE void StoreFour(float* to, const Four& x) {
  Vector16 words;
  LINNET_UNROLL
  for (unsigned i = 0; i < 4; ++i) words.word[i] = BitsOfFloat(x.at[i]);
  *reinterpret_cast<Vector16*>(to) = words;
}
LINNET_TILE void StoreFour(BFloat16* to, const Four& x) {
  *reinterpret_cast<Vector8*>(to) = {{PairBf16(x.at[0], x.at[1]), PairBf16(x.at[2], x.at[3])}};
}

template <class Tile>
LINNET_TILE float SumOfWarp(Tile& tile, float x) {
  LINNET_UNROLL
  for (unsigned mask = kWarp / 2; mask > 0; mask /= 2) x += tile.ShuffleXor(x, mask);
  return x;
}

// Column c of row n of the embedding at `position`.
class EmbeddedRow {
 public:
  LINNET_TILE EmbeddedRow(const EmbedArgs& args, unsigned n, unsigned position)
      : args_(args),
        value_(args.values + TokenAt(position, n) * args.value_width),
        place_(args.positions + size_t{position} * args.position_width) {
    if (args.above == nullptr) return;
    const unsigned next = position + 1;
    const size_t token =
        next < args.row_tokens ? args.vocabulary : TokenAt(next - args.row_tokens, n);
    above_ = args.above + token * args.value_width;
  }
  LINNET_TILE float At(unsigned c) const {
    float x = 0;
    if (c < args_.value_width) x = value_[c] + (above_ != nullptr ? above_[c] : 0.0f);
    const unsigned p = c - args_.position_begin;  // wraps around before the first
    return p < args_.position_width ? x + place_[p] : x;
  }

 private:
  LINNET_TILE size_t TokenAt(unsigned position, unsigned n) const {
    return static_cast<size_t>(args_.tokens[size_t{position} * args_.batch + n]);
  }

  const EmbedArgs& args_;
  const float *value_, *place_, *above_ = nullptr;
};

template <typename T, class Tile>
LINNET_TILE void EmbedTile(Tile& tile, const EmbedArgs& args) {
  const unsigned position = args.control->next_position;
  if (tile.x() == 0 && tile.thread() == 0) {
    args.control->position = position;
    args.control->waiting = args.control->next_waiting;
  }
  const unsigned row = tile.x() * (tile.threads() / kWarp) + tile.warp();
  if (row >= args.batch) return;
  const EmbeddedRow embedded(args, row, position);
  for (unsigned c = tile.lane(); c < args.d_model; c += kWarp) {
    const float x = embedded.At(c);
    const size_t at = size_t{row} * args.d_model + c;
    args.x[at] = x;
    if (args.in != nullptr) StoreAs(static_cast<T*>(args.in), at, x);
  }
}

// A row in registers: lane l holds columns 4 l .. 4 l + 3 of each 128.
template <unsigned kParts>
struct RowOf {
  Four part[kParts];
};

template <unsigned kParts, class Tile>
LINNET_TILE void NormalizeRow(Tile& tile, unsigned width, float eps, const float* weight,
                              const float* bias, RowOf<kParts>& row) {
  const unsigned first = 4 * tile.lane();
  const float count = static_cast<float>(width);
  float sum = 0;
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) sum += row.part[j].at[i];  // 0 beyond the row
  }
  const float mean = SumOfWarp(tile, sum) / count;
  float squares = 0;
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    if (first + 128 * j >= width) continue;
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const float off = row.part[j].at[i] - mean;
      squares += off * off;
    }
  }
  const float scale = 1.0f / std::sqrt(SumOfWarp(tile, squares) / count + eps);
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    const unsigned c = first + 128 * j;
    if (c >= width) continue;
    const Four w = LoadFour(weight + c), b = LoadFour(bias + c);
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      row.part[j].at[i] = (row.part[j].at[i] - mean) * scale * w.at[i] + b.at[i];
    }
  }
}

template <unsigned kParts, typename To>
LINNET_TILE void StoreRow(unsigned first, unsigned width, const RowOf<kParts>& row, To* to) {
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    if (first + 128 * j < width) StoreFour(to + first + 128 * j, row.part[j]);
  }
}

// kParts: 128 columns each.
template <typename T, unsigned kParts, class Tile>
LINNET_TILE void NormTile(Tile& tile, const NormArgs& args) {
  const unsigned n = tile.x() * (tile.threads() / kWarp) + tile.warp();
  if (n >= args.batch) return;
  const unsigned first = 4 * tile.lane(), width = args.d_model;
  const size_t begin = size_t{n} * width;
  RowOf<kParts> row;
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    const unsigned c = first + 128 * j;
    row.part[j] = {{0, 0, 0, 0}};
    if (c >= width) continue;
    row.part[j] = LoadFour(args.x + begin + c);
    if (args.branch == nullptr) continue;
    const Four add = LoadFour(static_cast<const T*>(args.branch) + begin + c);
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) row.part[j].at[i] += add.at[i];
  }
  if (args.norm_first && args.branch != nullptr) StoreRow(first, width, row, args.x + begin);
  if (args.weight != nullptr) NormalizeRow(tile, width, args.eps, args.weight, args.bias, row);
  if (args.next_weight != nullptr) {
    NormalizeRow(tile, width, args.eps, args.next_weight, args.next_bias, row);
  }
  if (!args.norm_first) StoreRow(first, width, row, args.x + begin);
  if (args.in != nullptr) StoreRow(first, width, row, static_cast<T*>(args.in) + begin);
  if (args.out != nullptr) StoreRow(first, width, row, args.out + begin);
}

LINNET_TILE float Gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * 0.70710678f)); }

// Four numbers a thread.
template <typename T, class Tile>
LINNET_TILE void GeluTile(Tile& tile, size_t n, T* x) {
  const size_t at = 4 * (size_t{tile.x()} * tile.threads() + tile.thread());
  if (at >= n) return;
  Four four = LoadFour(x + at);
  LINNET_UNROLL
  for (unsigned i = 0; i < 4; ++i) four.at[i] = Gelu(four.at[i]);
  StoreFour(x + at, four);
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_ROWS_TILE_H_
