// The Highway body of linear_step.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_LINEAR_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_LINEAR_STEP_INL_H_
#undef LINNET_KERNELS_LINEAR_STEP_INL_H_
#else
#define LINNET_KERNELS_LINEAR_STEP_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/linear_step.h"
#include "linnet/kernels/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Columns lie in blocks of this size. In bf16, column c of a block's first half and column c +
// kHalf share a 32-bit word: one shift extracts the first, one mask the second.
inline constexpr size_t kColumns = LinearStepShape::kPad, kHalf = kColumns / 2;
// Number of rows that LinearExtend() sums before it adds the sum to the state.
inline constexpr size_t kExtendRows = 64;

template <typename T>
inline constexpr size_t kRecentKeys = LinearStepShape::RecentKeys(std::is_same_v<T, BFloat16>);

// A pair of vectors: the kLanes columns of a block from u on, and those from kHalf + u on.
struct Pair {
  Vec low, high;
};

HWY_INLINE Pair LoadPair(const float* block, size_t u) {
  return {hn::Load(F32(), block + u), hn::Load(F32(), block + kHalf + u)};
}
// Returns the pair as stored, rounded to the block's type.
HWY_INLINE Pair StorePair(Pair x, float* block, size_t u) {
  hn::Store(x.low, F32(), block + u);
  hn::Store(x.high, F32(), block + kHalf + u);
  return x;
}

using U32 = hn::RebindToUnsigned<F32>;

// x as bits, with the nearest bfloat16 in the upper half.
HWY_INLINE hn::Vec<U32> RoundedBits(Vec x) {
  const U32 d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fff)));
  const auto nan = hn::RebindMask(d, hn::IsNaN(x));  // rounding might turn NaN into infinity or 0
  return hn::IfThenElse(nan, hn::Or(bits, hn::Set(d, 0x400000)), rounded);
}
HWY_INLINE hn::Vec<U32> UpperHalves(hn::Vec<U32> bits) {
  return hn::And(bits, hn::Set(U32(), 0xffff0000u));
}

HWY_INLINE Pair LoadPair(const BFloat16* block, size_t u) {
  const auto words = hn::Load(U32(), reinterpret_cast<const uint32_t*>(block) + u);
  return {hn::BitCast(F32(), hn::ShiftLeft<16>(words)), hn::BitCast(F32(), UpperHalves(words))};
}
HWY_INLINE Pair StorePair(Pair x, BFloat16* block, size_t u) {
  const auto low = UpperHalves(RoundedBits(x.low)), high = UpperHalves(RoundedBits(x.high));
  hn::Store(hn::Or(hn::ShiftRight<16>(low), high), U32(), reinterpret_cast<uint32_t*>(block) + u);
  return {hn::BitCast(F32(), low), hn::BitCast(F32(), high)};
}

HWY_INLINE Vec LoadUpTo(const float* from, size_t count) {
  return count == 0 ? hn::Zero(F32()) : ZeroBeyond(LoadN(from, count), count);
}
// Number of used lanes of the vector that begins at column `before` of a row with `of` columns.
HWY_INLINE size_t Used(size_t of, size_t before) {
  return of > before ? std::min(kLanes, of - before) : 0;
}
// The pair at column c + u of a row of `count` floats, zero beyond the row's end.
HWY_INLINE Pair LoadPairOf(const float* row, size_t count, size_t c, size_t u) {
  if (HWY_LIKELY(c + kColumns <= count)) {
    return {hn::LoadU(F32(), row + c + u), hn::LoadU(F32(), row + c + kHalf + u)};
  }
  return {LoadUpTo(row + c + u, Used(count, c + u)),
          LoadUpTo(row + c + kHalf + u, Used(count, c + kHalf + u))};
}
// Stores the pair at column c + u of a row of `count` floats.
HWY_INLINE void StorePairOf(Pair x, float* row, size_t count, size_t c, size_t u) {
  if (HWY_LIKELY(c + kColumns <= count)) {
    hn::StoreU(x.low, F32(), row + c + u);
    hn::StoreU(x.high, F32(), row + c + kHalf + u);
    return;
  }
  if (const size_t used = Used(count, c + u)) StoreN(x.low, row + c + u, used);
  if (const size_t used = Used(count, c + kHalf + u)) StoreN(x.high, row + c + kHalf + u, used);
}
// phi of the pair that LoadPairOf() loads, zero beyond the end of the row.
HWY_INLINE Pair PhiPairOf(FeatureMap map, const float* row, size_t count, size_t c, size_t u) {
  const Pair x = LoadPairOf(row, count, c, u);
  const Pair phi{Phi(map, x.low), Phi(map, x.high)};
  if (HWY_LIKELY(c + kColumns <= count)) return phi;
  const auto only = [&](Vec y, size_t used)
                        HWY_ATTR { return used == 0 ? hn::Zero(F32()) : ZeroBeyond(y, used); };
  return {only(phi.low, Used(count, c + u)), only(phi.high, Used(count, c + kHalf + u))};
}

