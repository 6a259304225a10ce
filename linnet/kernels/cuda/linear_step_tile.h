// StartLinearStep() of decode.h as a tile program (tile.h): one position of causal linear
// attention. kernels/linear_step.h has the layout of the states. A warp steps one head of one
// sequence. Keys and values of recent positions are kept as rows, the waiting rows; a fold adds
// them to the sums s and z once there are RecentKeys() of them.
//
// The warp reads eight rows at a time: rows of s, weighted by the query's features, or waiting
// rows, weighted by phi(q) . phi(k). Lane l reads row l / 4 of the eight. From each block of 32
// columns, it reads columns u .. u + 3 and u + 16 .. u + 19, where u = 4 (l % 4). So with up to 32
// values per head, eight rows of s are 512 (bf16) or 1024 (fp32) consecutive bytes. At the end, the
// eight lanes that share columns add up their sums. In heads of up to 32 features and values, all
// loads except those of a fold are issued at the beginning. So a warp waits for memory only twice,
// for DecodeControl and for these loads (docs/kernels/decode-cuda.md).
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

// s is stored as a leading part and a remainder (linear_step.h). If the leading part and the rows
// have the type T, the remainder has this type.
template <typename T>
struct RestOf {
  using Type = float;
};
template <>
struct RestOf<float> {
  using Type = BFloat16;
};

