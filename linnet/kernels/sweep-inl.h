// Building block of the linear attentions' Highway bodies. For each token of a block, a sweep adds
// b_t v_t^T to a state and multiplies a_t by the state:
//
//   s += b_t v_t^T,  out_t += a_t s      for t in order
//
// A slice of the state (kRows x 2 vectors) stays in registers for a whole block of tokens. This
// divides the plain recurrence's memory traffic for the state by the number of tokens in a block.
// At D = M = 32 a sweep also needs fewer operations than the masked products of a chunked form:
// 4 D M per token against 4 D M + 2 C (D + M) for chunks of C tokens.
#if defined(LINNET_KERNELS_SWEEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_SWEEP_INL_H_
#undef LINNET_KERNELS_SWEEP_INL_H_
#else
#define LINNET_KERNELS_SWEEP_INL_H_
#endif

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "linnet/base/aligned.h"
#include "linnet/kernels/bfloat16-inl.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/exp-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Rows of the state held in registers. With 32 vector registers, 8 x 2 accumulators leave room for
// the operands; with 16 registers, 4 x 2 do.
inline constexpr size_t kRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;

inline constexpr size_t kLanes = hn::MaxLanes(F32());
inline constexpr size_t kStrip = 2 * kLanes;  // columns of the state held in registers

// In scratch, dimensions are padded to a multiple of this. It is a multiple of every target's lanes
// and of kRows.
inline constexpr size_t kPad = 16;
constexpr size_t Padded(size_t n) { return (n + kPad - 1) / kPad * kPad; }

HWY_INLINE Vec Phi(FeatureMap map, Vec x) {
  if (map == FeatureMap::kIdentity) return x;
  const F32 d;
  return hn::IfThenElse(hn::Ge(x, hn::Zero(d)), hn::Add(x, hn::Set(d, 1.0f)), Exp(x));
}

// Rows of a block of tokens, `stride` elements apart. A negative stride runs from later to earlier
// tokens.
template <typename T>
struct Rows {
  T* at;
  ptrdiff_t stride;

  Rows Columns(size_t first) const { return {at + first, stride}; }
  T* Row(size_t t) const { return at + static_cast<ptrdiff_t>(t) * stride; }
};

// Writes phi of rows of n numbers to scratch, padded with zeros to Padded(n).
template <FeatureMap kMap, typename T>
HWY_NOINLINE void PackRows(Rows<const T> from, size_t tokens, size_t n, float* HWY_RESTRICT to) {
  const F32 d;
  if (n % kPad == 0 && from.stride == static_cast<ptrdiff_t>(n)) n *= tokens, tokens = 1;
  const size_t padded = Padded(n), whole = n / kLanes * kLanes;
  for (size_t t = 0; t < tokens; ++t, to += padded) {
    const T* row = from.Row(t);
    for (size_t i = 0; i < whole; i += kLanes) {
      hn::Store(Phi(kMap, LoadN(row + i, kLanes)), d, to + i);
    }
    for (size_t i = whole; i < padded; i += kLanes) {
      const Vec x = i < n ? ZeroBeyond(Phi(kMap, LoadN(row + i, n - i)), n - i) : hn::Zero(d);
      hn::Store(x, d, to + i);
    }
  }
}

// Prefetches into the second-level cache.
HWY_INLINE void PrefetchFar(const float* at) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  __builtin_prefetch(at, /*rw=*/0, /*locality=*/2);
#else
  hwy::Prefetch(at);
#endif
}

// The rows of the next block, to prefetch while the current block is swept. They are divided into
// columns of cache lines (one line of each row), and the sweep of each slice of the state
// prefetches two columns. The lines go to the first-level cache, or to the second-level cache if
// rows are so far apart that they would evict each other from the first.
class Ahead {
 public:
  // `nothing`: an address to prefetch when no lines are left.
  explicit Ahead(const float* nothing) : nothing_{nothing, 0} {}

  // Adds the lines of `rows`, `width` floats wide, as far as there is room. `close`: whether the
  // rows fit in the first-level cache together.
  void Add(Rows<const float> rows, size_t width, bool close) {
    far_ = far_ || !close;
    constexpr size_t kLine = 64 / sizeof(float);
    for (size_t i = 0; i < width && count_ < kMost; i += kLine) lines_[count_++] = rows.Columns(i);
  }
  bool far() const { return far_; }
  HWY_INLINE Rows<const float> Take() { return taken_ < count_ ? lines_[taken_++] : nothing_; }

 private:
  static constexpr size_t kMost = 64;

  Rows<const float> lines_[kMost];
  Rows<const float> nothing_;
  size_t count_ = 0, taken_ = 0;
  bool far_ = false;
};