HWY_INLINE Pair Plus(Pair a, Pair b) { return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)}; }

// One head's state. T is the type of the leading part of s and of the rows; Rest is the type of the
// remainder of s.
template <typename T>
struct HeadState {
  using Rest = std::conditional_t<std::is_same_v<T, float>, BFloat16, float>;

  T* s;             // [F, M']
  float* z;         // [F']
  float* z_recent;  // [F']: sum of the waiting keys
  T* rows;          // [RecentKeys(), F' + M']
  Rest* s_rest;
  float* z_rest;
  size_t dim, fp, mp, row_stride;

  HeadState(const LinearStepShape& shape, float* hot, float* cold, size_t h)
      : dim(shape.dim),
        fp(LinearStepShape::Padded(shape.dim)),
        mp(LinearStepShape::Padded(shape.value_dim)),
        row_stride(shape.heads * (fp + mp)) {
    s = reinterpret_cast<T*>(hot) + h * dim * mp;
    z = hot + shape.HotZ() + 2 * h * fp;
    z_recent = z + fp;
    rows = reinterpret_cast<T*>(hot + shape.HotRows()) + h * (fp + mp);
    z_rest = cold + h * fp;
    s_rest = reinterpret_cast<Rest*>(cold + shape.ColdSums()) + h * dim * mp;
  }
  T* Row(size_t i) const { return rows + i * row_stride; }
  // Moves on to the next head.
  void Advance() {
    s += dim * mp, z += 2 * fp, z_recent += 2 * fp, rows += fp + mp;
    s_rest += dim * mp, z_rest += fp;
  }
};

// The rounding error of now = old + add, by Knuth's two-sum. If `now` is rounded to fp32, the
// result is exact, because the error of an fp32 sum is itself a float.
HWY_INLINE Vec Lost(Vec old, Vec add, Vec now) {
  const Vec shown = hn::Sub(now, old);  // the part of `add` that `now` contains
  return hn::Add(hn::Sub(old, hn::Sub(now, shown)), hn::Sub(add, shown));
}
// Adds x to sum + rest. The new sum is rounded to T; its rounding error becomes the new rest.
template <typename T, typename Rest>
HWY_INLINE void AddTo(T* sum, Rest* rest, size_t u, Pair x) {
  const Pair old = LoadPair(sum, u), more = LoadPair(rest, u);
  const Pair add = Plus(more, x), now = StorePair(Plus(old, add), sum, u);
  StorePair({Lost(old.low, add.low, now.low), Lost(old.high, add.high, now.high)}, rest, u);
}

// Calls body(c, u) for each pair of vectors in a row of `padded` columns: c is the first column of
// a block, u the pair's offset within the block.
template <class Body>
HWY_INLINE void ForPairs(size_t padded, const Body& body) {
  for (size_t c = 0; c < padded; c += kColumns) {
    for (size_t u = 0; u < kHalf; u += kLanes) body(c, u);
  }
}