// Columns u .. u + 3 (at[0 .. 3]) and u + 16 .. u + 19 (at[4 .. 7]) of a block of 32. In memory,
// the bf16 columns c and c + 16 share a 32-bit word.
struct Columns {
  float at[8];
};
// The same columns in the form that memory holds, so that they can be loaded long before their use.
template <typename T>
struct RawColumns;
template <>
struct RawColumns<float> {
  Vector16 low = {}, high = {};
  template <class Tile>
  LINNET_TILE void Load(const Tile& tile, const float* block, unsigned u, bool valid) {
    low = tile.LoadStreaming(reinterpret_cast<const Vector16*>(block + u), valid);
    high = tile.LoadStreaming(reinterpret_cast<const Vector16*>(block + 16 + u), valid);
  }
  template <class Array>
  LINNET_TILE void LoadShared(const Array& from, unsigned block, unsigned u) {
    low = from.template Load<Vector16>(block + u);
    high = from.template Load<Vector16>(block + 16 + u);
  }
  template <class Array>
  LINNET_TILE void StoreShared(const Array& to, unsigned block, unsigned u) const {
    to.template Store<Vector16>(block + u, low);
    to.template Store<Vector16>(block + 16 + u, high);
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
  Vector16 pairs = {};
  template <class Tile>
  LINNET_TILE void Load(const Tile& tile, const BFloat16* block, unsigned u, bool valid) {
    pairs = tile.LoadStreaming(reinterpret_cast<const Vector16*>(block + 2 * u), valid);
  }
  template <class Array>
  LINNET_TILE void LoadShared(const Array& from, unsigned block, unsigned u) {
    pairs = from.template Load<Vector16>(block + 2 * u);
  }
  template <class Array>
  LINNET_TILE void StoreShared(const Array& to, unsigned block, unsigned u) const {
    to.template Store<Vector16>(block + 2 * u, pairs);
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
// Stores x. Returns the columns as stored, rounded to the type of `block`.
template <class Tile>
LINNET_TILE Columns StoreColumns(const Tile& tile, float* block, unsigned u, const Columns& x) {
  Vector16 low, high;
  LINNET_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    low.word[i] = BitsOfFloat(x.at[i]);
    high.word[i] = BitsOfFloat(x.at[4 + i]);
  }
  tile.StoreStreaming(reinterpret_cast<Vector16*>(block + u), low);
  tile.StoreStreaming(reinterpret_cast<Vector16*>(block + 16 + u), high);
  return x;
}
template <class Tile>
LINNET_TILE Columns StoreColumns(const Tile& tile, BFloat16* block, unsigned u, const Columns& x) {
  Vector16 words;
  Columns stored;
  LINNET_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    words.word[i] = PairBf16(x.at[i], x.at[4 + i]);
    stored.at[i] = LowBf16(words.word[i]);
    stored.at[4 + i] = HighBf16(words.word[i]);
  }
  tile.StoreStreaming(reinterpret_cast<Vector16*>(block + 2 * u), words);
  return stored;
}

// Index in memory of column c of a row.
LINNET_TILE unsigned ColumnIndex(const float*, unsigned c) { return c; }
LINNET_TILE unsigned ColumnIndex(const BFloat16*, unsigned c) {
  return c / kStepPad * kStepPad + c % 16 * 2 + c / 16 % 2;
}

LINNET_TILE float As(const float*, float x) { return x; }
LINNET_TILE BFloat16 As(const BFloat16*, float x) { return ToBf16(x); }
LINNET_TILE float RoundedTo(const float*, float x) { return x; }
LINNET_TILE float RoundedTo(const BFloat16*, float x) { return ToFloat(ToBf16(x)); }

LINNET_TILE float EluFeature(float x) { return x >= 0 ? x + 1.0f : std::exp(x); }

// old + add - now: the rounding error of `now`, which is old + add rounded to float or bf16. Exact
// for float (Knuth's two-sum).
LINNET_TILE float LostOf(float old, float add, float now) {
  const float shown = now - old;
  return (old - (now - shown)) + (add - shown);
}

// Pointers to the state of one head of one sequence. F' and M' are F and M rounded up to kStepPad.
template <typename T>
struct HeadOf {
  using Rest = typename RestOf<T>::Type;
  T* s;  // [F, M']
  float* z;
  T* rows;  // [RecentKeys(), F' + M'], row_stride apart
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

// Bytes of shared memory per warp: phi(q) [F'], and rows [RecentKeys(), F' + M'] in the state's
// layout. Row `waiting` belongs to the current position; the others are only filled for a fold.
template <typename T>
LINNET_HOST_TILE unsigned LinearStepShared(unsigned padded_dim, unsigned padded_value_dim) {
  return 4 * padded_dim +
         kWaitingRows<T> * (padded_dim + padded_value_dim) * static_cast<unsigned>(sizeof(T));
}

// A head's query, key, value and output in global memory.
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

// Steps one head of one sequence. kFeatureBlocks * kStepPad is PaddedWidth(dim). `Head` is
// GlobalHead or has its members. `shared`: byte offset of the warp's LinearStepShared() bytes.
template <typename T, unsigned kFeatureBlocks, class Tile, class Head>
class LinearStepWarp {
 public:
  static constexpr unsigned kRows = kWaitingRows<T>, kGroups = kRows / kRowsAtOnce;
  static constexpr unsigned kPadded = kFeatureBlocks * kStepPad;
  // Whether all loads of the first 32 columns of s are issued first. With more than 32 features per
  // head, there are too few registers for that.
  static constexpr bool kEarly = kFeatureBlocks == 1;
  static constexpr unsigned kFolded = sizeof(T) == 2 ? 1 : 2;  // groups of 8 rows in FoldRows()
  static constexpr unsigned kLine = 128;                       // bytes of a cache line

  LINNET_TILE LinearStepWarp(Tile& tile, const DecodeStepArgs& args, unsigned sequence,
                             unsigned head, unsigned waiting, unsigned shared, const Head& io)
      : tile_(tile),
        args_(args),
        io_(io),
        waiting_(waiting),
        padded_values_(PaddedWidth(args.value_dim)),
        state_(args, sequence, head),
        query_(tile.template Shared<float>(shared, kPadded)),
        rows_(tile.template Shared<T>(shared + 4 * kPadded, kRows * (kPadded + padded_values_))),
        row_(tile.lane() / 4),
        u_(tile.lane() % 4 * 4) {}

  LINNET_TILE void Run() {
    Ask();
    Append();
    tile_.WarpBarrier();
    float weights[kGroups];
    Weigh(weights);
    if (folds()) ShareRows();
    const float scale = Scale(weights);
    Read<true>(0, weights, scale);
    for (unsigned c = kStepPad; c < padded_values_; c += kStepPad) Read<false>(c, weights, scale);
    if (folds()) Fold();
  }