// The steps of a sweep at each token.
enum class Pass {
  kBoth,    // adds the token to the state, then multiplies by the state
  kUpdate,  // adds only
  kRead,    // multiplies only
};

// Postprocessing of a sweep's sums.
enum class Finish {
  kNone,
  kScale,       // multiplies each row by its factor
  kDerivative,  // turns a gradient of phi(x) into a gradient of x
};

// Inputs and outputs of a sweep; see Sweep().
struct Operands {
  size_t tokens;
  Rows<const float> a, b, v;
  Rows<float> out;  // accumulates the sums
  Rows<float> to;   // receives the finished sums; may be `out`
  Finish finish = Finish::kNone;
  const float* scale = nullptr;       // [tokens]
  Rows<const float> phi{nullptr, 0};  // phi(x), as wide as out
};

// Sweeps one slice of the state, kRows x (kVectors * kLanes), over all tokens of a block:
//   s += b_t v_t^T; out_t += a_t s, or out_t = a_t s if kFirst.
// The last slice of a strip (kLast) finishes the sums.
template <Pass kPass, size_t kVectors, bool kFirst, bool kLast, Finish kFinish>
HWY_INLINE void SweepSlice(const Operands& x, size_t row, size_t column, float* HWY_RESTRICT s,
                           Ahead& ahead) {
  const F32 d;
  const float* a = x.a.at + row;
  const float* b = x.b.at + row;
  const float* v = x.v.at + column;
  float* out = x.out.at + column;
  float* to = kLast ? x.to.at + column : out;
  const ptrdiff_t to_stride = kLast ? x.to.stride : x.out.stride;
  const float* scale = x.scale;
  const float* phi = kFinish == Finish::kDerivative ? x.phi.at + column : nullptr;
  const bool far = ahead.far();
  Rows<const float> ahead0 = ahead.Take(), ahead1 = ahead.Take();
  Vec state[kRows][kVectors];
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      state[r][c] = hn::Load(d, s + (r * kVectors + c) * kLanes);
    }
  }
  for (size_t left = x.tokens; left > 0; --left) {
    if (far) {
      PrefetchFar(ahead0.at);
      PrefetchFar(ahead1.at);
    } else {
      hwy::Prefetch(ahead0.at);
      hwy::Prefetch(ahead1.at);
    }
    Vec v_t[kVectors], out_t[kVectors];
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      if (kPass != Pass::kRead) v_t[c] = hn::LoadU(d, v + c * kLanes);
      if (kPass == Pass::kUpdate) continue;
      out_t[c] = kFirst ? hn::Zero(d) : hn::LoadU(d, out + c * kLanes);
    }
    // With AVX-512, each multiply-add broadcasts `a` from its own memory operand instead of sharing
    // a register between both vectors. This takes fewer instructions and 8% less time.
    const float* again = a;
    if (HWY_TARGET == HWY_AVX3) HidePointer(again);
    HWY_UNROLL(8)
    for (size_t r = 0; r < kRows; ++r) {
      const Vec b_r = kPass == Pass::kRead ? hn::Zero(d) : hn::Set(d, b[r]);
      HWY_UNROLL(2)
      for (size_t c = 0; c < kVectors; ++c) {
        if (kPass != Pass::kRead) state[r][c] = hn::MulAdd(b_r, v_t[c], state[r][c]);
        if (kPass == Pass::kUpdate) continue;
        out_t[c] = hn::MulAdd(hn::Set(d, c == 0 ? a[r] : again[r]), state[r][c], out_t[c]);
      }
    }
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors && kPass != Pass::kUpdate; ++c) {
      if (kFinish == Finish::kScale) out_t[c] = hn::Mul(out_t[c], hn::Set(d, *scale));
      if (kFinish == Finish::kDerivative) {
        // phi'(x) = min(phi(x), 1): for x <= 0, phi(x) = e^x <= 1 is its own derivative; for x > 0,
        // phi(x) = x + 1 > 1 has the derivative 1.
        const Vec derivative = hn::Min(hn::LoadU(d, phi + c * kLanes), hn::Set(d, 1.0f));
        out_t[c] = hn::Mul(out_t[c], derivative);
      }
      hn::StoreU(out_t[c], d, to + c * kLanes);
    }
    if (kFinish == Finish::kScale) ++scale;
    if (kFinish == Finish::kDerivative) phi += x.phi.stride;
    to += to_stride;
    a += x.a.stride;
    b += x.b.stride;
    v += x.v.stride;
    out += x.out.stride;
    ahead0.at += ahead0.stride;
    ahead1.at += ahead1.stride;
  }
  if (kPass == Pass::kRead) return;
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      hn::Store(state[r][c], d, s + (r * kVectors + c) * kLanes);
    }
  }
}

