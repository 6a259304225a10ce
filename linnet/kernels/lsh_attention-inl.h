// The Highway body of lsh_attention.h, compiled once for each instruction set.
//
// A place is a position's rank after the sort by bucket. A query sees a key if it attends to it.
// The places of a round are processed in blocks of queries. The keys that the queries of a block
// see form one run of places, which is processed in blocks of keys. Each block gathers its rows
// once. Keys (and in the backward, values) are packed as transposed panels two vectors wide, in
// which one dimension of adjacent keys is contiguous. Rows that are added up with weights are
// packed as panels of rows. All expensive work is then done by the tiles of
// attention_tiles-inl.h. Each tile adds its results to the rows of the output (or gradient) at
// their positions. So these rows also accumulate over the rounds.
//
// The terms of a row's sums are added round by round, and within a round in the order of places.
// The blocks depend on the shapes alone, so the results do not depend on the number of slots.

// Block sizes, the same on every target.
#ifndef LINNET_KERNELS_LSH_ATTENTION_BLOCKS_
#define LINNET_KERNELS_LSH_ATTENTION_BLOCKS_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "linnet/kernels/lsh_attention.h"

namespace linnet::kernels {

// Keys per block: one block holds all keys that a block of queries sees, if chunks have at most 96
// places.
inline constexpr size_t kLshKeys = 192;
// Maximum queries per block. A block consists of whole chunks, if a chunk fits.
inline constexpr size_t kLshForwardQueries = 128;
inline constexpr size_t kLshBackwardQueries = 96;

// Number of queries per block if the maximum is `most`.
inline size_t LshBlock(const LshAttentionOptions& options, size_t most) {
  return options.chunk <= most ? most / options.chunk * options.chunk : most;
}

// Number of valid positions of sequence n.
inline size_t LshValid(const LshAttentionShape& shape, const int64_t* lengths, size_t n) {
  if (!lengths) return shape.length;
  return std::min(shape.length, static_cast<size_t>(std::max<int64_t>(lengths[n], 0)));
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LSH_ATTENTION_BLOCKS_

#if defined(LINNET_KERNELS_LSH_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_LSH_ATTENTION_INL_H_
#undef LINNET_KERNELS_LSH_ATTENTION_INL_H_
#else
#define LINNET_KERNELS_LSH_ATTENTION_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "linnet/kernels/attention_tiles-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {
namespace lsh {

using U32 = hn::RebindToUnsigned<F32>;

// Rows of a tile. If their number divides the chunk length, no tile crosses a chunk border. A
// tile's sums take 16 of 32 registers with AVX-512, and 8 of 16 with AVX2.
inline constexpr size_t kTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
// Weights are written for whole groups of this many keys, so that a tile of keys reads only weights
// that have been written.
inline constexpr size_t kGrain = std::max(kTileLanes, kTileRows);
static_assert(kLshKeys % kGrain == 0 && kGrain % kTileRows == 0 && kLshKeys % kTileWidth == 0);

// Floats from one row of weights to the next: a block of keys and one more cache line. Without that
// line, rows would be 12 lines apart and use only a quarter of the sets of the first-level cache.
inline constexpr size_t kStride = kLshKeys + 16;

// A table, because hn::Iota fills its lanes one by one.
alignas(64) inline constexpr uint32_t kIota[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                   8, 9, 10, 11, 12, 13, 14, 15};

// A weight is 2^score. Scores up to this magnitude need no running maximum: 2^30, summed over a
// million positions and multiplied by values up to 1e22, stays finite.
// |score| <= |q| log2(e) / sqrt(D), because keys have length 1.
inline constexpr float kBound = 30;
// Lower bound of |q|^2.
inline constexpr float kLeastSquare = 1e-24f;

// The forward's buffers for one head.
template <typename Int, typename Float>
struct Kept {
  Int *order, *code;  // [R, L] and [L, R]
  // [L] each. base_i is 0, or the running maximum of the scores of query i if they may exceed
  // kBound. sum_i is the sum of the weights 2^(score_ij - base_i), until the last round replaces it
  // by its reciprocal. Then p_ij = 2^(score_ij - base_i) sum_i for each key j that i sees. If i
  // sees no key, sum_i = 0.
  Float *base, *sum, *inverse_norm;

  Kept(const LshAttentionShape& shape, Int* places, Float* sums, size_t n, size_t h) {
    const size_t head = n * shape.heads + h, rows = shape.batch * shape.heads * shape.length;
    order = places + head * shape.rounds * shape.length;
    code = places + rows * shape.rounds + head * shape.rounds * shape.length;
    base = sums + head * shape.length;
    sum = base + rows;
    inverse_norm = sum + rows;
  }
};

inline float Log2Scale(const LshAttentionShape& shape) {
  return kLog2E / std::sqrt(static_cast<float>(shape.dim));
}

// Divides the vectors begin .. end - 1 into groups of four, two or one, and calls
// body(first vector, constant group size) for each group.
template <class Body>
HWY_INLINE void ForFours(size_t begin, size_t end, Body body) {
  size_t i = begin;
  for (; i + 4 <= end; i += 4) body(i, std::integral_constant<size_t, 4>());
  if (i + 2 <= end) body(i, std::integral_constant<size_t, 2>()), i += 2;
  if (i < end) body(i, std::integral_constant<size_t, 1>());
}

// to[r, j] = a_r . b_j for the rows a_r of a tile and the keys b_j in vectors begin .. end - 1. The
// panels of `a` are a_panel floats apart; `b` consists of transposed panels.
HWY_NOINLINE void Dots(size_t dim, const float* a, size_t a_panel, const float* b, size_t begin,
                       size_t end, float* HWY_RESTRICT to) {
  const auto vectors_at = [&](size_t j, auto vectors) HWY_ATTR {
    const float* b_j = b + j / 2 * dim * kTileWidth + j % 2 * kTileLanes;
    DotTile<kTileRows, decltype(vectors)::value, kStride>(dim, a, a_panel, b_j,
                                                          to + j * kTileLanes);
  };
  size_t j = begin;
  if (j % 2 != 0 && j < end) vectors_at(j++, std::integral_constant<size_t, 1>());
  for (; j + 2 <= end; j += 2) vectors_at(j, std::integral_constant<size_t, 2>());
  if (j < end) vectors_at(j, std::integral_constant<size_t, 1>());
}

// Packs the rows at positions at[0 .. count) into panels of `capacity` rows. Multiplies each row by
// `scale` and, unless `factors` is null, by factors[position]. Pads with zeros to a multiple of a
// tile's rows and of a panel's width.
void PackPanels(const AttentionRows<const float>& rows, const int32_t* at, size_t count, size_t dim,
                float scale, const float* factors, size_t capacity, float* HWY_RESTRICT to) {
  const F32 d;
  for (size_t row = 0; row < count; ++row) {
    const auto position = static_cast<size_t>(at[row]);
    const float* from = rows.At(position);
    const Vec factor = hn::Set(d, factors ? scale * factors[position] : scale);
    for (size_t c = 0; c < TileWidths(dim); c += kTileLanes) {
      const Vec x =
          c < dim ? hn::Mul(factor, LoadN(from + c, std::min(kTileLanes, dim - c))) : hn::Zero(d);
      const size_t panel = c / kTileWidth * kTileWidth;
      hn::Store(x, d, to + panel * capacity + row * kTileWidth + (c - panel));
    }
  }
  for (size_t row = count; row % kTileRows != 0; ++row) {
    for (size_t c = 0; c < TileWidths(dim); c += kTileWidth) {
      std::memset(to + c * capacity + row * kTileWidth, 0, kTileWidth * sizeof(float));
    }
  }
}

// Packs the rows at positions at[0 .. count) into transposed panels, [dim][kTileWidth] each.
// Multiplies each row by factors[position], unless `factors` is null. Pads the last panel with
// zeros. `zeros` is a row of zeros.
void PackTransposed(const AttentionRows<const float>& rows, const int32_t* at, size_t count,
                    size_t dim, const float* factors, const float* zeros, float* HWY_RESTRICT to) {
  for (size_t j = 0; j < count; j += kTileWidth, to += dim * kTileWidth) {
    const float* from[kTileWidth];
    float factor[kTileWidth];
    for (size_t t = 0; t < kTileWidth; ++t) {
      const bool there = j + t < count;
      const size_t position = there ? static_cast<size_t>(at[j + t]) : 0;
      from[t] = there ? rows.At(position) : zeros;
      factor[t] = there && factors ? factors[position] : 1.0f;
    }
    size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
    const Four d;
    constexpr size_t kSide = 4;
    for (size_t t = 0; t < kTileWidth; t += kSide) {
      const auto f0 = hn::Set(d, factor[t]), f1 = hn::Set(d, factor[t + 1]);
      const auto f2 = hn::Set(d, factor[t + 2]), f3 = hn::Set(d, factor[t + 3]);
      float* out = to + t;
      for (c = 0; c + kSide <= dim; c += kSide, out += kSide * kTileWidth) {
        const auto r0 = hn::Mul(f0, hn::LoadU(d, from[t] + c));
        const auto r1 = hn::Mul(f1, hn::LoadU(d, from[t + 1] + c));
        const auto r2 = hn::Mul(f2, hn::LoadU(d, from[t + 2] + c));
        const auto r3 = hn::Mul(f3, hn::LoadU(d, from[t + 3] + c));
        StoreTransposed(r0, r1, r2, r3, out);
      }
    }
#endif
    for (size_t t = 0; t < kTileWidth; ++t) {
      for (size_t i = c; i < dim; ++i) to[i * kTileWidth + t] = factor[t] * from[t][i];
    }
  }
}

// The queries at places first .. first + count - 1 of a round. Query i sees the run of places
// lo[i] .. hi[i] - 1: the places of its bucket in its own chunk and in the chunk before; if causal,
// only those up to its own place. The run always includes the query's own place, which Tile::Hide()
// removes. lo and hi never decrease with i, and hi[i] > first + i.
struct Queries {
  size_t first, count;
  const int32_t* order;  // [L], the position at each place of the round
  const int32_t* code;   // [L, R]
  size_t round, rounds;
  uint32_t lo[kLshForwardQueries], hi[kLshForwardQueries];

  template <typename Int, typename Float>
  Queries(const LshAttentionShape& shape, const LshAttentionOptions& options,
          const Kept<Int, Float>& kept, size_t valid, size_t round, size_t first, size_t count)
      : first(first),
        count(count),
        order(kept.order + round * shape.length),
        code(kept.code),
        round(round),
        rounds(shape.rounds) {
    const size_t chunk = options.chunk, last = first + count;
    uint32_t chunk_of[kLshForwardQueries];
    int32_t bucket[kLshForwardQueries];  // 2 x bucket: the code without the chunk
    chunk_of[0] = 0, bucket[0] = 0;      // overwritten below, because count >= 1
    size_t c = first / chunk;
    for (size_t i = 0, next = (c + 1) * chunk; i < count; ++i) {
      if (first + i == next) ++c, next += chunk;
      chunk_of[i] = static_cast<uint32_t>(c);
      bucket[i] = CodeOf(first + i) - static_cast<int32_t>(c);
    }
    // The first place of the chunk before query i's own, or 0.
    const auto window = [&](size_t i) {
      return chunk_of[i] == 0 ? 0 : (chunk_of[i] - size_t{1}) * chunk;
    };
    // Searches the places before the block for the start of the first query's bucket. A second
    // search, below, goes through the places after the block for the end of the last query's
    // bucket.
    size_t begin = first;
    const size_t own = chunk_of[0] * chunk;
    while (begin > window(0) &&
           CodeOf(begin - 1) - static_cast<int32_t>(chunk_of[0] - (begin <= own ? 1 : 0)) ==
               bucket[0]) {
      --begin;
    }
    for (size_t i = 0; i < count; ++i) {
      if (i > 0 && bucket[i] != bucket[i - 1]) begin = first + i;
      lo[i] = static_cast<uint32_t>(std::max(begin, window(i)));
    }
    if (options.causal) {
      for (size_t i = 0; i < count; ++i) hi[i] = static_cast<uint32_t>(first + i + 1);
      return;
    }
    size_t end = last;
    const size_t chunk_end = std::min(valid, (c + 1) * chunk);
    while (end < chunk_end && CodeOf(end) - static_cast<int32_t>(c) == bucket[count - 1]) ++end;
    for (size_t i = count; i-- > 0;) {
      if (i + 1 < count && bucket[i] != bucket[i + 1]) end = first + i + 1;
      hi[i] = static_cast<uint32_t>(std::min(end, (chunk_of[i] + size_t{1}) * chunk));
    }
  }

  int32_t CodeOf(size_t place) const {
    return code[static_cast<size_t>(order[place]) * rounds + round];
  }
  size_t Position(size_t i) const { return static_cast<size_t>(order[first + i]); }
  // Prefetches the rows of the tile of queries that starts at query i.
  void Prefetch(size_t i, const AttentionRows<float>& rows, size_t width) const {
    for (const size_t last = std::min(count, i + kTileRows); i < last; ++i) {
      const float* row = rows.At(Position(i));
      for (size_t c = 0; c < width; c += 16) hwy::Prefetch(row + c);
    }
  }
  // [KeysBegin(), KeysEnd()) covers the places that any query of the block sees. KeysBegin() is a
  // whole number of panels after the start of a chunk (the chunk before the first query's chunk).
  // So panels align with chunks if a chunk is a whole number of panels.
  size_t KeysBegin(size_t chunk) const {
    const size_t own = first / chunk * chunk, window = own < chunk ? 0 : own - chunk;
    return window + (lo[0] - window) / kTileWidth * kTileWidth;
  }
  size_t KeysEnd() const { return hi[count - 1]; }
};

// Keys at places begin .. begin + count - 1 of a round, and their codes in earlier rounds.
struct Keys {
  size_t begin, count;
  const int32_t* codes;  // [round][kStride]

  Keys(const Queries& queries, size_t begin, size_t count, int32_t* codes)
      : begin(begin), count(count), codes(codes) {
    for (size_t j = 0; j < count; ++j) {
      const auto* from =
          queries.code + static_cast<size_t>(queries.order[begin + j]) * queries.rounds;
      for (size_t r = 0; r < queries.round; ++r) codes[r * kStride + j] = from[r];
    }
  }
};

// The keys of a block that a tile of queries sees.
struct Tile {
  // For each row (query): the run of keys that it sees, and its own place. Both are relative to the
  // first place of the block of keys.
  uint32_t lo[kTileRows] = {}, length[kTileRows] = {}, self[kTileRows] = {};
  const int32_t* codes[kTileRows];
  size_t earlier;     // rounds before this one
  size_t rows;        // rows in use
  size_t begin, end;  // vectors of keys, in whole groups of kGrain keys; empty if no key is seen
  size_t keys_begin, keys_end;  // keys that at least one row sees, relative to the block

  // The tile that starts at query `first` of the block.
  Tile(const Queries& queries, size_t first, const Keys& keys)
      : earlier(queries.round), rows(std::min(kTileRows, queries.count - first)) {
    const size_t last = keys.begin + keys.count;
    const auto inside = [&](size_t place) {
      return static_cast<uint32_t>(std::clamp(place, keys.begin, last) - keys.begin);
    };
    for (size_t r = 0; r < rows; ++r) {
      lo[r] = inside(queries.lo[first + r]);
      length[r] = inside(queries.hi[first + r]) - lo[r];
      self[r] = static_cast<uint32_t>(queries.first + first + r - keys.begin);
      codes[r] = queries.code + queries.Position(first + r) * queries.rounds;
    }
    keys_begin = lo[0], keys_end = lo[rows - 1] + length[rows - 1];
    for (size_t r = rows; r < kTileRows; ++r) codes[r] = codes[0];
    begin = keys_begin / kGrain * (kGrain / kTileLanes);
    end = keys_begin < keys_end ? RoundUp(keys_end, kGrain) / kTileLanes : begin;
  }

  // The range of vectors that contain keys of row r's run.
  size_t Begin(size_t r) const { return length[r] == 0 ? begin : lo[r] / kTileLanes; }
  size_t End(size_t r) const {
    return length[r] == 0 ? begin : (lo[r] + length[r] + kTileLanes - 1) / kTileLanes;
  }

  // x holds one lane for each key in the kCount vectors of keys from vector j on. Keeps the lanes
  // of keys that row r sees in this round but in no earlier round, and sets the other lanes to
  // `hidden`.
  template <size_t kCount>
  HWY_INLINE void Hide(size_t r, size_t j, const int32_t* key_codes, Vec hidden,
                       Vec (&x)[kCount]) const {
    const F32 d;
    const U32 du;
    using Word = hn::Vec<U32>;
    const Word one = hn::Set(du, 1);
    // least: the minimum, over the earlier rounds, of 2 and the query's code minus the key's code.
    // Differences are unsigned: negative ones wrap around to large numbers. A difference of 0 or 1
    // means that the query saw the key in that round: same bucket, and same or preceding chunk.
    Word least[kCount];
    Unrolled<kCount>([&](auto v) HWY_ATTR { least[v] = hn::Set(du, 2); });
    const int32_t* from = key_codes + j * kTileLanes;
    for (size_t i = 0; i < earlier; ++i, from += kStride) {
      const Word own = hn::Set(du, static_cast<uint32_t>(codes[r][i]));
      Unrolled<kCount>([&](auto v) HWY_ATTR {
        const auto* words = reinterpret_cast<const uint32_t*>(from + v * kTileLanes);
        least[v] = hn::Min(least[v], hn::Sub(own, hn::Load(du, words)));
      });
    }
    const Word first = hn::Set(du, lo[r]), many = hn::Set(du, length[r]);
    const Word own = hn::Set(du, self[r]), iota = hn::Load(du, kIota);
    Unrolled<kCount>([&](auto v) HWY_ATTR {
      const Word place = hn::Add(iota, hn::Set(du, static_cast<uint32_t>((j + v) * kTileLanes)));
      const auto seen = hn::And(hn::And(hn::Lt(hn::Sub(place, first), many), hn::Ne(place, own)),
                                hn::Gt(least[v], one));
      x[v] = hn::IfThenElse(hn::RebindMask(d, seen), x[v], hidden);
    });
  }
};

// Sets vectors begin .. end - 1 of a row to 0.
HWY_INLINE void Clear(float* row, size_t begin, size_t end) {
  for (size_t j = begin; j < end; ++j) hn::Store(hn::Zero(F32()), F32(), row + j * kTileLanes);
}

// Turns a tile's scores into weights 2^(score - base), in place; sums[r] receives the sum of row r.
// If the scores of row r may exceed kBound (not row_bounded[r]), its base is a running maximum that
// continues from earlier blocks, and rescale[r] receives the factor by which the row's earlier
// results must be multiplied. `bounded`: the tile has no such rows.
HWY_NOINLINE void Weights(const Tile& tile, const int32_t* key_codes, bool bounded,
                          const bool* row_bounded, float* HWY_RESTRICT weights,
                          float* HWY_RESTRICT bases, float* HWY_RESTRICT rescale,
                          float* HWY_RESTRICT sums) {
  const F32 d;
  const Vec zero = hn::Zero(d), nothing = hn::Set(d, kNothing);
  alignas(64) float totals[kTileRows * kTileLanes];
  if (!bounded) {
    float change[kTileRows + kTileLanes] = {};
    for (size_t r = 0; r < kTileRows; ++r) {
      float* row = weights + r * kStride;
      Vec largest = nothing;
      ForFours(tile.Begin(r), tile.End(r), [&](size_t j, auto count) HWY_ATTR {
        constexpr size_t kCount = decltype(count)::value;
        Vec x[kCount];
        Unrolled<kCount>([&](auto v) HWY_ATTR { x[v] = hn::Load(d, row + (j + v) * kTileLanes); });
        tile.Hide(r, j, key_codes, nothing, x);
        Unrolled<kCount>([&](auto v) HWY_ATTR {
          largest = hn::Max(x[v], largest);
          hn::Store(x[v], d, row + (j + v) * kTileLanes);
        });
      });
      if (row_bounded[r]) continue;
      const float before = bases[r];
      const float now = std::max(before, hn::GetLane(hn::MaxOfLanes(d, largest)));
      bases[r] = now;
      change[r] = before == now ? 0.0f : before - now;
    }
    for (size_t r = 0; r < kTileRows; r += kTileLanes) {
      Vec x[1] = {hn::LoadU(d, change + r)};
      Exp2(x);
      float some[kTileLanes];
      hn::StoreU(x[0], d, some);
      for (size_t i = r; i < std::min(kTileRows, r + kTileLanes); ++i) rescale[i] = some[i - r];
    }
  }
  for (size_t r = 0; r < kTileRows; ++r) {
    float* row = weights + r * kStride;
    const Vec base = hn::Set(d, bases[r] == kNothing ? 0.0f : bases[r]);
    Vec sum = zero;
    ForFours(tile.Begin(r), tile.End(r), [&](size_t j, auto count) HWY_ATTR {
      constexpr size_t kCount = decltype(count)::value;
      Vec x[kCount];
      Unrolled<kCount>(
          [&](auto v) HWY_ATTR { x[v] = hn::Sub(hn::Load(d, row + (j + v) * kTileLanes), base); });
      Exp2(x);
      if (bounded) tile.Hide(r, j, key_codes, zero, x);
      Unrolled<kCount>([&](auto v) HWY_ATTR {
        sum = hn::Add(sum, x[v]);
        hn::Store(x[v], d, row + (j + v) * kTileLanes);
      });
    });
    Clear(row, tile.begin, tile.Begin(r));
    Clear(row, tile.End(r), tile.end);
    hn::Store(sum, d, totals + r * kTileLanes);
  }
  for (size_t r = 0; r < kTileRows; r += 4) {
    const float* at = totals + r * kTileLanes;
    StoreSums(hn::Load(d, at), hn::Load(d, at + kTileLanes), hn::Load(d, at + 2 * kTileLanes),
              hn::Load(d, at + 3 * kTileLanes), sums + r);
  }
}

// to_r = to_r rescale[r] + sum_j w_rj b_j over keys begin .. end - 1, for the rows r of a tile;
// to[r] points to row r. If `begins`, the first term is left out.
HWY_NOINLINE void SumKeys(size_t begin, size_t end, size_t width, bool begins, const float* weights,
                          const float* b, const float* HWY_RESTRICT rescale,
                          float* const* HWY_RESTRICT to) {
  const F32 d;
  ForPanels(width, [&](size_t c, auto vectors) HWY_ATTR {
    const auto used = [&](size_t v) {
      const size_t at = c + v * kTileLanes;
      return at < width ? std::min(kTileLanes, width - at) : 0;
    };
    SumTile<kTileRows, decltype(vectors)::value, kStride, 1>(
        end - begin, weights + begin, b + c * kLshKeys + begin * kTileWidth,
        [&](size_t r, size_t v) HWY_ATTR {
          if (begins) return hn::Zero(d);
          return hn::Mul(LoadN(to[r] + c + v * kTileLanes, used(v)), hn::Set(d, rescale[r]));
        },
        [&](size_t r, size_t v, Vec x)
            HWY_ATTR { StoreN(x, to[r] + c + v * kTileLanes, used(v)); });
  });
}

// to_j = sum_i w_ij x_i over `count` queries, for a tile of keys. w points to the tile's first
// query and key in the weights or gradients; x points to the first query's row of the first panel.
HWY_NOINLINE void SumQueries(size_t count, size_t columns, const float* w, const float* x,
                             float* HWY_RESTRICT to) {
  const F32 d;
  ForPanels(columns, [&](size_t c, auto vectors) HWY_ATTR {
    float* at = to + c * kLshKeys;
    SumTile<kTileRows, decltype(vectors)::value, 1, kStride>(
        count, w, x + c * kLshBackwardQueries, [&](size_t, size_t) HWY_ATTR { return hn::Zero(d); },
        [&](size_t r, size_t v, Vec sum)
            HWY_ATTR { hn::Store(sum, d, at + r * kTileWidth + v * kTileLanes); });
  });
}

// In place, turns `weights` from a tile's scores into p_ij, and `grads` from v_j . grad_out_i into
// ds_ij sqrt(D). Both become 0 for keys that are not seen.
HWY_NOINLINE void GradWeights(const Tile& tile, const int32_t* key_codes,
                              const float* HWY_RESTRICT bases, const float* HWY_RESTRICT factors,
                              const float* HWY_RESTRICT deltas, float* HWY_RESTRICT weights,
                              float* HWY_RESTRICT grads) {
  const F32 d;
  for (size_t r = 0; r < kTileRows; ++r) {
    float* weight_row = weights + r * kStride;
    float* grad_row = grads + r * kStride;
    const Vec base = hn::Set(d, bases[r]), factor = hn::Set(d, factors[r]);
    const Vec delta = hn::Set(d, deltas[r]), nothing = hn::Set(d, kNothing);
    ForFours(tile.Begin(r), tile.End(r), [&](size_t j, auto count) HWY_ATTR {
      constexpr size_t kCount = decltype(count)::value;
      Vec x[kCount];
      Unrolled<kCount>([&](auto v) HWY_ATTR {
        x[v] = hn::Sub(hn::Load(d, weight_row + (j + v) * kTileLanes), base);
      });
      // Hide before the exponential: the score of a hidden key may be far above the base.
      tile.Hide(r, j, key_codes, nothing, x);
      Exp2(x);
      Unrolled<kCount>([&](auto v) HWY_ATTR {
        const size_t at = (j + v) * kTileLanes;
        const Vec weight = hn::Mul(x[v], factor);
        hn::Store(hn::Mul(weight, hn::Sub(hn::Load(d, grad_row + at), delta)), d, grad_row + at);
        hn::Store(weight, d, weight_row + at);
      });
    });
    for (float* row : {weight_row, grad_row}) {
      Clear(row, tile.begin, tile.Begin(r));
      Clear(row, tile.End(r), tile.end);
    }
  }
}

HWY_INLINE float SumOfRow(Vec x) { return hn::GetLane(hn::SumOfLanes(F32(), x)); }

// sum_c a_c b_c
HWY_INLINE float Dot(const float* a, const float* b, size_t n) {
  Vec sum = hn::Zero(F32());
  ForVectors(n, [&](size_t c, size_t used)
                    HWY_ATTR { sum = hn::MulAdd(LoadN(a + c, used), LoadN(b + c, used), sum); });
  return SumOfRow(sum);
}

// The arrays that LshHash() and LshSort() keep in a slot's scratch.
struct HashPieces {
  float *q, *planes, *zeros;
  int32_t* counts;

  HashPieces(const LshAttentionShape& shape, const LshAttentionOptions& options, SlotPieces& slot)
      : q(slot.Take(kTileWidth * shape.dim)),
        planes(slot.Take(kTileRows * shape.dim)),
        zeros(slot.Take(shape.dim)),
        counts(slot.Take<int32_t>(options.buckets + 1)) {}
};

// to[r, t] = sum_k a[k * stride + r] b[k, t]: the products of a tile of kTileRows planes with a
// panel of kTileWidth positions. Not inlined, so that the caller's values take no registers from
// the sums.
HWY_NOINLINE void PlaneProducts(size_t dim, const float* a, size_t stride, const float* b,
                                float* HWY_RESTRICT to) {
  const F32 d;
  Vec sum[kTileRows * 2];
  Unrolled<kTileRows * 2>([&](auto i) HWY_ATTR { sum[i] = hn::Zero(d); });
  for (size_t k = 0; k < dim; ++k, a += stride, b += kTileWidth) {
    const Vec b0 = hn::Load(d, b), b1 = hn::Load(d, b + kTileLanes);
    Unrolled<kTileRows>([&](auto r) HWY_ATTR {
      const Vec a_r = hn::Set(d, a[r]);
      sum[r * 2] = hn::MulAdd(a_r, b0, sum[r * 2]);
      sum[r * 2 + 1] = hn::MulAdd(a_r, b1, sum[r * 2 + 1]);
    });
  }
  Unrolled<kTileRows * 2>([&](auto i) HWY_ATTR { hn::Store(sum[i], d, to + i * kTileLanes); });
}

// Writes the bucket of each position of a panel: the index of the first maximum of [x; -x], where
// x = q R with planes R [dim, half]. If x contains a NaN, the bucket is unspecified. `tail` is
// memory for a copy of planes that do not fill a tile.
HWY_NOINLINE void PanelBuckets(size_t dim, size_t half, const float* q, const float* planes,
                               float* HWY_RESTRICT tail, int32_t* HWY_RESTRICT buckets) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  using Words = hn::Vec<decltype(di)>;
  const Vec nothing = hn::Set(d, kNothing);
  alignas(64) float products[kTileRows * kTileWidth];
  Vec most[2] = {nothing, nothing}, least[2] = {hn::Neg(nothing), hn::Neg(nothing)};
  Words at_most[2] = {hn::Zero(di), hn::Zero(di)}, at_least[2] = {hn::Zero(di), hn::Zero(di)};
  for (size_t c = 0; c < half; c += kTileRows) {
    const float* a = planes + c;
    size_t stride = half;
    if (c + kTileRows > half) {  // repeat the last plane; a repetition never wins
      for (size_t k = 0; k < dim; ++k) {
        for (size_t r = 0; r < kTileRows; ++r) {
          tail[k * kTileRows + r] = planes[k * half + std::min(c + r, half - 1)];
        }
      }
      a = tail, stride = kTileRows;
    }
    PlaneProducts(dim, a, stride, q, products);
    Unrolled<kTileRows>([&](auto r) HWY_ATTR {
      const Words plane = hn::Set(di, static_cast<int32_t>(c + r));
      Unrolled<2>([&](auto v) HWY_ATTR {
        const Vec x = hn::Load(d, products + (r * 2 + v) * kTileLanes);
        const auto more = hn::Gt(x, most[v]), less = hn::Lt(x, least[v]);
        most[v] = hn::IfThenElse(more, x, most[v]);
        least[v] = hn::IfThenElse(less, x, least[v]);
        at_most[v] = hn::IfThenElse(hn::RebindMask(di, more), plane, at_most[v]);
        at_least[v] = hn::IfThenElse(hn::RebindMask(di, less), plane, at_least[v]);
      });
    });
  }
  const Words opposite = hn::Set(di, static_cast<int32_t>(half));
  Unrolled<2>([&](auto v) HWY_ATTR {
    const auto first = hn::Ge(most[v], hn::Neg(least[v]));
    hn::StoreU(
        hn::IfThenElse(hn::RebindMask(di, first), at_most[v], hn::Add(opposite, at_least[v])), di,
        buckets + v * kTileLanes);
  });
}

}  // namespace lsh

// For positions first .. first + count - 1 of one head: writes the buckets of all rounds (which
// LshSort() replaces by codes), inverse norms, and initial bases and sums. Writes zeros to out at
// positions that are not valid.
void LshHash(const LshAttentionShape& shape, const LshAttentionOptions& options,
             const LshAttentionForwardArgs& args, float* scratch, size_t n, size_t h, size_t first,
             size_t count) {
  using namespace lsh;
  const F32 d;
  const Kept kept(shape, args.places, args.sums, n, h);
  const AttentionRows q_rows(args.q, n, h);
  const AttentionRows out_rows(args.out, n, h);
  SlotPieces slot(scratch);
  const HashPieces at(shape, options, slot);
  const size_t half = options.buckets / 2, valid = LshValid(shape, args.lengths, n);
  const Vec scale = hn::Set(d, Log2Scale(shape)), bound = hn::Set(d, kBound);
  const Vec least = hn::Set(d, kLeastSquare), one = hn::Set(d, 1.0f);
  const size_t last = std::min(valid, first + count);
  std::fill_n(at.zeros, shape.dim, 0.0f);
  for (size_t begin = first; begin < last; begin += kTileWidth) {
    const size_t positions = std::min(kTileWidth, last - begin);
    int32_t own[kTileWidth];
    for (size_t i = 0; i < kTileWidth; ++i) own[i] = static_cast<int32_t>(begin + i);
    PackTransposed(q_rows, own, positions, shape.dim, nullptr, at.zeros, at.q);
    for (size_t i = 0; i < positions; i += kTileLanes) {
      const size_t used = std::min(kTileLanes, positions - i);
      Vec square = hn::Zero(d);
      for (size_t c = 0; c < shape.dim; ++c) {
        const Vec x = hn::Load(d, at.q + c * kTileWidth + i);
        square = hn::MulAdd(x, x, square);
      }
      square = hn::IfThenElse(hn::Lt(square, least), least, square);
      const Vec inverse = hn::Div(one, hn::Sqrt(square));
      const auto bounded = hn::Le(scale, hn::Mul(bound, inverse));
      StoreN(inverse, kept.inverse_norm + begin + i, used);
      StoreN(hn::IfThenElse(bounded, hn::Zero(d), hn::Set(d, kNothing)), kept.base + begin + i,
             used);
      StoreN(hn::Zero(d), kept.sum + begin + i, used);
    }
    int32_t buckets[kTileWidth] = {};
    for (size_t round = 0; round < shape.rounds; ++round) {
      if (half > 0) {
        PanelBuckets(shape.dim, half, at.q, args.planes + round * shape.dim * half, at.planes,
                     buckets);
      }
      int32_t* code = kept.code + begin * shape.rounds + round;
      for (size_t i = 0; i < positions; ++i) code[i * shape.rounds] = buckets[i];
    }
  }
  for (size_t i = std::max(first, valid); i < first + count; ++i) {
    std::fill_n(out_rows.At(i), shape.value_dim, 0.0f);
  }
}

// Sorts a round of one head by bucket: writes its order and codes.
void LshSort(const LshAttentionShape& shape, const LshAttentionOptions& options,
             const LshAttentionForwardArgs& args, float* scratch, size_t n, size_t h,
             size_t round) {
  using namespace lsh;
  const Kept kept(shape, args.places, args.sums, n, h);
  SlotPieces slot(scratch);
  const HashPieces at(shape, options, slot);
  const size_t valid = LshValid(shape, args.lengths, n), rounds = shape.rounds;
  int32_t* code = kept.code + round;
  int32_t* order = kept.order + round * shape.length;
  std::fill_n(at.counts, options.buckets + 1, 0);
  for (size_t i = 0; i < valid; ++i) ++at.counts[code[i * rounds] + 1];
  for (size_t b = 1; b < options.buckets; ++b) at.counts[b + 1] += at.counts[b];
  const auto chunk = static_cast<uint32_t>(std::min<size_t>(options.chunk, 1u << 30));
  for (size_t i = 0; i < valid; ++i) {
    const int32_t bucket = code[i * rounds];
    const auto place = static_cast<uint32_t>(at.counts[bucket]++);
    order[place] = static_cast<int32_t>(i);
    code[i * rounds] = 2 * bucket + static_cast<int32_t>(place / chunk);
  }
}

namespace lsh {

// The arrays that LshForwardBlock() keeps in a slot's scratch. `nowhere` is the output row of tile
// rows without a query.
struct ForwardPieces {
  float *q, *keys, *values, *weights, *zeros, *nowhere;
  int32_t* codes;