// s += the sum over `count` rows of phi(k_i) value(i)^T, for features [f0, f0 + kColumns); phi
// [count, kColumns] holds those features.
template <typename T, class Value>
HWY_INLINE void AddRows(const HeadState<T>& state, size_t count, size_t f0,
                        const float* HWY_RESTRICT phi, const Value& value) {
  const F32 d;
  constexpr size_t kBlock = HWY_TARGET == HWY_AVX3 ? 8 : 4;
  const size_t features = std::min(kColumns, state.dim - f0);
  for (size_t f = 0; f < features; f += kBlock) {
    ForPairs(state.mp, [&](size_t c, size_t u) HWY_ATTR {
      Vec low[kBlock], high[kBlock];
      Unrolled<kBlock>([&](auto r) HWY_ATTR { low[r] = high[r] = hn::Zero(d); });
      for (size_t i = 0; i < count; ++i) {
        const Pair v = value(i, c, u);
        const float* key = phi + i * kColumns + f;
        Unrolled<kBlock>([&](auto r) HWY_ATTR {
          const Vec k = hn::Set(d, key[r]);
          low[r] = hn::MulAdd(k, v.low, low[r]);
          high[r] = hn::MulAdd(k, v.high, high[r]);
        });
      }
      Unrolled<kBlock>([&](auto r) HWY_ATTR {
        if (f + r >= features) return;
        const size_t at = (f0 + f + r) * state.mp + c;
        AddTo(state.s + at, state.s_rest + at, u, {low[r], high[r]});
      });
    });
  }
}

// Adds the `recent` waiting keys and values of a head to its sums (LinearFold()).
template <typename T>
HWY_NOINLINE void FoldHead(const HeadState<T>& state, size_t recent) {
  HWY_ALIGN float phi[kRecentKeys<T> * kColumns];
  for (size_t f0 = 0; f0 < state.dim; f0 += kColumns) {
    for (size_t i = 0; i < recent; ++i) {
      for (size_t u = 0; u < kHalf; u += kLanes) {
        StorePair(LoadPair(state.Row(i) + f0, u), phi + i * kColumns, u);
      }
    }
    AddRows(state, recent, f0, phi, [&](size_t i, size_t c, size_t u) HWY_ATTR {
      return LoadPair(state.Row(i) + state.fp + c, u);
    });
    for (size_t u = 0; u < kHalf; u += kLanes) {
      AddTo(state.z + f0, state.z_rest + f0, u, LoadPair(state.z_recent + f0, u));
      StorePair({hn::Zero(F32()), hn::Zero(F32())}, state.z_recent + f0, u);
    }
  }
}

// Adds `length` <= kExtendRows keys and values to the sums of a head (LinearExtend()).
template <typename T>
HWY_NOINLINE void ExtendHead(const HeadState<T>& state, FeatureMap map, size_t value_dim,
                             size_t length, const float* k, ptrdiff_t k_stride, const float* v,
                             ptrdiff_t v_stride) {
  HWY_ALIGN float phi[kExtendRows * kColumns];
  for (size_t f0 = 0; f0 < state.dim; f0 += kColumns) {
    for (size_t i = 0; i < length; ++i) {
      const float* row = k + static_cast<ptrdiff_t>(i) * k_stride;
      for (size_t u = 0; u < kHalf; u += kLanes) {
        StorePair(PhiPairOf(map, row, state.dim, f0, u), phi + i * kColumns, u);
      }
    }
    for (size_t u = 0; u < kHalf; u += kLanes) {
      Pair sum{hn::Zero(F32()), hn::Zero(F32())};
      for (size_t i = 0; i < length; ++i) sum = Plus(sum, LoadPair(phi + i * kColumns, u));
      AddTo(state.z + f0, state.z_rest + f0, u, sum);
    }
    AddRows(state, length, f0, phi, [&](size_t i, size_t c, size_t u) HWY_ATTR {
      return LoadPairOf(v + static_cast<ptrdiff_t>(i) * v_stride, value_dim, c, u);
    });
  }
}

