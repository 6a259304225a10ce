// The Highway body of softmax_attention.h, compiled once for each instruction set.
//
// Nearly all work is done by the products of attention_tiles-inl.h. Keys and values are packed into
// panels, a block of kKeyBlock at a time: transposed for dot products with queries or gradients,
// untransposed for weighted sums. All queries of a task are multiplied with one block before the
// next is packed.
//
// A query's sums run over the keys in order, in blocks that begin at multiples of kKeyBlock. So
// they do not depend on the other queries or on the thread.

// Block sizes, the same on every target.
#ifndef LINNET_KERNELS_SOFTMAX_ATTENTION_BLOCKS_
#define LINNET_KERNELS_SOFTMAX_ATTENTION_BLOCKS_

#include <algorithm>
#include <cstddef>

#include "linnet/kernels/softmax_attention.h"

namespace linnet::kernels {

// Keys per block: a multiple of every target's tile rows and panel width. The packed keys and
// values of a block stay in the second-level cache; at D = M = 32 they nearly fit in the first.
inline constexpr size_t kKeyBlock = 192;

// Queries per block of the backward. Sums over queries are loaded and stored once per block.
inline constexpr size_t kBackwardQueries = 96;

// Lower bound of the queries per task of the forward, before they are divided evenly among tasks.
// Each task packs all keys that its queries see, which is slow, because each row of a head misses
// the cache and the TLB.
inline constexpr size_t kLeastQueries = 96;
// Upper bound: as many queries as fit, with their sums, in 512 kB of the second-level cache.
inline size_t MaxForwardQueries(const SoftmaxAttentionShape& shape) {
  const size_t most = (size_t{1} << 17) / (shape.dim + shape.value_dim) / kLeastQueries;
  const size_t there_are = (shape.queries + kLeastQueries - 1) / kLeastQueries;
  return std::clamp<size_t>(most, 1, std::clamp<size_t>(there_are, 1, 22)) * kLeastQueries;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SOFTMAX_ATTENTION_BLOCKS_

#if defined(LINNET_KERNELS_SOFTMAX_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_SOFTMAX_ATTENTION_INL_H_
#undef LINNET_KERNELS_SOFTMAX_ATTENTION_INL_H_
#else
#define LINNET_KERNELS_SOFTMAX_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "linnet/kernels/attention_tiles-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Rows of a tile. The accumulators take 24 of 32 registers with AVX-512 and 12 of 16 with AVX2.
inline constexpr size_t kTileRows = HWY_TARGET == HWY_AVX3 ? 12 : HWY_TARGET == HWY_SCALAR ? 4 : 6;
static_assert(kKeyBlock % kTileRows == 0 && kKeyBlock % kTileWidth == 0);
static_assert(kBackwardQueries % kTileRows == 0 && kLeastQueries % kTileRows == 0);

// Floats from one row of weights to the next: an odd number of cache lines, so that the rows spread
// over all sets of the cache.
inline constexpr size_t kWeightStride = kKeyBlock + 16;

// to[r, j] = a_r . b_j for a tile's rows of `a`, whose panels are a_panel floats apart, and `keys`
// keys of `b`, which consists of transposed panels.
HWY_NOINLINE void AttentionDots(size_t dim, const float* a, size_t a_panel, const float* b,
                                size_t keys, float* HWY_RESTRICT to) {
  ForPanels(keys, [&](size_t j, auto vectors) HWY_ATTR {
    DotTile<kTileRows, decltype(vectors)::value, kWeightStride>(dim, a, a_panel, b + j * dim,
                                                                to + j);
  });
}

// Packs `count` rows from `begin` on, times `scale`, into panels of `capacity` rows. Pads with 0
// to a multiple of a tile's rows and of a panel's width.
void PackPanels(const AttentionRows<const float>& rows, size_t begin, size_t count, size_t dim,
                float scale, size_t capacity, float* HWY_RESTRICT to) {
  const F32 d;
  const Vec factor = hn::Set(d, scale);
  for (size_t row = 0; row < count; ++row) {
    const float* from = rows.At(begin + row);
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

// Packs `count` keys from `begin` on into transposed panels, [dim][kTileWidth] each. Pads the last
// panel with zeros.
void PackTransposed(const AttentionRows<const float>& rows, size_t begin, size_t count, size_t dim,
                    float* HWY_RESTRICT to) {
  for (size_t j = 0; j < count; j += kTileWidth, to += dim * kTileWidth) {
    const size_t used = std::min(kTileWidth, count - j);
    size_t c = 0;
#if HWY_TARGET != HWY_SCALAR
    const Four d;
    constexpr size_t kSide = 4;
    for (; c + kSide <= dim && used == kTileWidth; c += kSide) {
      float* out = to + c * kTileWidth;
      for (size_t t = 0; t < kTileWidth; t += kSide, out += kSide) {
        const float* from = rows.At(begin + j + t) + c;
        const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + rows.stride);
        const auto r2 = hn::LoadU(d, from + 2 * rows.stride);
        const auto r3 = hn::LoadU(d, from + 3 * rows.stride);
        StoreTransposed(r0, r1, r2, r3, out);
      }
    }
#endif
    for (size_t t = 0; t < kTileWidth; ++t) {
      for (size_t i = c; i < dim; ++i) {
        to[i * kTileWidth + t] = t < used ? rows.At(begin + j + t)[i] : 0.0f;
      }
    }
  }
}

// The keys that each query of one sequence sees.
struct Visible {
  size_t limit, offset, window;  // no query sees a key from `limit` on
  bool causal;

  Visible(const SoftmaxAttentionShape& shape, const SoftmaxAttentionOptions& options,
          const int64_t* lengths, size_t n)
      : limit(shape.keys),
        offset(std::min(options.offset, shape.keys + options.window)),
        window(options.causal && options.window > 0 ? options.window : SIZE_MAX),
        causal(options.causal) {
    if (lengths) limit = std::min(limit, static_cast<size_t>(std::max<int64_t>(lengths[n], 0)));
    if (causal) limit = std::min(limit, shape.queries + offset);
  }
  // Query i sees the keys First(i) .. Count(i) - 1.
  size_t First(size_t i) const {
    const size_t end = i + offset + 1;
    return end > window ? std::min(end - window, limit) : 0;
  }
  size_t Count(size_t i) const { return causal ? std::min(limit, i + offset + 1) : limit; }
  // Key j < limit is seen by the queries FirstQuery(j) .. EndQuery(j) - 1.
  size_t FirstQuery(size_t j) const { return causal && j > offset ? j - offset : 0; }
  size_t EndQuery(size_t j) const {
    if (window > SIZE_MAX - j) return SIZE_MAX;
    return j + window > offset ? j + window - offset : 0;
  }
  // The first key of the first block of keys that query i processes. This is the block of the first
  // key that i sees or, if i sees no key, the last block.
  size_t Start(size_t i) const {
    return std::min(First(i), std::max<size_t>(limit, 1) - 1) / kKeyBlock * kKeyBlock;
  }
};

// The keys that the rows of a tile see in a block, counted from the block's first key.
struct TileKeys {
  // Row r sees the keys least + firsts[r] .. least + counts[r] - 1; if it sees none, both numbers
  // are 0. `most` is the largest count. `least` is a multiple of a panel's width.
  size_t firsts[kTileRows], counts[kTileRows], least = SIZE_MAX, most = 0;

  TileKeys(const Visible& visible, size_t begin, size_t keys, size_t query, size_t rows) {
    for (size_t r = 0; r < rows; ++r) {
      const size_t first = visible.First(query + r), end = visible.Count(query + r);
      firsts[r] = first > begin ? std::min(keys, first - begin) : 0;
      counts[r] = end > begin ? std::min(keys, end - begin) : 0;
      if (firsts[r] >= counts[r]) firsts[r] = counts[r] = 0;
      if (counts[r] > 0) least = std::min(least, firsts[r] / kTileWidth * kTileWidth);
      most = std::max(most, counts[r]);
    }
    if (most == 0) least = 0;
    for (size_t r = 0; r < rows && least > 0; ++r) {
      if (counts[r] > 0) firsts[r] -= least, counts[r] -= least;
    }
    most -= least;
  }
};

// Walks over a row of `count` weights. Calls whole(j, n) for n full vectors from j on, where n is a
// compile-time constant: 3 while possible, then 1. Calls part(j, mask) for the rest.
template <class Whole, class Part>
HWY_INLINE void ForWeights(size_t count, Whole whole, Part part) {
  const F32 d;
  constexpr size_t kAtOnce = 3;
  size_t j = 0;
  for (; j + kAtOnce * kTileLanes <= count; j += kAtOnce * kTileLanes) {
    whole(j, std::integral_constant<size_t, kAtOnce>());
  }
  for (; j + kTileLanes <= count; j += kTileLanes) whole(j, std::integral_constant<size_t, 1>());
  if (j < count) part(j, hn::FirstN(d, count - j));
}

// Scratch of a forward task; `queries` is a multiple of a tile's rows.
struct ForwardPieces {
  float *q, *out, *max, *sum, *keys, *values, *weights;

  ForwardPieces(const SoftmaxAttentionShape& shape, size_t queries, SlotPieces& slot)
      : q(slot.Take(queries * TileWidths(shape.dim))),
        out(slot.Take(queries * TileWidths(shape.value_dim))),
        max(slot.Take(queries)),
        sum(slot.Take(queries * kTileLanes)),
        keys(slot.Take(kKeyBlock * shape.dim)),
        values(slot.Take(kKeyBlock * TileWidths(shape.value_dim))),
        weights(slot.Take(kTileRows * kWeightStride)) {}
};

// Turns a tile's scores into weights exp2(score - max), in place. max (a float per query) and sum
// (a vector per query) continue from earlier blocks; `rescale` receives the factors for earlier
// results. Row r sees the keys firsts[r] .. counts[r] - 1; the weights of all other keys, up to
// `most`, become 0.
HWY_NOINLINE void AttentionWeights(size_t rows, const size_t* firsts, const size_t* counts,
                                   size_t most, float* HWY_RESTRICT weights,
                                   float* HWY_RESTRICT max, float* HWY_RESTRICT sum,
                                   float* HWY_RESTRICT rescale) {
  const F32 d;
  const Vec nothing = hn::Set(d, kNothing);
  float base[kTileRows], change[kTileRows + kTileLanes] = {};
  for (size_t r = 0; r < rows; ++r) {
    float* row = weights + r * kWeightStride;
    std::fill_n(row, firsts[r], kNothing);
    Vec largest = nothing;
    ForWeights(
        counts[r],
        [&](size_t j, auto vectors) HWY_ATTR {
          Unrolled<decltype(vectors)::value>([&](auto v) HWY_ATTR {
            largest = hn::Max(hn::Load(d, row + j + v * kTileLanes), largest);
          });
        },
        [&](size_t j, auto used) HWY_ATTR {
          largest = hn::Max(hn::IfThenElse(used, hn::Load(d, row + j), nothing), largest);
        });
    const float before = max[r];
    const float now = std::max(before, hn::GetLane(hn::MaxOfLanes(d, largest)));
    max[r] = now;
    base[r] = now == kNothing ? 0.0f : now;
    change[r] = before - base[r];
  }
  for (size_t r = 0; r < kTileRows; r += kTileLanes) {
    Vec x[1] = {hn::LoadU(d, change + r)};
    Exp2(x);
    hn::StoreU(x[0], d, rescale + r);
  }
  for (size_t r = 0; r < rows; ++r) {
    float* row = weights + r * kWeightStride;
    const Vec base_r = hn::Set(d, base[r]);
    Vec sum_r = hn::Mul(hn::Load(d, sum + r * kTileLanes), hn::Set(d, rescale[r]));
    ForWeights(
        counts[r],
        [&](size_t j, auto vectors) HWY_ATTR {
          constexpr size_t kVectors = decltype(vectors)::value;
          Vec x[kVectors];
          Unrolled<kVectors>([&](auto v) HWY_ATTR {
            x[v] = hn::Sub(hn::Load(d, row + j + v * kTileLanes), base_r);
          });
          Exp2(x);
          Unrolled<kVectors>([&](auto v) HWY_ATTR {
            hn::Store(x[v], d, row + j + v * kTileLanes);
            sum_r = hn::Add(sum_r, x[v]);
          });
        },
        [&](size_t j, auto used) HWY_ATTR {
          Vec x[1] = {hn::Sub(hn::Load(d, row + j), base_r)};
          Exp2(x);
          x[0] = hn::IfThenElseZero(used, x[0]);
          hn::Store(x[0], d, row + j);
          sum_r = hn::Add(sum_r, x[0]);
        });
    hn::Store(sum_r, d, sum + r * kTileLanes);
    if (counts[r] < most) std::memset(row + counts[r], 0, (most - counts[r]) * sizeof(float));
  }
}

// out_r = out_r rescale[r] + sum_j w_rj v_j over `most` keys of a block, for a tile's rows.
HWY_NOINLINE void AttentionValues(size_t most, size_t value_dim, const float* weights,
                                  const float* values, const float* HWY_RESTRICT rescale,
                                  float* HWY_RESTRICT out, size_t out_panel) {
  const F32 d;
  ForPanels(value_dim, [&](size_t c, auto vectors) HWY_ATTR {
    float* to = out + c / kTileWidth * out_panel;
    SumTile<kTileRows, decltype(vectors)::value, kWeightStride, 1>(
        most, weights, values + c * kKeyBlock,
        [&](size_t r, size_t v) HWY_ATTR {
          return hn::Mul(hn::Load(d, to + r * kTileWidth + v * kTileLanes), hn::Set(d, rescale[r]));
        },
        [&](size_t r, size_t v, Vec x)
            HWY_ATTR { hn::Store(x, d, to + r * kTileWidth + v * kTileLanes); });
  });
}

// Computes the forward of `queries` queries of one head from `first` on.
void AttentionForwardBlock(const SoftmaxAttentionShape& shape,
                           const SoftmaxAttentionOptions& options,
                           const SoftmaxAttentionForwardArgs& args, float* scratch, size_t n,
                           size_t h, size_t first, size_t queries) {
  const F32 d;
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  const size_t padded = RoundUp(queries, kTileRows);
  const Visible visible(shape, options, args.lengths, n);
  const size_t read = h / shape.readers;
  const AttentionRows q_rows(args.q, n, h), k_rows(args.k, n, read), v_rows(args.v, n, read);
  const AttentionRows out_rows(args.out, n, h);
  SlotPieces slot(scratch);
  const ForwardPieces at(shape, padded, slot);
  const size_t q_panel = padded * kTileWidth;  // floats from one panel to the next, in q and out
  PackPanels(q_rows, first, queries, dim, options.scale * kLog2E, padded, at.q);
  std::fill_n(at.max, padded, kNothing);
  std::memset(at.sum, 0, padded * kTileLanes * sizeof(float));
  std::memset(at.out, 0, padded * TileWidths(value_dim) * sizeof(float));

  const size_t seen = visible.Count(first + queries - 1);
  for (size_t begin = visible.Start(first); begin < seen; begin += kKeyBlock) {
    const size_t keys = std::min(kKeyBlock, seen - begin);
    PackTransposed(k_rows, begin, keys, dim, at.keys);
    PackPanels(v_rows, begin, keys, value_dim, 1.0f, kKeyBlock, at.values);
    const size_t begins_at = visible.FirstQuery(begin);
    size_t tile = begins_at > first ? (begins_at - first) / kTileRows * kTileRows : 0;
    for (; tile < queries && visible.First(first + tile) < begin + keys; tile += kTileRows) {
      const size_t rows = std::min(kTileRows, queries - tile);
      const TileKeys of(visible, begin, keys, first + tile, rows);
      float rescale[kTileRows + kTileLanes];
      AttentionDots(dim, at.q + tile * kTileWidth, q_panel, at.keys + of.least * dim, of.most,
                    at.weights);
      AttentionWeights(rows, of.firsts, of.counts, of.most, at.weights, at.max + tile,
                       at.sum + tile * kTileLanes, rescale);
      AttentionValues(of.most, value_dim, at.weights, at.values + of.least * kTileWidth, rescale,
                      at.out + tile * kTileWidth, q_panel);
    }
  }

  float* log2_sum =
      args.log2_sum ? args.log2_sum + (n * shape.heads + h) * shape.queries + first : nullptr;
  for (size_t row = 0; row < queries; ++row) {
    const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, at.sum + row * kTileLanes)));
    const Vec scale = hn::Set(d, sum == 0.0f ? 0.0f : 1.0f / sum);
    float* to = out_rows.At(first + row);
    ForVectors(value_dim, [&](size_t c, size_t used) HWY_ATTR {
      const size_t panel = c / kTileWidth;
      const float* from = at.out + panel * q_panel + row * kTileWidth + c % kTileWidth;
      StoreN(hn::Mul(hn::Load(d, from), scale), to + c, used);
    });
    if (log2_sum) log2_sum[row] = sum == 0.0f ? kNothing : at.max[row] + std::log2(sum);
  }
}