  ForwardPieces(const LshAttentionShape& shape, SlotPieces& slot)
      : q(slot.Take(kLshForwardQueries * TileWidths(shape.dim))),
        keys(slot.Take(kLshKeys * shape.dim)),
        values(slot.Take(kLshKeys * TileWidths(shape.value_dim))),
        weights(slot.Take(kTileRows * kStride)),
        zeros(slot.Take(shape.dim)),
        nowhere(slot.Take(shape.value_dim)),
        codes(slot.Take<int32_t>(shape.rounds * kStride)) {}
};

// Divides the sums of values by the sums of weights. A query that sees no key takes its own value.
HWY_INLINE void FinishQueries(const Queries& queries, const Kept<int32_t, float>& kept,
                              AttentionRows<const float> v_rows, AttentionRows<float> out_rows,
                              size_t value_dim) {
  const F32 d;
  for (size_t i = 0; i < queries.count; ++i) {
    const size_t position = queries.Position(i);
    float& sum = kept.sum[position];
    float* out = out_rows.At(position);
    if (sum == 0.0f) {
      kept.base[position] = 0;
      std::memcpy(out, v_rows.At(position), value_dim * sizeof(float));
      continue;
    }
    sum = 1.0f / sum;
    const Vec factor = hn::Set(d, sum);
    ForVectors(value_dim, [&](size_t c, size_t used) HWY_ATTR {
      StoreN(hn::Mul(LoadN(out + c, used), factor), out + c, used);
    });
  }
}

}  // namespace lsh

// Processes the queries at places first .. first + count - 1 of a round of one head. In the last
// round, also finishes their outputs.
void LshForwardBlock(const LshAttentionShape& shape, const LshAttentionOptions& options,
                     const LshAttentionForwardArgs& args, float* scratch, size_t n, size_t h,
                     size_t round, size_t first, size_t count) {
  using namespace lsh;
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  const size_t valid = LshValid(shape, args.lengths, n);
  if (first >= valid) return;
  const Kept kept(shape, args.places, args.sums, n, h);
  const AttentionRows q_rows(args.q, n, h);
  const AttentionRows v_rows(args.v, n, h);
  const AttentionRows out_rows(args.out, n, h);
  SlotPieces slot(scratch);
  const ForwardPieces at(shape, slot);
  const float scale = Log2Scale(shape);
  const Queries queries(shape, options, kept, valid, round, first, std::min(count, valid - first));
  const int32_t* order = queries.order;
  std::fill_n(at.zeros, dim, 0.0f);
  std::fill_n(at.nowhere, value_dim, 0.0f);
  PackPanels(q_rows, order + first, queries.count, dim, scale, nullptr, kLshForwardQueries, at.q);

  bool begun[kLshForwardQueries / kTileRows] = {};
  const size_t keys_end = queries.KeysEnd();
  for (size_t begin = queries.KeysBegin(options.chunk); begin < keys_end; begin += kLshKeys) {
    const Keys keys(queries, begin, std::min(kLshKeys, keys_end - begin), at.codes);
    PackTransposed(q_rows, order + begin, keys.count, dim, kept.inverse_norm, at.zeros, at.keys);
    PackPanels(v_rows, order + begin, keys.count, value_dim, 1.0f, nullptr, kLshKeys, at.values);
    for (size_t i = 0; i < queries.count; i += kTileRows) {
      const Tile tile(queries, i, keys);
      if (tile.begin == tile.end) continue;
      float bases[kTileRows], rescale[kTileRows], sums[kTileRows];
      float* to[kTileRows];
      bool row_bounded[kTileRows], bounded = true;
      for (size_t r = 0; r < kTileRows; ++r) {
        const bool there = r < tile.rows;
        const size_t position = there ? queries.Position(i + r) : 0;
        to[r] = there ? out_rows.At(position) : at.nowhere;
        bases[r] = there ? kept.base[position] : 0.0f;
        rescale[r] = 1;
        row_bounded[r] = !there || scale <= kBound * kept.inverse_norm[position];
        bounded &= row_bounded[r];
      }
      queries.Prefetch(i + kTileRows, out_rows, value_dim);
      Dots(dim, at.q + i * kTileWidth, kLshForwardQueries * kTileWidth, at.keys, tile.begin,
           tile.end, at.weights);
      Weights(tile, at.codes, bounded, row_bounded, at.weights, bases, rescale, sums);
      const bool begins = round == 0 && !begun[i / kTileRows];
      begun[i / kTileRows] = true;
      SumKeys(tile.keys_begin, tile.keys_end, value_dim, begins, at.weights, at.values, rescale,
              to);
      for (size_t r = 0; r < tile.rows; ++r) {
        const size_t position = queries.Position(i + r);
        kept.base[position] = bases[r];
        kept.sum[position] = kept.sum[position] * rescale[r] + sums[r];
      }
    }
  }

  if (round + 1 == shape.rounds) FinishQueries(queries, kept, v_rows, out_rows, value_dim);
}

// Writes delta and initializes the gradients at positions first .. first + count - 1 of one head:
// to zero, except that grad_v_i = grad_out_i if i sees no key.
void LshBackwardBegin(const LshAttentionShape& shape, const LshAttentionBackwardArgs& args,
                      size_t n, size_t h, size_t first, size_t count) {
  using namespace lsh;
  const Kept kept(shape, args.places, args.sums, n, h);
  const AttentionRows out_rows(args.out, n, h), grad_out_rows(args.grad_out, n, h);
  const AttentionRows grad_q_rows(args.grad_q, n, h), grad_v_rows(args.grad_v, n, h);
  const size_t valid = LshValid(shape, args.lengths, n), value_dim = shape.value_dim;
  float* delta = args.delta + (n * shape.heads + h) * shape.length;
  for (size_t i = first; i < first + count; ++i) {
    float* grad_v = grad_v_rows.At(i);
    std::fill_n(grad_q_rows.At(i), shape.dim, 0.0f);
    delta[i] = i < valid ? Dot(out_rows.At(i), grad_out_rows.At(i), value_dim) : 0.0f;
    if (i < valid && kept.sum[i] == 0.0f) {
      std::memcpy(grad_v, grad_out_rows.At(i), value_dim * sizeof(float));
    } else {
      std::fill_n(grad_v, value_dim, 0.0f);
    }
  }
}

namespace lsh {

// The arrays that LshBackwardBlock() keeps in a slot's scratch. keys_across and values_across are
// transposed panels; q, grad_out, keys, grad_k and grad_v are panels of rows.
struct BackwardPieces {
  float *q, *grad_out, *keys_across, *values_across, *keys, *grad_k, *grad_v, *weights, *grads;
  float *zeros, *nowhere;
  int32_t* codes;

