// A position of causal linear attention over many sequences as a tile program (tile.h); contract in
// decode.h, layout of the states in kernels/linear_step.h. A warp steps one head of one sequence.
//
// Lane l reads columns 4 (l % 4) .. + 3 and 16 more of row l / 4 of every eight rows: rows of s,
// which a feature of the query weighs, and waiting rows, which the product of query and key weighs.
// So a warp reads 512 or 1024 consecutive bytes at once, and the eight lanes that share columns are
// summed at the end.
#ifndef LINNET_KERNELS_CUDA_LINEAR_STEP_TILE_H_
#define LINNET_KERNELS_CUDA_LINEAR_STEP_TILE_H_

#include <cfloat>
#include <utility>

#include "linnet/kernels/cuda/decode.h"
#include "linnet/kernels/cuda/rows_tile.h"
#include "linnet/kernels/cuda/tile.h"

namespace linnet::kernels::cuda {

inline constexpr unsigned kStepPad = 32;  // LinearStepShape::kPad
inline constexpr unsigned kRowsAtOnce = 8;

template <typename T>
inline constexpr unsigned kWaitingRows = sizeof(T) == 2 ? 16 : 8;  // RecentKeys()

LINNET_HOST_TILE unsigned PaddedWidth(unsigned n) {
  return (n + kStepPad - 1) / kStepPad * kStepPad;
}

// The type of the remainder of s.
template <typename T>
struct RestOf {
  using Type = float;
};
template <>
struct RestOf<float> {
  using Type = BFloat16;
};

// Columns u .. u + 3 (at[0 .. 3]) and u + 16 .. u + 19 of a block of 32; in bf16 each pair shares a
// word.
struct Columns {
  float at[8];
};
// The same as they lie in memory, for loads long before their use.
template <typename T>
struct RawColumns;
template <>
struct RawColumns<float> {
  Vector16 low, high;
  LINNET_TILE void Load(const float* block, unsigned u) {
    low = *reinterpret_cast<const Vector16*>(block + u);
    high = *reinterpret_cast<const Vector16*>(block + 16 + u);
  }
  LINNET_TILE Columns Get() const {
    Columns x;
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      x.at[i] = FloatOfBits(low.word[i]);
      x.at[4 + i] = FloatOfBits(high.word[i]);
    }
    return x;
  }
};
template <>
struct RawColumns<BFloat16> {
  Vector16 pairs;
  LINNET_TILE void Load(const BFloat16* block, unsigned u) {
    pairs = *reinterpret_cast<const Vector16*>(block + 2 * u);
  }
  LINNET_TILE Columns Get() const {
    Columns x;
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      x.at[i] = LowBf16(pairs.word[i]);
      x.at[4 + i] = HighBf16(pairs.word[i]);
    }
    return x;
  }
};
template <typename T>
LINNET_TILE Columns LoadColumns(const T* block, unsigned u) {
  RawColumns<T> raw;
  raw.Load(block, u);
  return raw.Get();
}
// Returns the columns as stored.
LINNET_TILE Columns StoreColumns(float* block, unsigned u, const Columns& x) {
  StoreFour(block + u, {{x.at[0], x.at[1], x.at[2], x.at[3]}});
  StoreFour(block + 16 + u, {{x.at[4], x.at[5], x.at[6], x.at[7]}});
  return x;
}
LINNET_TILE Columns StoreColumns(BFloat16* block, unsigned u, const Columns& x) {
  Vector16 words;
  Columns stored;
  LINNET_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    words.word[i] = PairBf16(x.at[i], x.at[4 + i]);
    stored.at[i] = LowBf16(words.word[i]);
    stored.at[4 + i] = HighBf16(words.word[i]);
  }
  *reinterpret_cast<Vector16*>(block + 2 * u) = words;
  return stored;
}