// Sweeps all rows of one strip. Not inlined, because its accumulators fill the registers. `set`
// overwrites out_t instead of adding to it.
template <Pass kPass, size_t kVectors, Finish kFinish>
HWY_NOINLINE void SweepStrip(const Operands& x, size_t rows, size_t column, bool set,
                             float* HWY_RESTRICT s, Ahead& ahead) {
  constexpr size_t kSlice = kRows * kVectors * kLanes;
  static_assert(kPad >= 2 * kRows);  // a first slice is never the last one
  size_t r = 0;
  if (set) {
    SweepSlice<kPass, kVectors, true, false, Finish::kNone>(x, 0, column, s, ahead);
    r = kRows, s += kSlice;
  }
  for (; r + kRows < rows; r += kRows, s += kSlice) {
    SweepSlice<kPass, kVectors, false, false, Finish::kNone>(x, r, column, s, ahead);
  }
  SweepSlice<kPass, kVectors, false, true, kFinish>(x, r, column, s, ahead);
}

template <Pass kPass, size_t kVectors>
HWY_INLINE void SweepStrip(const Operands& x, size_t rows, size_t column, bool set, float* s,
                           Ahead& ahead) {
  const auto sweep = x.finish == Finish::kScale ? SweepStrip<kPass, kVectors, Finish::kScale>
                     : x.finish == Finish::kDerivative
                         ? SweepStrip<kPass, kVectors, Finish::kDerivative>
                         : SweepStrip<kPass, kVectors, Finish::kNone>;
  sweep(x, rows, column, set, s, ahead);
}

// A state [rows, columns], both padded, is stored in dense strips of kStrip columns (the last may
// be narrower), so a slice's vectors are a constant distance apart. Calls body(row, first column,
// width, at) for each row of each strip; `at` is the offset in the state of that row of the strip.
template <class Body>
HWY_INLINE void ForStrips(size_t rows, size_t columns, const Body& body) {
  for (size_t c = 0; c < columns; c += kStrip) {
    const size_t width = std::min(kStrip, columns - c);
    for (size_t r = 0; r < rows; ++r) body(r, c, width, c * rows + r * width);
  }
}

// For the tokens of a block in order: s [rows, columns] += b_t v_t^T, out_t (+)= a_t s, and
// to_t = finished out_t. `set` replaces out_t instead of adding to it. rows and columns are padded;
// s is aligned.
template <Pass kPass = Pass::kBoth>
HWY_INLINE void Sweep(const Operands& x, size_t rows, size_t columns, bool set, float* s,
                      Ahead& ahead) {
  size_t c = 0;
  for (; c + kStrip <= columns; c += kStrip) {
    SweepStrip<kPass, 2>(x, rows, c, set, s + c * rows, ahead);
  }
  if (c < columns) SweepStrip<kPass, 1>(x, rows, c, set, s + c * rows, ahead);
}

// The halves of Sweep(): Accumulate() adds all b_t v_t^T of a block to s, ReadOut() computes all
// a_t s.
HWY_INLINE void Accumulate(size_t tokens, Rows<const float> b, Rows<const float> v, size_t rows,
                           size_t columns, float* s, Ahead& ahead) {
  const Rows<float> none{nullptr, 0};
  Sweep<Pass::kUpdate>({tokens, b, b, v, none, none}, rows, columns, false, s, ahead);
}
HWY_INLINE void ReadOut(const Operands& x, size_t rows, size_t columns, bool set, const float* s,
                        Ahead& ahead) {
  Sweep<Pass::kRead>(x, rows, columns, set, const_cast<float*>(s), ahead);
}

HWY_INLINE void Clear(float* to, size_t n) { std::memset(to, 0, n * sizeof(float)); }

// Hands out consecutive pieces of a slot's scratch, each of a multiple of kPad floats, so that all
// pieces are aligned to 64 bytes.
class Arena {
 public:
  explicit Arena(float* at) : at_(NextCacheLine(at)) {}
  float* Take(size_t n) {
    float* piece = at_;
    at_ += Padded(n);
    return piece;
  }
  float* TakeZeroed(size_t n) {
    float* piece = Take(n);
    Clear(piece, Padded(n));
    return piece;
  }

 private:
  float* at_;
};

// A block of tokens: the row of its first token, the number of tokens, and whether it runs
// backwards, toward lower rows.
struct Block {
  size_t first, tokens;
  bool backwards;

  size_t At(size_t t) const { return backwards ? first - t : first + t; }
};