// Prefetches `bytes` bytes at an offset of `next` bytes from `at`.
HWY_INLINE void AskFor(const void* at, size_t bytes, ptrdiff_t next) {
  for (size_t i = 0; i < bytes; i += 64) {
    hwy::Prefetch(static_cast<const std::byte*>(at) + next + static_cast<ptrdiff_t>(i));
  }
}

// Byte offsets from a head's s and rows to the next head's s and rows. While a head is read, those
// of the next head are prefetched line by line.
struct Next {
  ptrdiff_t s, rows;
};

// For the pair at column u of a block, adds the weighted sum of `count` rows to low and high, in
// four chains of additions each. Also prefetches the same block of the next head, `next` bytes
// further on.
template <typename T>
HWY_INLINE void AddWeighted(const T* HWY_RESTRICT row, size_t stride, size_t count,
                            const float* HWY_RESTRICT weights, size_t u, ptrdiff_t next,
                            Vec (&low)[4], Vec (&high)[4]) {
  Vec l0 = low[0], l1 = low[1], l2 = low[2], l3 = low[3];
  Vec h0 = high[0], h1 = high[1], h2 = high[2], h3 = high[3];
  const auto add = [&](size_t i, Vec& l, Vec& h) HWY_ATTR {
    const Vec w = hn::Set(F32(), weights[i]);
    const Pair x = LoadPair(row + i * stride, u);
    if (u == 0) AskFor(row + i * stride, kColumns * sizeof(T), next);
    l = hn::MulAdd(w, x.low, l);
    h = hn::MulAdd(w, x.high, h);
  };
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    add(i, l0, h0), add(i + 1, l1, h1), add(i + 2, l2, h2), add(i + 3, l3, h3);
  }
  for (; i < count; ++i) add(i, l0, h0);
  low[0] = l0, low[1] = l1, low[2] = l2, low[3] = l3;
  high[0] = h0, high[1] = h1, high[2] = h2, high[3] = h3;
}

HWY_INLINE Vec SumOfFour(const Vec (&x)[4]) {
  return hn::Add(hn::Add(x[0], x[1]), hn::Add(x[2], x[3]));
}

// Computes the pair at column c + u of out = scale (phi(q) s + weighted sum of `count` waiting
// values).
template <typename T>
HWY_INLINE void ReadColumns(const HeadState<T>& state, const float* HWY_RESTRICT phi_q,
                            size_t count, const float* HWY_RESTRICT weights, Next next, size_t c,
                            size_t u, size_t value_dim, float scale, float* HWY_RESTRICT out) {
  const F32 d;
  const Vec zero = hn::Zero(d);
  Vec low[4] = {zero, zero, zero, zero}, high[4] = {zero, zero, zero, zero};
  AddWeighted(state.s + c, state.mp, state.dim, phi_q, u, next.s, low, high);
  AddWeighted(state.Row(0) + state.fp + c, state.row_stride, count, weights, u, next.rows, low,
              high);
  const Vec by = hn::Set(d, scale);
  StorePairOf({hn::Mul(by, SumOfFour(low)), hn::Mul(by, SumOfFour(high))}, out, value_dim, c, u);
}

// z including the waiting keys.
template <typename T>
HWY_INLINE Pair WholeZ(const HeadState<T>& state, size_t f, size_t u) {
  return Plus(LoadPair(state.z + f, u), LoadPair(state.z_recent + f, u));
}

// |z|, including the waiting keys.
template <typename T>
HWY_NOINLINE float LengthOfZ(const HeadState<T>& state) {
  Vec squares = hn::Zero(F32());
  ForPairs(state.fp, [&](size_t f, size_t u) HWY_ATTR {
    const Pair z = WholeZ(state, f, u);
    squares = hn::Add(squares, hn::MulAdd(z.low, z.low, hn::Mul(z.high, z.high)));
  });
  return std::sqrt(SumOf(squares));
}