 private:
  LINNET_TILE bool folds() const { return waiting_ + 1 == kRows; }
  LINNET_TILE unsigned RowWidth() const { return kPadded + padded_values_; }
  LINNET_TILE T* Row(unsigned r) const { return state_.rows + size_t{r} * state_.row_stride; }

  LINNET_TILE const T* SumsOf(unsigned f, unsigned c) const {
    return state_.s + size_t{f} * padded_values_ + c;
  }

  // Issues the loads of the query, the key, z and the waiting rows, and of s if kEarly. Of values,
  // loads only the first 32 columns. Prefetches the remainders if the step folds.
  LINNET_TILE void Ask() {
    LINNET_UNROLL
    for (unsigned b = 0; b < kFeatureBlocks; ++b) {
      const unsigned f = b * kStepPad + tile_.lane();
      q_[b] = f < args_.dim ? io_.Query(f) : 0.0f;
      k_[b] = f < args_.dim ? io_.Key(f) : 0.0f;
      z_[b] = state_.z[f];
    }
    v_ = tile_.lane() < args_.value_dim ? io_.Value(tile_.lane()) : 0.0f;
    if constexpr (kEarly) {
      LINNET_UNROLL
      for (unsigned i = 0; i < kPadded / kRowsAtOnce; ++i) {
        const unsigned f = i * kRowsAtOnce + row_;
        sums_[i].Load(tile_, SumsOf(f < args_.dim ? f : 0, 0), u_, true);
      }
    }
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroups; ++j) {
      const unsigned r = kRowsAtOnce * j + row_;
      LINNET_UNROLL
      for (unsigned b = 0; b < kFeatureBlocks; ++b) {
        keys_[j][b].Load(tile_, Row(r) + b * kStepPad, u_, r < waiting_);
      }
      values_[j].Load(tile_, Row(r) + kPadded, u_, r < waiting_);
    }
    if (folds()) {
      // Prefetched into the L2 cache instead of loaded, because no registers are left.
      const auto* rest = reinterpret_cast<const char*>(state_.s_rest);
      const size_t bytes = size_t{args_.dim} * padded_values_ * sizeof(*state_.s_rest);
      for (size_t at = kLine * tile_.lane(); at < bytes; at += kLine * kWarp) {
        tile_.Prefetch(rest + at);
      }
      if (tile_.lane() < kFeatureBlocks) tile_.Prefetch(state_.z_rest + kStepPad * tile_.lane());
    }
  }

  // Writes phi(q) to shared memory, and the position's row (phi(k) and v) to shared memory and to
  // the state.
  LINNET_TILE void Append() {
    T* row = Row(waiting_);
    const unsigned own = waiting_ * RowWidth();
    const auto put = [&](unsigned at, float x) {
      const T stored = As(row, x);
      rows_.Set(own + at, stored);
      row[at] = stored;
    };
    LINNET_UNROLL
    for (unsigned b = 0; b < kFeatureBlocks; ++b) {
      const unsigned f = b * kStepPad + tile_.lane();
      const bool valid = f < args_.dim;
      query_.Set(f, valid ? EluFeature(q_[b]) : 0.0f);
      put(ColumnIndex(row, f), valid ? EluFeature(k_[b]) : 0.0f);
    }
    put(kPadded + ColumnIndex(row, tile_.lane()), v_);
    for (unsigned m = kWarp + tile_.lane(); m < padded_values_; m += kWarp) {
      put(kPadded + ColumnIndex(row, m), m < args_.value_dim ? io_.Value(m) : 0.0f);
    }
  }

  // The lane's columns of phi(q) in the block of 32 from `begin` on.
  LINNET_TILE Columns Query(unsigned begin) const {
    RawColumns<float> raw;
    raw.LoadShared(query_, begin, u_);
    return raw.Get();
  }