// Computes delta_i = out_i . grad_out_i for `queries` queries of one head from `first` on.
void AttentionDelta(const SoftmaxAttentionShape& shape, const SoftmaxAttentionBackwardArgs& args,
                    size_t n, size_t h, size_t first, size_t queries) {
  const F32 d;
  const AttentionRows out_rows(args.out, n, h), grad_out_rows(args.grad_out, n, h);
  float* delta = args.delta + (n * shape.heads + h) * shape.queries;
  for (size_t i = first; i < first + queries; ++i) {
    const float *out = out_rows.At(i), *grad_out = grad_out_rows.At(i);
    Vec sum = hn::Zero(d);
    ForVectors(shape.value_dim, [&](size_t c, size_t used) HWY_ATTR {
      sum = hn::MulAdd(LoadN(out + c, used), LoadN(grad_out + c, used), sum);
    });
    delta[i] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// In place, turns a tile's scores (`weights`) into p_ij, and its products v_j . grad_out_i
// (`grads`) into ds_ij. `bases` and `deltas` hold log2_sum and delta of each row. Row r sees the
// keys firsts[r] .. counts[r] - 1; the entries of all other keys, up to `width`, become 0.
HWY_NOINLINE void AttentionGradients(size_t rows, const size_t* firsts, const size_t* counts,
                                     size_t width, const float* HWY_RESTRICT bases,
                                     const float* HWY_RESTRICT deltas, float* HWY_RESTRICT weights,
                                     float* HWY_RESTRICT grads) {
  const F32 d;
  for (size_t r = 0; r < rows; ++r) {
    float* weight_row = weights + r * kWeightStride;
    float* grad_row = grads + r * kWeightStride;
    const Vec base = hn::Set(d, bases[r]), delta = hn::Set(d, deltas[r]);
    // Computes the weights of vectors from j on. Rounding may leave a large score above its own
    // log-sum, so weights are clamped to 1.
    const auto weigh = [&](size_t j, auto& x) HWY_ATTR {
      Unrolled<std::extent_v<std::remove_reference_t<decltype(x)>>>([&](auto v) HWY_ATTR {
        const Vec score = hn::Load(d, weight_row + j + v * kTileLanes);
        x[v] = AtMost(hn::Sub(score, base), hn::Zero(d));
      });
      Exp2(x);
    };
    const auto grad = [&](size_t j, Vec weight) HWY_ATTR {
      return hn::Mul(weight, hn::Sub(hn::Load(d, grad_row + j), delta));
    };
    ForWeights(
        counts[r],
        [&](size_t j, auto vectors) HWY_ATTR {
          Vec x[decltype(vectors)::value];
          weigh(j, x);
          Unrolled<decltype(vectors)::value>([&](auto v) HWY_ATTR {
            const size_t at = j + v * kTileLanes;
            hn::Store(grad(at, x[v]), d, grad_row + at);
            hn::Store(x[v], d, weight_row + at);
          });
        },
        [&](size_t j, auto used) HWY_ATTR {
          Vec x[1];
          weigh(j, x);
          hn::Store(hn::IfThenElseZero(used, grad(j, x[0])), d, grad_row + j);
          hn::Store(hn::IfThenElseZero(used, x[0]), d, weight_row + j);
        });
    if (counts[r] < width) {
      std::memset(weight_row + counts[r], 0, (width - counts[r]) * sizeof(float));
      std::memset(grad_row + counts[r], 0, (width - counts[r]) * sizeof(float));
    }
    std::memset(weight_row, 0, firsts[r] * sizeof(float));
    std::memset(grad_row, 0, firsts[r] * sizeof(float));
  }
}

// grad_q_i (+)= scale sum_j ds_ij k_j over `most` keys of a block, for `rows` rows of a tile. The
// packed keys already contain the factor scale. The first block of keys (`begins`) overwrites
// grad_q.
HWY_NOINLINE void AttentionGradQueries(bool begins, size_t most, size_t dim, const float* grads,
                                       const float* keys, size_t rows,
                                       const AttentionRows<float>& to, size_t first) {
  ForPanels(dim, [&](size_t c, auto vectors) HWY_ATTR {
    const auto used = [&](size_t v) {
      const size_t at = c + v * kTileLanes;
      return at < dim ? std::min(kTileLanes, dim - at) : 0;
    };
    SumTile<kTileRows, decltype(vectors)::value, kWeightStride, 1>(
        most, grads, keys + c * kKeyBlock,
        [&](size_t r, size_t v) HWY_ATTR {
          if (begins || r >= rows) return hn::Zero(F32());
          return LoadN(to.At(first + r) + c + v * kTileLanes, used(v));
        },
        [&](size_t r, size_t v, Vec x) HWY_ATTR {
          if (r < rows) StoreN(x, to.At(first + r) + c + v * kTileLanes, used(v));
        });
  });
}

// to_j += sum_i w_ij x_i over `count` queries, for a tile of keys. w points to the tile's first
// query and key in the weights or gradients; x points to the first query's row of the first panel.
HWY_NOINLINE void AttentionGradKeys(size_t count, size_t columns, const float* w, const float* x,
                                    float* HWY_RESTRICT to) {
  const F32 d;
  ForPanels(columns, [&](size_t c, auto vectors) HWY_ATTR {
    float* at = to + c * kKeyBlock;
    SumTile<kTileRows, decltype(vectors)::value, 1, kWeightStride>(
        count, w, x + c * kBackwardQueries,
        [&](size_t r, size_t v)
            HWY_ATTR { return hn::Load(d, at + r * kTileWidth + v * kTileLanes); },
        [&](size_t r, size_t v, Vec sum)
            HWY_ATTR { hn::Store(sum, d, at + r * kTileWidth + v * kTileLanes); });
  });
}

// Computes the backward of one head, one pair of a block of keys and a block of queries at a time.
class BackwardBlocks {
 public:
  BackwardBlocks(const SoftmaxAttentionShape& shape, const SoftmaxAttentionOptions& options,
                 const SoftmaxAttentionBackwardArgs& args, SlotPieces slot, size_t n, size_t h)
      : shape_(shape),
        scale_(options.scale),
        visible_(shape, options, args.lengths, n),
        q_rows_(args.q, n, h),
        k_rows_(args.k, n, h / shape.readers),
        v_rows_(args.v, n, h / shape.readers),
        grad_out_rows_(args.grad_out, n, h),
        grad_q_rows_(args.grad_q, n, h),
        grad_k_rows_(args.grad_k, n, h),
        grad_v_rows_(args.grad_v, n, h),
        log2_sums_(args.log2_sum + (n * shape.heads + h) * shape.queries),
        deltas_(args.delta + (n * shape.heads + h) * shape.queries),
        at_(shape, slot) {}

  // Packs `keys` keys from `begin` on, except keys that no query sees, and makes them the current
  // keys. with_queries: prepares for grad_q. with_keys: prepares for grad_k and grad_v.
  void TakeKeys(size_t begin, size_t keys, bool with_queries, bool with_keys) {
    begin_ = begin;
    keys_ = begin < visible_.limit ? std::min(keys, visible_.limit - begin) : 0;
    PackTransposed(k_rows_, begin, keys_, shape_.dim, at_.keys_across);
    PackTransposed(v_rows_, begin, keys_, shape_.value_dim, at_.values_across);
    if (with_queries) PackPanels(k_rows_, begin, keys_, shape_.dim, scale_, kKeyBlock, at_.keys);
    if (!with_keys) return;
    std::memset(at_.grad_k, 0, kKeyBlock * TileWidths(shape_.dim) * sizeof(float));
    std::memset(at_.grad_v, 0, kKeyBlock * TileWidths(shape_.value_dim) * sizeof(float));
  }

  // Adds the gradients that arise between the current keys and `queries` queries from `first` on.
  void Add(size_t first, size_t queries, bool with_queries, bool with_keys) {
    const size_t begins_at = visible_.FirstQuery(begin_);
    if (begin_ > 0 && (begins_at >= first + queries || keys_ == 0)) return;
    if (Passed(first)) return;
    PackPanels(q_rows_, first, queries, shape_.dim, scale_ * kLog2E, kBackwardQueries, at_.q);
    PackPanels(grad_out_rows_, first, queries, shape_.value_dim, 1.0f, kBackwardQueries,
               at_.grad_out);
    const size_t width = RoundUp(keys_, kTileRows);
    const size_t panel = kBackwardQueries * kTileWidth;
    size_t tile = begins_at > first ? (begins_at - first) / kTileRows * kTileRows : 0;
    for (; tile < queries && !Passed(first + tile); tile += kTileRows) {
      const size_t rows = std::min(kTileRows, queries - tile);
      const TileKeys of(visible_, begin_, keys_, first + tile, rows);
      float* weights = at_.weights + tile * kWeightStride;
      float* grads = at_.grads + tile * kWeightStride;
      for (size_t r = 0; r < rows && of.least > 0; ++r) {
        std::memset(weights + r * kWeightStride, 0, of.least * sizeof(float));
        std::memset(grads + r * kWeightStride, 0, of.least * sizeof(float));
      }
      weights += of.least, grads += of.least;
      AttentionDots(shape_.dim, at_.q + tile * kTileWidth, panel,
                    at_.keys_across + of.least * shape_.dim, of.most, weights);
      AttentionDots(shape_.value_dim, at_.grad_out + tile * kTileWidth, panel,
                    at_.values_across + of.least * shape_.value_dim, of.most, grads);
      AttentionGradients(rows, of.firsts, of.counts, width - of.least, log2_sums_ + first + tile,
                         deltas_ + first + tile, weights, grads);
      if (with_queries) {
        AttentionGradQueries(visible_.Start(first + tile) == begin_, of.most, shape_.dim, grads,
                             at_.keys + of.least * kTileWidth, rows, grad_q_rows_, first + tile);
      }
    }
    if (with_keys) AddToKeys(first, std::min(tile, queries));
  }

  // Writes the gradients of `keys` keys; 0 for keys that no query sees.
  void StoreKeys(size_t keys) {
    const auto store = [&](const AttentionRows<float>& rows, size_t dim, float scale,
                           const float* from) HWY_ATTR {
      const F32 d;
      for (size_t j = 0; j < keys; ++j) {
        float* to = rows.At(begin_ + j);
        ForVectors(dim, [&](size_t c, size_t used) HWY_ATTR {
          const size_t panel = c / kTileWidth * kTileWidth;
          const float* sum = from + panel * kKeyBlock + j * kTileWidth + (c - panel);
          StoreN(hn::Mul(hn::Load(d, sum), hn::Set(d, scale)), to + c, used);
        });
      }
    };
    // The packed q contain the factor scale * log2(e); kLn2 cancels log2(e).
    store(grad_k_rows_, shape_.dim, kLn2, at_.grad_k);
    store(grad_v_rows_, shape_.value_dim, 1.0f, at_.grad_v);
  }

  struct Pieces {
    float *q, *grad_out, *keys_across, *values_across, *keys, *grad_k, *grad_v, *weights, *grads;

    Pieces(const SoftmaxAttentionShape& shape, SlotPieces& slot)
        : q(slot.Take(kBackwardQueries * TileWidths(shape.dim))),
          grad_out(slot.Take(kBackwardQueries * TileWidths(shape.value_dim))),
          keys_across(slot.Take(kKeyBlock * shape.dim)),
          values_across(slot.Take(kKeyBlock * shape.value_dim)),
          keys(slot.Take(kKeyBlock * TileWidths(shape.dim))),
          grad_k(slot.Take(kKeyBlock * TileWidths(shape.dim))),
          grad_v(slot.Take(kKeyBlock * TileWidths(shape.value_dim))),
          weights(slot.Take(kBackwardQueries * kWeightStride)),
          grads(slot.Take(kBackwardQueries * kWeightStride)) {}
  };

 private:
  // Whether query i and all later queries see only keys after the current keys, and none of these
  // queries starts its sums with the current block (Visible::Start()).
  bool Passed(size_t i) const {
    return visible_.First(i) >= begin_ + keys_ && visible_.Start(i) != begin_;
  }

  // Adds to grad_k and grad_v from the first `queries` rows of the block of queries at `first`.
  void AddToKeys(size_t first, size_t queries) {
    for (size_t j = 0; j < keys_; j += kTileRows) {
      const size_t last = begin_ + std::min(j + kTileRows, keys_) - 1;
      const size_t sees = visible_.FirstQuery(begin_ + j), past = visible_.EndQuery(last);
      const size_t row = sees > first ? sees - first : 0;
      const size_t end = past > first ? std::min(queries, past - first) : 0;
      if (row >= queries) break;
      if (row >= end) continue;
      const size_t from = row * kWeightStride + j;
      AttentionGradKeys(end - row, shape_.value_dim, at_.weights + from,
                        at_.grad_out + row * kTileWidth, at_.grad_v + j * kTileWidth);
      AttentionGradKeys(end - row, shape_.dim, at_.grads + from, at_.q + row * kTileWidth,
                        at_.grad_k + j * kTileWidth);
    }
  }

  const SoftmaxAttentionShape& shape_;
  const float scale_;
  const Visible visible_;
  const AttentionRows<const float> q_rows_, k_rows_, v_rows_, grad_out_rows_;
  const AttentionRows<float> grad_q_rows_, grad_k_rows_, grad_v_rows_;
  const float *log2_sums_, *deltas_;
  const Pieces at_;
  size_t begin_ = 0, keys_ = 0;
};

// Computes grad_k and grad_v of `keys` keys from `begin` on. with_queries: also grad_q; the keys
// must then be all keys of the head.
void AttentionBackwardKeys(const SoftmaxAttentionShape& shape,
                           const SoftmaxAttentionOptions& options,
                           const SoftmaxAttentionBackwardArgs& args, float* scratch, size_t n,
                           size_t h, size_t begin, size_t keys, bool with_queries) {
  BackwardBlocks blocks(shape, options, args, SlotPieces(scratch), n, h);
  size_t done = 0;
  do {  // runs once even without keys, to write zeros to grad_q
    const size_t block = std::min(kKeyBlock, keys - done);
    blocks.TakeKeys(begin + done, block, with_queries, /*with_keys=*/true);
    for (size_t first = 0; first < shape.queries; first += kBackwardQueries) {
      blocks.Add(first, std::min(kBackwardQueries, shape.queries - first), with_queries,
                 /*with_keys=*/true);
    }
    blocks.StoreKeys(block);
    done += block;
  } while (done < keys);
}

// Computes grad_q of `queries` queries from `first` on, at most one block.
void AttentionBackwardQueries(const SoftmaxAttentionShape& shape,
                              const SoftmaxAttentionOptions& options,
                              const SoftmaxAttentionBackwardArgs& args, float* scratch, size_t n,
                              size_t h, size_t first, size_t queries) {
  BackwardBlocks blocks(shape, options, args, SlotPieces(scratch), n, h);
  const Visible visible(shape, options, args.lengths, n);
  const size_t end = visible.Count(first + queries - 1);
  size_t begin = visible.Start(first);
  do {
    blocks.TakeKeys(begin, std::min(kKeyBlock, shape.keys - begin), /*with_queries=*/true,
                    /*with_keys=*/false);
    blocks.Add(first, queries, /*with_queries=*/true, /*with_keys=*/false);
    begin += kKeyBlock;
  } while (begin < end);
}

size_t AttentionScratch(const SoftmaxAttentionShape& shape) {
  SlotPieces forward(nullptr), backward(nullptr);
  ForwardPieces(shape, MaxForwardQueries(shape), forward);
  BackwardBlocks::Pieces(shape, backward);
  return std::max(forward.Needed(), backward.Needed());
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_SOFTMAX_ATTENTION_INL_H_