// Rows of one tensor that belong to one head.
template <typename T>
class HeadRows {
 public:
  // The first row, the distance to the next in elements, and the elements per row.
  HeadRows(T* at, ptrdiff_t time, size_t width) : at_(at), time_(time), width_(width) {}

  T* At(size_t l) const { return at_ + static_cast<ptrdiff_t>(l) * time_; }

  // Whether sweeps may use the rows in place: they are whole vectors, and close enough together
  // that a block of them does not collide in a few sets of the cache.
  bool InPlace() const {
    return std::is_same_v<std::remove_const_t<T>, float> && width_ % kPad == 0 && Close();
  }
  bool Close() const { return std::abs(time_) <= 2 * static_cast<ptrdiff_t>(width_); }
  Rows<T> Of(const Block& block) const {
    return {At(block.first), block.backwards ? -time_ : time_};
  }

  void Prefetch(const Block& block, Ahead& ahead) const {
    constexpr ptrdiff_t kFloat = sizeof(float);
    const ptrdiff_t floats = kFloat / static_cast<ptrdiff_t>(sizeof(T));
    ahead.Add({reinterpret_cast<const float*>(At(block.first)),
               (block.backwards ? -time_ : time_) / floats},
              (width_ + static_cast<size_t>(floats) - 1) / static_cast<size_t>(floats), Close());
  }

  // Returns phi of the rows of a block: the rows themselves if possible, otherwise `pack` [tokens,
  // padded width]. In `pack`, rows at positions >= valid are zero.
  Rows<const float> Read(FeatureMap map, const Block& block, size_t valid, float* pack) const {
    const size_t last = block.backwards ? block.first + 1 : block.first + block.tokens;
    if constexpr (std::is_same_v<T, const float>) {
      if (map == FeatureMap::kIdentity && last <= valid && InPlace()) return Of(block);
    }
    // The unmasked tokens: the first ones of the block, or the last ones if it runs backward.
    const size_t padded = Padded(width_);
    const size_t low = block.backwards ? block.first + 1 - block.tokens : block.first;
    const size_t seen = std::min(block.tokens, valid - std::min(valid, low));
    const size_t begin = block.backwards ? block.tokens - seen : 0;
    Clear(pack + (block.backwards ? 0 : seen) * padded, (block.tokens - seen) * padded);
    if (seen > 0) {
      const Rows<const T> rows{At(block.At(begin)), block.backwards ? -time_ : time_};
      const auto body = map == FeatureMap::kElu
                            ? PackRows<FeatureMap::kElu, std::remove_const_t<T>>
                            : PackRows<FeatureMap::kIdentity, std::remove_const_t<T>>;
      body(rows, seen, width_, pack + begin * padded);
    }
    return {pack, static_cast<ptrdiff_t>(padded)};
  }
  Rows<const float> Read(const Block& block, float* pack) const {
    return Read(FeatureMap::kIdentity, block, SIZE_MAX, pack);
  }

  // Destination of a block's results: rows of the tensor if they are whole vectors, else `pack`,
  // from which Store() copies them. A sweep may accumulate its sums in the tensor only if InPlace()
  // holds and the sums do not start from values in `pack`.
  Rows<float> Results(const Block& block, float* pack) const {
    if constexpr (std::is_same_v<T, float>) {
      if (width_ % kPad == 0) return Of(block);
    }
    return {pack, static_cast<ptrdiff_t>(Padded(width_))};
  }
  HWY_INLINE void Store(const Block& block, const Rows<float>& results, const float* pack) const {
    if (results.at != pack) return;
    for (size_t t = 0; t < block.tokens; ++t) {
      T* to = At(block.At(t));
      const float* from = results.Row(t);
      ForVectors(width_, [&](size_t i, size_t used)
                             HWY_ATTR { StoreN(hn::Load(F32(), from + i), to + i, used); });
    }
  }

 private:
  T* at_;
  ptrdiff_t time_;
  size_t width_;
};

// Copies a few vectors. For std::memcpy() of an unknown size, GCC emits string instructions, whose
// startup takes longer than the copy.
HWY_INLINE void CopyRow(const float* from, size_t n, float* to) {
  ForVectors(n,
             [&](size_t i, size_t used) HWY_ATTR { StoreN(LoadN(from + i, used), to + i, used); });
}