// Appends a position: writes phi(k) and v to the row `recent`, adds phi(k) to z_recent, and writes
// phi(q) to phi_q [F'].
template <typename T>
HWY_INLINE void Append(const HeadState<T>& state, FeatureMap map, size_t value_dim,
                       const float* HWY_RESTRICT q, const float* HWY_RESTRICT k,
                       const float* HWY_RESTRICT v, size_t recent, float* HWY_RESTRICT phi_q) {
  T* row = state.Row(recent);
  ForPairs(state.fp, [&](size_t f, size_t u) HWY_ATTR {
    const Pair key = StorePair(PhiPairOf(map, k, state.dim, f, u), row + f, u);
    StorePair(Plus(LoadPair(state.z_recent + f, u), key), state.z_recent + f, u);
    StorePair(PhiPairOf(map, q, state.dim, f, u), phi_q + f, u);
  });
  ForPairs(state.mp, [&](size_t c, size_t u) HWY_ATTR {
    StorePair(LoadPairOf(v, value_dim, c, u), row + state.fp + c, u);
  });
}

// Computes one head's out for a position, with `count` waiting rows including the position's own.
template <typename T>
HWY_INLINE void ReadHead(const HeadState<T>& state, const CausalLinearOptions& options,
                         size_t value_dim, const float* HWY_RESTRICT phi_q, size_t count,
                         float floor, Next next, float* HWY_RESTRICT out) {
  const F32 d;
  HWY_ALIGN float weights[kRecentKeys<T>];
  if (count == kRecentKeys<T>) {  // prefetch for the fold, which follows once all heads are done
    AskFor(state.s_rest, state.dim * state.mp * sizeof(*state.s_rest), 0);
  }
  // Takes four rows at a time. Rows from `count` on are stale; their results are not used.
  for (size_t i = 0; i < count; i += 4) {
    Vec dot[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    ForPairs(state.fp, [&](size_t f, size_t u) HWY_ATTR {
      const Pair phi = LoadPair(phi_q + f, u);
      Unrolled<4>([&](auto r) HWY_ATTR {
        const T* at = state.Row(i + r) + f;
        if (u == 0) AskFor(at, kColumns * sizeof(T), next.rows);
        const Pair key = LoadPair(at, u);
        dot[r] = hn::Add(dot[r], hn::MulAdd(phi.low, key.low, hn::Mul(phi.high, key.high)));
      });
    });
    StoreSums(dot[0], dot[1], dot[2], dot[3], weights + i);
  }
  float scale = 1;
  if (options.normalize) {
    // One addition to `total` per iteration: in the target without SIMD, GCC 12 at -O3 miscompiles
    // total = a * b + (c * d + total) (docs/decisions/007).
    Vec total = hn::Zero(d);
    ForPairs(state.fp, [&](size_t f, size_t u) HWY_ATTR {
      const Pair phi = LoadPair(phi_q + f, u), z = WholeZ(state, f, u);
      total = hn::Add(total, hn::MulAdd(phi.low, z.low, hn::Mul(phi.high, z.high)));
    });
    const float sum = SumOf(total);
    scale = floor > 0 ? 1 / std::max(sum, floor * LengthOfZ(state)) : Reciprocal(sum + options.eps);
  }
  ForPairs(state.mp, [&](size_t c, size_t u) HWY_ATTR {
    ReadColumns(state, phi_q, count, weights, next, c, u, value_dim, scale, out);
  });
}

template <typename T>
HWY_INLINE void StepAll(const LinearStepShape& shape, size_t batch,
                        const CausalLinearOptions& options, const LinearStepArgs& args) {
  const size_t fp = LinearStepShape::Padded(shape.dim), heads = args.heads.end - args.heads.begin;
  // The index of the state of the call's n-th sequence.
  const auto place = [&](size_t n) { return args.sequences ? args.sequences[n] : n; };
  for (size_t n = 0; n < batch; ++n) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(place(n)) * args.state_stride;
    const size_t recent = args.recent[place(n)];
    const HeadState<T> first(shape, args.hot + at, args.cold + at, args.heads.begin);
    // Appends to all heads before it reads any: reading a head right after appending to it would
    // wait for the exponentials of its feature map.
    HeadState<T> state = first;
    for (size_t h = 0; h < heads; ++h, state.Advance()) {
      Append(state, options.feature_map, shape.value_dim, args.q.At(n, 0, h), args.k.At(n, 0, h),
             args.v.At(n, 0, h), recent, args.scratch + h * fp);
    }
    const auto bytes = [](size_t count) { return static_cast<ptrdiff_t>(count * sizeof(T)); };
    const Next within{bytes(state.dim * state.mp), bytes(state.fp + state.mp)};
    // The last head prefetches the first head of the next sequence or, in the last sequence, of the
    // same sequence.
    const size_t after = n + 1 < batch ? place(n + 1) : place(n);
    const ptrdiff_t across = (static_cast<ptrdiff_t>(after) * args.state_stride - at) *
                             static_cast<ptrdiff_t>(sizeof(float));
    const auto back = static_cast<ptrdiff_t>(heads - 1);
    const Next behind{across - back * within.s, across - back * within.rows};
    state = first;
    for (size_t h = 0; h < heads; ++h, state.Advance()) {
      ReadHead(state, options, shape.value_dim, args.scratch + h * fp, recent + 1, args.floor,
               h + 1 < heads ? within : behind, args.out.At(n, 0, h));
    }
    if (recent + 1 < kRecentKeys<T>) continue;
    state = first;
    for (size_t h = 0; h < heads; ++h, state.Advance()) FoldHead(state, kRecentKeys<T>);
  }
}