  BackwardPieces(const LshAttentionShape& shape, SlotPieces& slot)
      : q(slot.Take(kLshBackwardQueries * TileWidths(shape.dim))),
        grad_out(slot.Take(kLshBackwardQueries * TileWidths(shape.value_dim))),
        keys_across(slot.Take(kLshKeys * shape.dim)),
        values_across(slot.Take(kLshKeys * shape.value_dim)),
        keys(slot.Take(kLshKeys * TileWidths(shape.dim))),
        grad_k(slot.Take(kLshKeys * TileWidths(shape.dim))),
        grad_v(slot.Take(kLshKeys * TileWidths(shape.value_dim))),
        weights(slot.Take(kLshBackwardQueries * kStride)),
        grads(slot.Take(kLshBackwardQueries * kStride)),
        zeros(slot.Take(std::max(shape.dim, shape.value_dim))),
        nowhere(slot.Take(shape.dim)),
        codes(slot.Take<int32_t>(shape.rounds * kStride)) {}
};

// Adds key j's sums over the block's queries to the gradients of its position. `keys` holds k /
// sqrt(D) in panels, and grad_k holds g_j / ln(2) in the same layout.
HWY_INLINE void AddKey(size_t dim, size_t value_dim, const BackwardPieces& at, size_t j,
                       float inverse_norm, float* grad_q, float* grad_v) {
  const F32 d;
  const auto in_panels = [&](const float* x, size_t c) HWY_ATTR {
    return hn::Load(d,
                    x + c / kTileWidth * kTileWidth * kLshKeys + j * kTileWidth + c % kTileWidth);
  };
  Vec along = hn::Zero(d);  // becomes (k . g_j) sqrt(D) / ln(2)
  if (inverse_norm < 1.0f / std::sqrt(kLeastSquare)) {
    ForVectors(dim, [&](size_t c, size_t) HWY_ATTR {
      along = hn::MulAdd(in_panels(at.keys, c), in_panels(at.grad_k, c), along);
    });
    along = hn::Mul(hn::SumOfLanes(d, along), hn::Set(d, static_cast<float>(dim)));
  }
  const Vec factor = hn::Set(d, kLn2 * inverse_norm);
  ForVectors(dim, [&](size_t c, size_t used) HWY_ATTR {
    const Vec g = hn::NegMulAdd(in_panels(at.keys, c), along, in_panels(at.grad_k, c));
    StoreN(hn::MulAdd(g, factor, LoadN(grad_q + c, used)), grad_q + c, used);
  });
  ForVectors(value_dim, [&](size_t c, size_t used) HWY_ATTR {
    StoreN(hn::Add(in_panels(at.grad_v, c), LoadN(grad_v + c, used)), grad_v + c, used);
  });
}

// Adds the gradients of the keys at places begin .. begin + keys.count - 1, from the weights that
// the queries' tiles have written. The queries that see a tile of keys also form one run of places.
HWY_INLINE void GradientsOfKeys(const Queries& queries, const Keys& keys, size_t begin,
                                const float* inverse_norm, const BackwardPieces& at,
                                AttentionRows<float> grad_q_rows, AttentionRows<float> grad_v_rows,
                                size_t dim, size_t value_dim) {
  size_t from = 0, to = 0;
  for (size_t j = 0; j < keys.count; j += kTileRows) {
    while (from < queries.count && queries.hi[from] <= begin + j) ++from;
    while (to < queries.count && queries.lo[to] < begin + j + kTileRows) ++to;
    if (from >= to) continue;
    SumQueries(to - from, dim, at.grads + from * kStride + j, at.q + from * kTileWidth,
               at.grad_k + j * kTileWidth);
    SumQueries(to - from, value_dim, at.weights + from * kStride + j,
               at.grad_out + from * kTileWidth, at.grad_v + j * kTileWidth);
    for (size_t r = j; r < std::min(keys.count, j + kTileRows); ++r) {
      const auto position = static_cast<size_t>(queries.order[begin + r]);
      AddKey(dim, value_dim, at, r, inverse_norm[position], grad_q_rows.At(position),
             grad_v_rows.At(position));
    }
  }
}

}  // namespace lsh

// Adds the gradient terms of all pairs of a query at places first .. first + count - 1 of a round
// of one head and a key that it sees.
void LshBackwardBlock(const LshAttentionShape& shape, const LshAttentionOptions& options,
                      const LshAttentionBackwardArgs& args, float* scratch, size_t n, size_t h,
                      size_t round, size_t first, size_t count) {
  using namespace lsh;
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  const size_t valid = LshValid(shape, args.lengths, n);
  if (first >= valid) return;
  const Kept kept(shape, args.places, args.sums, n, h);
  const AttentionRows q_rows(args.q, n, h);
  const AttentionRows v_rows(args.v, n, h), grad_out_rows(args.grad_out, n, h);
  const AttentionRows grad_q_rows(args.grad_q, n, h), grad_v_rows(args.grad_v, n, h);
  const float* delta = args.delta + (n * shape.heads + h) * shape.length;
  SlotPieces slot(scratch);
  const BackwardPieces at(shape, slot);
  const Queries queries(shape, options, kept, valid, round, first, std::min(count, valid - first));
  const int32_t* order = queries.order;
  constexpr size_t kPanel = kLshBackwardQueries * kTileWidth;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  std::fill_n(at.zeros, std::max(dim, value_dim), 0.0f);
  std::fill_n(at.nowhere, dim, 0.0f);
  PackPanels(q_rows, order + first, queries.count, dim, Log2Scale(shape), nullptr,
             kLshBackwardQueries, at.q);
  PackPanels(grad_out_rows, order + first, queries.count, value_dim, 1.0f, nullptr,
             kLshBackwardQueries, at.grad_out);

  const size_t keys_end = queries.KeysEnd();
  for (size_t begin = queries.KeysBegin(options.chunk); begin < keys_end; begin += kLshKeys) {
    const Keys keys(queries, begin, std::min(kLshKeys, keys_end - begin), at.codes);
    const int32_t* positions = order + begin;
    PackTransposed(q_rows, positions, keys.count, dim, kept.inverse_norm, at.zeros, at.keys_across);
    PackTransposed(v_rows, positions, keys.count, value_dim, nullptr, at.zeros, at.values_across);
    PackPanels(q_rows, positions, keys.count, dim, scale, kept.inverse_norm, kLshKeys, at.keys);
    for (size_t i = 0; i < queries.count; i += kTileRows) {
      const Tile tile(queries, i, keys);
      if (tile.begin == tile.end) continue;
      float bases[kTileRows], factors[kTileRows], deltas[kTileRows], ones[kTileRows];
      float* to[kTileRows];
      for (size_t r = 0; r < kTileRows; ++r) {
        const bool there = r < tile.rows;
        const size_t position = there ? queries.Position(i + r) : 0;
        to[r] = there ? grad_q_rows.At(position) : at.nowhere;
        bases[r] = there ? kept.base[position] : 0.0f;
        factors[r] = there ? kept.sum[position] : 0.0f;
        deltas[r] = there ? delta[position] : 0.0f;
        ones[r] = 1;
      }
      float* weights = at.weights + i * kStride;
      float* grads = at.grads + i * kStride;
      queries.Prefetch(i + kTileRows, grad_q_rows, dim);
      Dots(dim, at.q + i * kTileWidth, kPanel, at.keys_across, tile.begin, tile.end, weights);
      Dots(value_dim, at.grad_out + i * kTileWidth, kPanel, at.values_across, tile.begin, tile.end,
           grads);
      GradWeights(tile, at.codes, bases, factors, deltas, weights, grads);
      SumKeys(tile.keys_begin, tile.keys_end, dim, /*begins=*/false, grads, at.keys, ones, to);
    }
    GradientsOfKeys(queries, keys, begin, kept.inverse_norm, at, grad_q_rows, grad_v_rows, dim,
                    value_dim);
  }
}

size_t LshScratch(const LshAttentionShape& shape, const LshAttentionOptions& options) {
  using namespace lsh;
  SlotPieces hash(nullptr), forward(nullptr), backward(nullptr);
  (void)HashPieces(shape, options, hash);
  (void)ForwardPieces(shape, forward);
  (void)BackwardPieces(shape, backward);
  return std::max({hash.Needed(), forward.Needed(), backward.Needed()});
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LSH_ATTENTION_INL_H_
