// Tile programs (tile.h) of StartEmbed(), StartNorm() and StartGelu() in decode.h. In EmbedTile, a
// warp processes one row; in NormTile, one row, or two rows of at most 256 columns.
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

// The embedding of sequence n at `position`; At(c) is column c.
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
    const unsigned p = c - args_.position_begin;  // wraps around if c < position_begin
    return p < args_.position_width ? x + place_[p] : x;
  }

 private:
  LINNET_TILE size_t TokenAt(unsigned position, unsigned n) const {
    return static_cast<size_t>(args_.tokens[size_t{position} * args_.batch + n]);
  }

  const EmbedArgs& args_;
  // The rows of args.values, positions and above that are added; above_ is null without `above`.
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

// A row in the registers of a warp: part[j] of lane l holds columns 128 j + 4 l .. 128 j + 4 l + 3.
template <unsigned kParts>
struct RowOf {
  Four part[kParts];
};

// Rows per warp of NormTile. With two rows, the loads and sums of one row overlap those of the
// other. Also, a batch of 10,000 rows of 256 columns then needs only 5,000 warps, nearly all of
// which run at once.
template <unsigned kParts>
inline constexpr unsigned kNormRows = kParts <= 2 ? 2 : 1;

// Replaces each x[r] by its sum over the lanes of the warp.
template <unsigned kRows, class Tile>
LINNET_TILE void SumsOfWarp(Tile& tile, float (&x)[kRows]) {
  LINNET_UNROLL
  for (unsigned mask = kWarp / 2; mask > 0; mask /= 2) {
    LINNET_UNROLL
    for (unsigned r = 0; r < kRows; ++r) x[r] += tile.ShuffleXor(x[r], mask);
  }
}

// Layer norm of `rows` in place. Columns beyond `width` must be 0.
template <unsigned kRows, unsigned kParts, class Tile>
LINNET_TILE void NormalizeRows(Tile& tile, unsigned width, float eps, const float* weight,
                               const float* bias, RowOf<kParts> (&rows)[kRows]) {
  const unsigned first = 4 * tile.lane();
  const float each = 1.0f / static_cast<float>(width);
  float mean[kRows], scale[kRows];
  LINNET_UNROLL
  for (unsigned r = 0; r < kRows; ++r) {
    float sum = 0;
    LINNET_UNROLL
    for (unsigned j = 0; j < kParts; ++j) {
      LINNET_UNROLL
      for (unsigned i = 0; i < 4; ++i) sum += rows[r].part[j].at[i];  // 0 beyond the row
    }
    mean[r] = sum;
  }
  SumsOfWarp(tile, mean);
  LINNET_UNROLL
  for (unsigned r = 0; r < kRows; ++r) {
    mean[r] *= each;
    float squares = 0;
    LINNET_UNROLL
    for (unsigned j = 0; j < kParts; ++j) {
      if (first + 128 * j >= width) continue;
      LINNET_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        const float off = rows[r].part[j].at[i] - mean[r];
        squares += off * off;
      }
    }
    scale[r] = squares;
  }
  SumsOfWarp(tile, scale);
  LINNET_UNROLL
  for (unsigned r = 0; r < kRows; ++r) scale[r] = 1.0f / std::sqrt(scale[r] * each + eps);
  LINNET_UNROLL
  for (unsigned j = 0; j < kParts; ++j) {
    const unsigned c = first + 128 * j;
    if (c >= width) continue;
    const Four w = LoadFour(weight + c), b = LoadFour(bias + c);
    LINNET_UNROLL
    for (unsigned r = 0; r < kRows; ++r) {
      LINNET_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        float& x = rows[r].part[j].at[i];
        x = (x - mean[r]) * scale[r] * w.at[i] + b.at[i];
      }
    }
  }
}

// kParts: number of parts of a row, each of 128 columns.
template <typename T, unsigned kParts, class Tile>
LINNET_TILE void NormTile(Tile& tile, const NormArgs& args) {
  constexpr unsigned kRows = kNormRows<kParts>;
  const unsigned n = kRows * (tile.x() * (tile.threads() / kWarp) + tile.warp());
  if (n >= args.batch) return;
  const unsigned first = 4 * tile.lane(), width = args.d_model;
  // Calls body(r, j, at, valid) for each part j of each row r of the warp: the lane's four columns
  // begin at element `at` of x. For columns beyond d_model (valid: false) or a row beyond the
  // batch, `at` is another element of x, so that the loads need no branches and none of them waits
  // for another.
  const auto each = [&](auto body) {
    LINNET_UNROLL
    for (unsigned r = 0; r < kRows; ++r) {
      const unsigned row = n + r < args.batch ? n + r : n;
      LINNET_UNROLL
      for (unsigned j = 0; j < kParts; ++j) {
        const unsigned c = first + 128 * j;
        body(r, j, row * width + (c < width ? c : 0), c < width);
      }
    }
  };
  RowOf<kParts> rows[kRows];
  each([&](unsigned r, unsigned j, unsigned at, bool) { rows[r].part[j] = LoadFour(args.x + at); });
  if (args.branch != nullptr) {
    RowOf<kParts> branch[kRows];
    each([&](unsigned r, unsigned j, unsigned at, bool) {
      branch[r].part[j] = LoadFour(static_cast<const T*>(args.branch) + at);
    });
    each([&](unsigned r, unsigned j, unsigned, bool) {
      LINNET_UNROLL
      for (unsigned i = 0; i < 4; ++i) rows[r].part[j].at[i] += branch[r].part[j].at[i];
    });
  }
  each([&](unsigned r, unsigned j, unsigned, bool valid) {
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      if (!valid) rows[r].part[j].at[i] = 0;
    }
  });
  const auto store = [&](auto* to) {
    LINNET_UNROLL
    for (unsigned r = 0; r < kRows; ++r) {
      LINNET_UNROLL
      for (unsigned j = 0; j < kParts; ++j) {
        const unsigned c = first + 128 * j;
        if (n + r < args.batch && c < width) {
          StoreFour(to + (n + r) * width + c, rows[r].part[j]);
        }
      }
    }
  };
  if (args.norm_first && args.branch != nullptr) store(args.x);
  if (args.weight != nullptr) NormalizeRows(tile, width, args.eps, args.weight, args.bias, rows);
  if (args.next_weight != nullptr) {
    NormalizeRows(tile, width, args.eps, args.next_weight, args.next_bias, rows);
  }
  if (!args.norm_first) store(args.x);
  if (args.in != nullptr) store(static_cast<T*>(args.in));
  if (args.out != nullptr) store(args.out);
}

LINNET_TILE float Gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * 0.70710678f)); }

// Four numbers per thread.
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