void LinearStepBody(const LinearStepShape& shape, size_t batch, const CausalLinearOptions& options,
                    const LinearStepArgs& args) {
  if (shape.narrow) {
    StepAll<BFloat16>(shape, batch, options, args);
  } else {
    StepAll<float>(shape, batch, options, args);
  }
}

// Calls body(head's state, index within the range) for each head of a range.
template <class Body>
HWY_INLINE void ForHeads(const LinearStepShape& shape, HeadRange heads, float* hot, float* cold,
                         const Body& body) {
  for (size_t h = heads.begin; h < heads.end; ++h) {
    if (shape.narrow) {
      body(HeadState<BFloat16>(shape, hot, cold, h), h - heads.begin);
    } else {
      body(HeadState<float>(shape, hot, cold, h), h - heads.begin);
    }
  }
}

void LinearFoldBody(const LinearStepShape& shape, HeadRange heads, float* hot, float* cold,
                    size_t recent) {
  ForHeads(shape, heads, hot, cold,
           [&](const auto& state, size_t) HWY_ATTR { FoldHead(state, recent); });
}

void LinearSumsBody(const LinearStepShape& shape, HeadRange heads, const float* hot,
                    const float* cold, float* s, float* z) {
  const auto sums = [&](const auto& state, size_t h) HWY_ATTR {
    const auto copy = [&](const auto* sum, const auto* rest, size_t n, float* to) HWY_ATTR {
      ForPairs(LinearStepShape::Padded(n), [&](size_t c, size_t u) HWY_ATTR {
        StorePairOf(Plus(LoadPair(sum + c, u), LoadPair(rest + c, u)), to, n, c, u);
      });
    };
    for (size_t f = 0; f < shape.dim; ++f) {
      copy(state.s + f * state.mp, state.s_rest + f * state.mp, shape.value_dim,
           s + (h * shape.dim + f) * shape.value_dim);
    }
    copy(state.z, state.z_rest, shape.dim, z + h * shape.dim);
  };
  ForHeads(shape, heads, const_cast<float*>(hot), const_cast<float*>(cold), sums);
}

void LinearExtendBody(const LinearStepShape& shape, HeadRange heads, FeatureMap feature_map,
                      size_t length, Strided<const float> k, Strided<const float> v, float* hot,
                      float* cold) {
  ForHeads(shape, heads, hot, cold, [&](const auto& state, size_t h) HWY_ATTR {
    for (size_t i = 0; i < length; i += kExtendRows) {
      ExtendHead(state, feature_map, shape.value_dim, std::min(kExtendRows, length - i),
                 k.At(0, i, h), k.time, v.At(0, i, h), v.time);
    }
  });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LINEAR_STEP_INL_H_