// LoadState() converts a dense state [dim, value_dim] to strips, StoreState() converts it back.
// LoadTransposed() converts it to strips of the transpose.
HWY_INLINE void LoadState(const float* from, size_t dim, size_t value_dim, float* to) {
  ForStrips(Padded(dim), Padded(value_dim),
            [&](size_t f, size_t c, size_t width, size_t at) HWY_ATTR {
              if (f >= dim || c >= value_dim) return;
              CopyRow(from + f * value_dim + c, std::min(width, value_dim - c), to + at);
            });
}
HWY_INLINE void LoadTransposed(const float* from, size_t dim, size_t value_dim, float* to) {
  ForStrips(Padded(value_dim), Padded(dim), [&](size_t m, size_t c, size_t width, size_t at) {
    if (m >= value_dim) return;
    for (size_t i = 0; i < width && c + i < dim; ++i) to[at + i] = from[(c + i) * value_dim + m];
  });
}
HWY_INLINE void StoreState(const float* from, size_t dim, size_t value_dim, float* to) {
  ForStrips(Padded(dim), Padded(value_dim),
            [&](size_t f, size_t c, size_t width, size_t at) HWY_ATTR {
              if (f >= dim || c >= value_dim) return;
              CopyRow(from + at, std::min(width, value_dim - c), to + f * value_dim + c);
            });
}
// Transposes strips [rows, columns] into strips [columns, rows].
HWY_INLINE void Transpose(const float* HWY_RESTRICT from, size_t rows, size_t columns,
                          float* HWY_RESTRICT to) {
  ForStrips(rows, columns, [&](size_t r, size_t c, size_t width, size_t at) {
    const size_t strip = r / kStrip * kStrip, across = std::min(kStrip, rows - strip);
    float* column = to + strip * columns + r - strip;
    for (size_t i = 0; i < width; ++i) column[(c + i) * across] = from[at + i];
  });
}

// 1 / den, or 0 if |den| is below every normal float: then no key has been seen and eps is 0, or
// 1 / den might overflow.
HWY_INLINE float Reciprocal(float den) { return std::abs(den) < FLT_MIN ? 0.0f : 1.0f / den; }

HWY_INLINE void Reciprocals(size_t n, const float* from, float* to) {
  const F32 d;
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    const Vec x = LoadN(from + i, used);
    const auto none = hn::Lt(hn::Abs(x), hn::Set(d, FLT_MIN));
    StoreN(hn::IfThenZeroElse(none, hn::Div(hn::Set(d, 1.0f), x)), to + i, used);
  });
}

// to[t] = the sum of the lanes of body(t). Works on four tokens at a time: it may write up to three
// floats beyond the last one, and call body for the last token again.
template <class Body>
HWY_INLINE void SumEach(size_t tokens, float* HWY_RESTRICT to, const Body& body) {
  for (size_t t = 0; t < tokens; t += 4) {
    const size_t last = tokens - 1;
    StoreSums(body(t), body(std::min(t + 1, last)), body(std::min(t + 2, last)),
              body(std::min(t + 3, last)), to + t);
  }
}

// z += the rows of a block, each times its factor (null: 1).
inline HWY_NOINLINE void AddRows(size_t tokens, size_t dp, Rows<const float> rows,
                                 const float* factors, float* HWY_RESTRICT z) {
  const F32 d;
  for (size_t i = 0; i < dp; i += kLanes) {
    Vec sum = hn::Load(d, z + i);
    for (size_t t = 0; t < tokens; ++t) {
      const Vec row = hn::LoadU(d, rows.Row(t) + i);
      sum = factors ? hn::MulAdd(hn::Set(d, factors[t]), row, sum) : hn::Add(row, sum);
    }
    hn::Store(sum, d, z + i);
  }
}

// g_t = grad_out_t / den_t, padded with zeros, and g_den_t = -(g_t . out_t). scale[t] is 1 / den_t.
template <typename T>
HWY_NOINLINE void NumeratorGradients(size_t tokens, size_t n, Rows<const T> grad_out,
                                     Rows<const T> out, const float* HWY_RESTRICT scale,
                                     float* HWY_RESTRICT g, float* HWY_RESTRICT g_den) {
  const F32 d;
  const size_t mp = Padded(n);
  SumEach(tokens, g_den, [&](size_t t) HWY_ATTR {
    const Vec factor = hn::Set(d, scale[t]);
    const T* from = grad_out.Row(t);
    const T* result = out.Row(t);
    Vec dot = hn::Zero(d);
    for (size_t i = 0; i < mp; i += kLanes) {
      Vec x = hn::Zero(d);
      if (i < n) {
        const size_t used = std::min(kLanes, n - i);
        x = hn::Mul(LoadN(from + i, used), factor);  // a partial load is zero beyond its end
        dot = hn::NegMulAdd(x, LoadN(result + i, used), dot);
      }
      hn::Store(x, d, g + t * mp + i);
    }
    return dot;
  });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_SWEEP_INL_H_