// Index of a column in a row.
LINNET_TILE unsigned ColumnIndex(const float*, unsigned c) { return c; }
LINNET_TILE unsigned ColumnIndex(const BFloat16*, unsigned c) {
  return c / kStepPad * kStepPad + c % 16 * 2 + c / 16 % 2;
}

LINNET_TILE float RoundedTo(const float*, float x) { return x; }
LINNET_TILE float RoundedTo(const BFloat16*, float x) { return ToFloat(ToBf16(x)); }

LINNET_TILE float EluFeature(float x) { return x >= 0 ? x + 1.0f : std::exp(x); }

// The rounding error of now = old + add, itself a float (Knuth's two-sum).
LINNET_TILE float LostOf(float old, float add, float now) {
  const float shown = now - old;
  return (old - (now - shown)) + (add - shown);
}

// A head's state.
template <typename T>
struct HeadOf {
  using Rest = typename RestOf<T>::Type;
  T* s;  // [F, M']
  float* z;
  T* rows;  // [waiting, F' + M'], row_stride apart
  Rest* s_rest;
  float* z_rest;
  unsigned row_stride;

  LINNET_TILE HeadOf(const DecodeStepArgs& args, unsigned sequence, unsigned head) {
    const unsigned f = args.dim, fp = PaddedWidth(args.dim), mp = PaddedWidth(args.value_dim);
    const unsigned heads = args.heads;
    const size_t sums = size_t{heads} * f * mp;
    float* hot = args.states + size_t{sequence} * args.state_stride;
    row_stride = heads * (fp + mp);
    s = reinterpret_cast<T*>(hot) + size_t{head} * f * mp;
    float* hot_z = hot + sums * sizeof(T) / sizeof(float);
    z = hot_z + 2 * head * fp;
    float* hot_rows = hot_z + 2 * heads * fp;
    rows = reinterpret_cast<T*>(hot_rows) + head * (fp + mp);
    float* cold = hot_rows + size_t{kWaitingRows<T>} * row_stride * sizeof(T) / sizeof(float);
    z_rest = cold + head * fp;
    s_rest = reinterpret_cast<Rest*>(cold + heads * fp) + size_t{head} * f * mp;
  }
};

// Bytes of shared memory of a warp: phi(q) [F'], and rows [waiting, F' + M'], of which `waiting` is
// the position's own; the others are only there for a fold.
template <typename T>
LINNET_HOST_TILE unsigned LinearStepShared(unsigned padded_dim, unsigned padded_value_dim) {
  return 4 * (padded_dim + kWaitingRows<T> * (padded_dim + padded_value_dim));
}

// A head's queries, keys, values and outputs in global memory.
template <typename T>
class GlobalHead {
 public:
  LINNET_TILE GlobalHead(const DecodeStepArgs& args, unsigned sequence, unsigned head) {
    const T* row = static_cast<const T*>(args.in) + size_t{sequence} * args.in_stride;
    query_ = row + head * args.dim;
    key_ = query_ + args.heads * args.dim;
    value_ = row + 2 * args.heads * args.dim + head * args.value_dim;
    out_ = static_cast<T*>(args.out) + (size_t{sequence} * args.heads + head) * args.value_dim;
  }
  LINNET_TILE float Query(unsigned f) const { return ToFloat(query_[f]); }
  LINNET_TILE float Key(unsigned f) const { return ToFloat(key_[f]); }
  LINNET_TILE float Value(unsigned m) const { return ToFloat(value_[m]); }
  LINNET_TILE void Out(unsigned m, float x) const { StoreAs(out_, m, x); }

 private:
  const T *query_, *key_, *value_;
  T* out_;
};

// kFeatureBlocks * kStepPad is PaddedWidth(dim). `Head` is GlobalHead, or has its members. `shared`: first byte of LinearStepShared() bytes.
template <typename T, unsigned kFeatureBlocks, class Tile, class Head>
class LinearStepWarp {
 public:
  static constexpr unsigned kRows = kWaitingRows<T>, kGroups = kRows / kRowsAtOnce;
  static constexpr unsigned kPadded = kFeatureBlocks * kStepPad;
  // Whether all loads of the first 32 columns of s begin before anything else; larger heads have
  // too few registers.
  static constexpr bool kEarly = kFeatureBlocks == 1;