  // weights[j] = phi(q) . phi(k) of waiting row 8 j + row_, or 0 if there is no such row. The
  // current position's row counts as waiting.
  LINNET_TILE void Weigh(float (&weights)[kGroups]) {
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroups; ++j) {
      if (kRowsAtOnce * j + row_ != waiting_) continue;
      const unsigned own = waiting_ * RowWidth();
      LINNET_UNROLL
      for (unsigned b = 0; b < kFeatureBlocks; ++b) {
        keys_[j][b].LoadShared(rows_, own + b * kStepPad, u_);
      }
      values_[j].LoadShared(rows_, own + kPadded, u_);
    }
    float sums[kGroups] = {};
    LINNET_UNROLL
    for (unsigned b = 0; b < kFeatureBlocks; ++b) {
      const Columns query = Query(b * kStepPad);
      LINNET_UNROLL
      for (unsigned j = 0; j < kGroups; ++j) {
        const Columns key = keys_[j][b].Get();
        LINNET_UNROLL
        for (unsigned i = 0; i < 8; ++i) sums[j] += key.at[i] * query.at[i];
      }
    }
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroups; ++j) sums[j] += tile_.ShuffleXor(sums[j], 1);
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroups; ++j) weights[j] = sums[j] + tile_.ShuffleXor(sums[j], 2);
  }

  // 1 / (phi(q) . z + eps), with the waiting keys included in z; 0 if |phi(q) . z + eps| is below
  // FLT_MIN.
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

  // Loads value columns [c, c + 32) of waiting row 8 j + row_, or zeros if there is no such row.
  LINNET_TILE void LoadValues(unsigned j, unsigned c, RawColumns<T>& raw) const {
    const unsigned r = kRowsAtOnce * j + row_;
    raw.Load(tile_, Row(r) + kPadded + c, u_, r < waiting_);
    if (r == waiting_) raw.LoadShared(rows_, r * RowWidth() + kPadded + c, u_);
  }

  // Computes columns [c, c + 32) of the output.
  template <bool kFirst>
  LINNET_TILE void Read(unsigned c, const float (&weights)[kGroups], float scale) const {
    Columns sum = {{0, 0, 0, 0, 0, 0, 0, 0}};
    const auto add = [&](float weight, const Columns& x) {
      LINNET_UNROLL
      for (unsigned i = 0; i < 8; ++i) sum.at[i] += weight * x.at[i];
    };
    RawColumns<T> more[kGroups];
    if constexpr (!kFirst) {
      LINNET_UNROLL
      for (unsigned j = 0; j < kGroups; ++j) LoadValues(j, c, more[j]);
    }
    LINNET_UNROLL
    for (unsigned i = 0; i < kPadded / kRowsAtOnce; ++i) {
      const unsigned f = i * kRowsAtOnce + row_;
      if constexpr (kEarly && kFirst) {
        add(query_.Get(f), sums_[i].Get());  // the query is 0 beyond the features
      } else {
        RawColumns<T> raw;
        raw.Load(tile_, SumsOf(f, c), u_, f < args_.dim);
        add(query_.Get(f), raw.Get());
      }
    }
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroups; ++j) add(weights[j], (kFirst ? values_[j] : more[j]).Get());
    // Sums over the lanes that share columns. After each exchange a lane keeps half of its columns.
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

  // Copies the waiting rows to shared memory for Fold(). The current position's row is already
  // there.
  LINNET_TILE void ShareRows() {
    const unsigned width = RowWidth();
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroups; ++j) {
      const unsigned r = kRowsAtOnce * j + row_;
      if (r == waiting_) continue;  // already there
      LINNET_UNROLL
      for (unsigned b = 0; b < kFeatureBlocks; ++b) {
        keys_[j][b].StoreShared(rows_, r * width + b * kStepPad, u_);
      }
      values_[j].StoreShared(rows_, r * width + kPadded, u_);
      for (unsigned c = kStepPad; c < padded_values_; c += kStepPad) {
        RawColumns<T> raw;
        LoadValues(j, c, raw);
        raw.StoreShared(rows_, r * width + kPadded + c, u_);
      }
    }
  }

  // Adds the waiting rows, including the current position's, to the sums.
  LINNET_TILE void Fold() {
    const unsigned width = RowWidth();
    tile_.WarpBarrier();
    LINNET_UNROLL
    for (unsigned b = 0; b < kFeatureBlocks; ++b) {
      const unsigned f = b * kStepPad + tile_.lane();
      float keys = 0;
      for (unsigned r = 0; r < kRows; ++r) {
        keys += ToFloat(rows_.Get(r * width + ColumnIndex(state_.rows, f)));
      }
      const float old = state_.z[f], add = state_.z_rest[f] + keys, now = old + add;
      state_.z[f] = now;
      state_.z_rest[f] = LostOf(old, add, now);
    }
    for (unsigned c = 0; c < padded_values_; c += kStepPad) {
      for (unsigned f = 0; f < args_.dim; f += kFolded * kRowsAtOnce) FoldRows(f, c);
    }
  }

  // Folds columns [c, c + 32) of rows f0 + 8 i + row_ of s, i < kFolded. Reads s again, mostly from
  // the L2 cache: if it stayed in registers, fewer warps could run at once.
  LINNET_TILE void FoldRows(unsigned f0, unsigned c) {
    using Rest = typename HeadOf<T>::Rest;
    const unsigned width = RowWidth();
    RawColumns<T> old[kFolded];
    RawColumns<Rest> rest[kFolded];
    Columns sum[kFolded];
    LINNET_UNROLL
    for (unsigned i = 0; i < kFolded; ++i) {
      const unsigned f = f0 + i * kRowsAtOnce + row_;
      sum[i] = {{0, 0, 0, 0, 0, 0, 0, 0}};
      rest[i].Load(tile_, state_.s_rest + size_t{f} * padded_values_ + c, u_, f < args_.dim);
      old[i].Load(tile_, SumsOf(f, c), u_, f < args_.dim);
    }
    for (unsigned r = 0; r < kRows; ++r) {
      RawColumns<T> raw;
      raw.LoadShared(rows_, r * width + kPadded + c, u_);
      const Columns value = raw.Get();
      LINNET_UNROLL
      for (unsigned i = 0; i < kFolded; ++i) {
        const unsigned f = f0 + i * kRowsAtOnce + row_;
        const float key = ToFloat(rows_.Get(r * width + ColumnIndex(state_.rows, f)));
        LINNET_UNROLL
        for (unsigned e = 0; e < 8; ++e) sum[i].at[e] += key * value.at[e];
      }
    }
    LINNET_UNROLL
    for (unsigned i = 0; i < kFolded; ++i) {
      const unsigned f = f0 + i * kRowsAtOnce + row_;
      if (f >= args_.dim) continue;
      const Columns before = old[i].Get(), more = rest[i].Get();
      Columns add, both, lost;
      LINNET_UNROLL
      for (unsigned e = 0; e < 8; ++e) {
        add.at[e] = more.at[e] + sum[i].at[e];
        both.at[e] = before.at[e] + add.at[e];
      }
      const size_t at = size_t{f} * padded_values_ + c;
      const Columns now = StoreColumns(tile_, state_.s + at, u_, both);
      LINNET_UNROLL
      for (unsigned e = 0; e < 8; ++e) lost.at[e] = LostOf(before.at[e], add.at[e], now.at[e]);
      StoreColumns(tile_, state_.s_rest + at, u_, lost);
    }
  }

  Tile& tile_;
  const DecodeStepArgs& args_;
  const Head& io_;
  const unsigned waiting_, padded_values_;
  const HeadOf<T> state_;
  const decltype(std::declval<Tile&>().template Shared<float>(0, 0)) query_;
  const decltype(std::declval<Tile&>().template Shared<T>(0, 0)) rows_;
  const unsigned row_, u_;  // the lane's row of every eight, and its first column u
  RawColumns<T> sums_[kEarly ? kPadded / kRowsAtOnce : 1];
  RawColumns<T> keys_[kGroups][kFeatureBlocks], values_[kGroups];  // of the waiting rows
  float q_[kFeatureBlocks], k_[kFeatureBlocks], z_[kFeatureBlocks], v_;
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