  LINNET_TILE LinearStepWarp(Tile& tile, const DecodeStepArgs& args, unsigned sequence,
                             unsigned head, unsigned waiting, unsigned shared, const Head& io)
      : tile_(tile),
        args_(args),
        io_(io),
        waiting_(waiting),
        padded_values_(PaddedWidth(args.value_dim)),
        state_(args, sequence, head),
        query_(tile.template Shared<float>(shared, kPadded)),
        rows_(
            tile.template Shared<float>(shared + 4 * kPadded, kRows * (kPadded + padded_values_))),
        row_(tile.lane() / 4),
        u_(tile.lane() % 4 * 4) {}

  LINNET_TILE void Run() {
    Ask();
    Append();
    tile_.WarpBarrier();
    float weights[kGroups];
    Weigh(weights);
    const float scale = Scale(weights);
    for (unsigned c = 0; c < padded_values_; c += kStepPad) Read(c, weights, scale);
    if (waiting_ + 1 == kRows) Fold();
  }

 private:
  LINNET_TILE unsigned RowWidth() const { return kPadded + padded_values_; }
  LINNET_TILE T* Row(unsigned r) const { return state_.rows + size_t{r} * state_.row_stride; }

  LINNET_TILE const T* SumsOf(unsigned f, unsigned c) const {
    return state_.s + size_t{f} * padded_values_ + c;
  }

  LINNET_TILE void Ask() {
    if constexpr (kEarly) {
      LINNET_UNROLL
      for (unsigned i = 0; i < kPadded / kRowsAtOnce; ++i) {
        const unsigned f = i * kRowsAtOnce + row_;
        if (f < args_.dim) early_[i].Load(SumsOf(f, 0), u_);
      }
    }
    LINNET_UNROLL
    for (unsigned b = 0; b < kFeatureBlocks; ++b) {
      z_[b] = state_.z[b * kStepPad + tile_.lane()];
    }
  }

  // Computes phi(q), phi(k) and the position's row, in shared memory and in the state.
  LINNET_TILE void Append() {
    const unsigned f_all = args_.dim, m_all = args_.value_dim;
    T* row = Row(waiting_);
    const unsigned own = waiting_ * RowWidth();
    LINNET_UNROLL
    for (unsigned b = 0; b < kFeatureBlocks; ++b) {
      const unsigned f = b * kStepPad + tile_.lane();
      const bool valid = f < f_all;
      query_.Set(f, valid ? EluFeature(io_.Query(f)) : 0.0f);
      const float key = valid ? RoundedTo(row, EluFeature(io_.Key(f))) : 0.0f;
      rows_.Set(own + f, key);
      StoreAs(row, ColumnIndex(row, f), key);
    }
    for (unsigned m = tile_.lane(); m < padded_values_; m += kWarp) {
      const float value = m < m_all ? RoundedTo(row, io_.Value(m)) : 0.0f;
      rows_.Set(own + kPadded + m, value);
      StoreAs(row, kPadded + ColumnIndex(row, m), value);
    }
  }

  // This lane's columns of a waiting row, from block `c` of the row on.
  LINNET_TILE Columns LoadRow(unsigned r, unsigned c) const {
    return r < waiting_ ? LoadColumns(Row(r) + c, u_) : Shared(rows_, r * RowWidth() + c);
  }
  template <class Array>
  LINNET_TILE Columns Shared(const Array& from, unsigned begin) const {
    const auto low = from.template Load<Vector16>(begin + u_);
    const auto high = from.template Load<Vector16>(begin + 16 + u_);
    Columns x;
    LINNET_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      x.at[i] = FloatOfBits(low.word[i]);
      x.at[4 + i] = FloatOfBits(high.word[i]);
    }
    return x;
  }

  // weights[j] = phi(q) . phi(k) of waiting row 8 j + row_; 0 where there is none.
  LINNET_TILE void Weigh(float (&weights)[kGroups]) const {
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroups; ++j) {
      const unsigned r = kRowsAtOnce * j + row_;
      float sum = 0;
      if (r <= waiting_) {
        LINNET_UNROLL
        for (unsigned b = 0; b < kFeatureBlocks; ++b) {
          const Columns key = LoadRow(r, b * kStepPad), query = Shared(query_, b * kStepPad);
          LINNET_UNROLL
          for (unsigned i = 0; i < 8; ++i) sum += key.at[i] * query.at[i];
        }
      }
      sum += tile_.ShuffleXor(sum, 1);
      weights[j] = sum + tile_.ShuffleXor(sum, 2);
    }
  }

  // 1 / (phi(q) . z + eps), z with the waiting keys; 0 where that is below every normal float.
  LINNET_TILE float Scale(const float (&weights)[kGroups]) const {
    float sum = 0;
    LINNET_UNROLL
    for (unsigned b = 0; b < kFeatureBlocks; ++b) {
      const unsigned f = b * kStepPad + tile_.lane();
      sum += query_.Get(f) * z_[b];
    }
    if (tile_.lane() % 4 == 0) {
      LINNET_UNROLL
      for (unsigned j = 0; j < kGroups; ++j) sum += weights[j];
    }
    const float den = SumOfWarp(tile_, sum) + args_.eps;
    return std::fabs(den) < FLT_MIN ? 0.0f : 1.0f / den;
  }

  // Columns [c, c + 32) of the output.
  LINNET_TILE void Read(unsigned c, const float (&weights)[kGroups], float scale) const {
    Columns sum = {{0, 0, 0, 0, 0, 0, 0, 0}};
    const auto add = [&](float weight, const Columns& x) {
      LINNET_UNROLL
      for (unsigned i = 0; i < 8; ++i) sum.at[i] += weight * x.at[i];
    };
    LINNET_UNROLL
    for (unsigned i = 0; i < kPadded / kRowsAtOnce; ++i) {
      const unsigned f = i * kRowsAtOnce + row_;
      if (f >= args_.dim) continue;
      if constexpr (kEarly) {
        add(query_.Get(f), c == 0 ? early_[i].Get() : LoadColumns(SumsOf(f, c), u_));
      } else {
        add(query_.Get(f), LoadColumns(SumsOf(f, c), u_));
      }
    }
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroups; ++j) {
      const unsigned r = kRowsAtOnce * j + row_;
      if (r <= waiting_) add(weights[j], LoadRow(r, kPadded + c));
    }
    // Sums the lanes of equal columns; each time a lane keeps half of what it has.
    const unsigned lane = tile_.lane();
    LINNET_UNROLL
    for (unsigned half = 4; half > 0; half /= 2) {
      const bool upper = (lane & 4 * half) != 0;
      LINNET_UNROLL
      for (unsigned i = 0; i < half; ++i) {
        const float keep = upper ? sum.at[half + i] : sum.at[i];
        const float give = upper ? sum.at[i] : sum.at[half + i];
        sum.at[i] = keep + tile_.ShuffleXor(give, 4 * half);
      }
    }
    const unsigned m = c + lane / 16 * 16 + u_ + lane / 8 % 2 * 2 + lane / 4 % 2;
    if (m < args_.value_dim) io_.Out(m, scale * sum.at[0]);
  }

  // Adds the waiting rows to the sums.
  LINNET_TILE void Fold() {
    using Rest = typename HeadOf<T>::Rest;
    const unsigned width = RowWidth();
    for (unsigned r = row_; r + 1 < kRows; r += kRowsAtOnce) {
      for (unsigned c = 0; c < width; c += kStepPad) {
        const Columns x = LoadColumns(Row(r) + c, u_);
        Vector16 low, high;
        LINNET_UNROLL
        for (unsigned i = 0; i < 4; ++i) {
          low.word[i] = BitsOfFloat(x.at[i]);
          high.word[i] = BitsOfFloat(x.at[4 + i]);
        }
        rows_.template Store<Vector16>(r * width + c + u_, low);
        rows_.template Store<Vector16>(r * width + c + 16 + u_, high);
      }
    }
    tile_.WarpBarrier();
    LINNET_UNROLL
    for (unsigned b = 0; b < kFeatureBlocks; ++b) {
      const unsigned f = b * kStepPad + tile_.lane();
      float keys = 0;
      for (unsigned r = 0; r < kRows; ++r) keys += rows_.Get(r * width + f);
      const float old = state_.z[f], add = state_.z_rest[f] + keys, now = old + add;
      state_.z[f] = now;
      state_.z_rest[f] = LostOf(old, add, now);
    }
    for (unsigned c = 0; c < padded_values_; c += kStepPad) {
      for (unsigned f0 = 0; f0 < kPadded; f0 += 4 * kRowsAtOnce) {
        Columns sum[4];
        LINNET_UNROLL
        for (unsigned i = 0; i < 4; ++i) sum[i] = {{0, 0, 0, 0, 0, 0, 0, 0}};
        for (unsigned r = 0; r < kRows; ++r) {
          const Columns value = Shared(rows_, r * width + kPadded + c);
          LINNET_UNROLL
          for (unsigned i = 0; i < 4; ++i) {
            const float key = rows_.Get(r * width + f0 + kRowsAtOnce * i + row_);
            LINNET_UNROLL
            for (unsigned e = 0; e < 8; ++e) sum[i].at[e] += key * value.at[e];
          }
        }
        LINNET_UNROLL
        for (unsigned i = 0; i < 4; ++i) {
          const unsigned f = f0 + kRowsAtOnce * i + row_;
          if (f >= args_.dim) continue;
          T* s = state_.s + size_t{f} * padded_values_ + c;
          Rest* rest = state_.s_rest + size_t{f} * padded_values_ + c;
          const Columns old = LoadColumns(s, u_), more = LoadColumns(rest, u_);
          Columns add, both, lost;
          LINNET_UNROLL
          for (unsigned e = 0; e < 8; ++e) {
            add.at[e] = more.at[e] + sum[i].at[e];
            both.at[e] = old.at[e] + add.at[e];
          }
          const Columns now = StoreColumns(s, u_, both);
          LINNET_UNROLL
          for (unsigned e = 0; e < 8; ++e) lost.at[e] = LostOf(old.at[e], add.at[e], now.at[e]);
          StoreColumns(rest, u_, lost);
        }
      }
    }
  }

  Tile& tile_;
  const DecodeStepArgs& args_;
  const Head& io_;
  const unsigned waiting_, padded_values_;
  const HeadOf<T> state_;
  const decltype(std::declval<Tile&>().template Shared<float>(0, 0)) query_, rows_;
  const unsigned row_, u_;  // of every eight rows; the first column
  RawColumns<T> early_[kEarly ? kPadded / kRowsAtOnce : 1];
  float z_[kFeatureBlocks];
};

template <typename T, unsigned kFeatureBlocks, class Tile>
LINNET_TILE void LinearStepTile(Tile& tile, const DecodeStepArgs& args) {
  const unsigned item = tile.x() * (tile.threads() / kWarp) + tile.warp();
  if (item >= args.batch * args.heads) return;
  const unsigned sequence = item / args.heads, head = item % args.heads;
  const unsigned shared =
      tile.warp() * LinearStepShared<T>(kFeatureBlocks * kStepPad, PaddedWidth(args.value_dim));
  const GlobalHead<T> io(args, sequence, head);
  LinearStepWarp<T, kFeatureBlocks, Tile, GlobalHead<T>>(tile, args, sequence, head,
                                                         args.control->waiting, shared, io)
      .Run();
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_LINEAR_STEP_TILE_H_
