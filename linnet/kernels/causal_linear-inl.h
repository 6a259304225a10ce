// The Highway body of causal_linear.h, compiled once for each instruction set.
//
// Everything is one operation, Sweep(): walk the tokens of a block, add b_t v_t^T to a state and
// read a_t from it. The forward is Sweep(a = phi(q), b = phi(k), v); the three gradients are the
// same sweep with the arguments permuted (two of them from the end of the sequence). A slice of the
// state (kRows x 2 vectors) stays in registers while a whole block of tokens passes, so the state's
// memory traffic is 1/kBlock of the plain recurrence's, and at D = M = 32 it needs fewer operations
// than the masked products of a chunked form (4 D M a token against 4 D M + 2 C (D + M) for chunks
// of C).
#if defined(LINNET_KERNELS_CAUSAL_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_CAUSAL_LINEAR_INL_H_
#undef LINNET_KERNELS_CAUSAL_LINEAR_INL_H_
#else
#define LINNET_KERNELS_CAUSAL_LINEAR_INL_H_
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
#include "linnet/kernels/bfloat16-inl.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/causal_linear_kept.h"
#include "linnet/kernels/exp-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Tokens to a block: the packed rows of a block (six arrays in the backward) and the two states
// stay in a 48 kB first-level cache at D = M = 32.
inline constexpr size_t kBlock = 32;

// Rows of the state held in registers: with 32 vector registers 8 x 2 accumulators leave room for
// the operands; with 16 registers 4 x 2 do.
inline constexpr size_t kRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;

inline constexpr size_t kLanes = hn::MaxLanes(F32());
inline constexpr size_t kStrip = 2 * kLanes;  // columns of the state held in registers

// Dimensions are padded to this in scratch: a multiple of every target's lanes and of kRows.
inline constexpr size_t kPad = 16;
constexpr size_t Padded(size_t n) { return PadTo16(n); }

HWY_INLINE Vec Phi(FeatureMap map, Vec x) {
  if (map == FeatureMap::kIdentity) return x;
  const F32 d;
  return hn::IfThenElse(hn::Ge(x, hn::Zero(d)), hn::Add(x, hn::Set(d, 1.0f)), Exp(x));
}

// Rows of a block of tokens, `stride` floats from one to the next (from the end of the sequence: less
// than 0).
template <typename T>
struct Rows {
  T* at;
  ptrdiff_t stride;

  Rows Columns(size_t first) const { return {at + first, stride}; }
  T* Row(size_t t) const { return at + static_cast<ptrdiff_t>(t) * stride; }
};

// Copies rows of n numbers into scratch, through phi, and zeros behind each up to the padded width.
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

// Cache lines to ask for while a block is swept, of each row of a tensor's next block one: each slice
// of the state takes two of them along.
class Ahead {
 public:
  explicit Ahead(const float* nothing) : nothing_{nothing, 0} {}

  // All lines of `rows`, `width` floats wide.
  void Add(Rows<const float> rows, size_t width) {
    constexpr size_t kLine = 64 / sizeof(float);
    for (size_t i = 0; i < width && count_ < kMost; i += kLine) lines_[count_++] = rows.Columns(i);
  }
  HWY_INLINE Rows<const float> Take() { return taken_ < count_ ? lines_[taken_++] : nothing_; }

 private:
  static constexpr size_t kMost = 64;

  Rows<const float> lines_[kMost];
  Rows<const float> nothing_;
  size_t count_ = 0, taken_ = 0;
};

// What becomes of a sweep's sums.
enum class Finish {
  kNone,
  kScale,       // each row times its factor
  kDerivative,  // a gradient at phi(x) becomes one at x
};

// What a sweep reads and writes; see Sweep().
struct Operands {
  size_t tokens;
  Rows<const float> a, b, v;
  Rows<float> out;  // the sums on their way
  Rows<float> to;   // and where they go; may be `out`
  Finish finish = Finish::kNone;
  const float* scale = nullptr;       // [tokens]
  Rows<const float> phi{nullptr, 0};  // phi(x), as wide as out
};

// One slice of the state, kRows x (kVectors * kLanes), over all tokens of a block:
//   s += b_t v_t^T; out_t += a_t s, or where kFirst out_t = a_t s.
// The last one of a strip (kLast) finishes them.
template <size_t kVectors, bool kFirst, bool kLast, Finish kFinish>
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
    hwy::Prefetch(ahead0.at);
    hwy::Prefetch(ahead1.at);
    Vec v_t[kVectors], out_t[kVectors];
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      v_t[c] = hn::LoadU(d, v + c * kLanes);
      out_t[c] = kFirst ? hn::Zero(d) : hn::LoadU(d, out + c * kLanes);
    }
    // Of each a one broadcast a vector, in the multiply-add's own memory operand, where AVX-512 has
    // one: fewer instructions than a register for both, and 8% less time.
    const float* again = a;
    if (HWY_TARGET == HWY_AVX3) HidePointer(again);
    HWY_UNROLL(8)
    for (size_t r = 0; r < kRows; ++r) {
      const Vec b_r = hn::Set(d, b[r]);
      HWY_UNROLL(2)
      for (size_t c = 0; c < kVectors; ++c) {
        state[r][c] = hn::MulAdd(b_r, v_t[c], state[r][c]);
        out_t[c] = hn::MulAdd(hn::Set(d, c == 0 ? a[r] : again[r]), state[r][c], out_t[c]);
      }
    }
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      if (kFinish == Finish::kScale) out_t[c] = hn::Mul(out_t[c], hn::Set(d, *scale));
      if (kFinish == Finish::kDerivative) {
        // phi'(x): elu(x) + 1 is e^x <= 1 where its derivative is, and above 1 elsewhere.
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
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      hn::Store(state[r][c], d, s + (r * kVectors + c) * kLanes);
    }
  }
}

// All rows of one strip. Not inlined: its accumulators fill the registers.
template <size_t kVectors, Finish kFinish>
HWY_NOINLINE void SweepStrip(const Operands& x, size_t rows, size_t column, bool set,
                             float* HWY_RESTRICT s, Ahead& ahead) {
  constexpr size_t kSlice = kRows * kVectors * kLanes;
  static_assert(kPad >= 2 * kRows);  // a first slice is never the last one
  size_t r = 0;
  if (set) {
    SweepSlice<kVectors, true, false, Finish::kNone>(x, 0, column, s, ahead);
    r = kRows, s += kSlice;
  }
  for (; r + kRows < rows; r += kRows, s += kSlice) {
    SweepSlice<kVectors, false, false, Finish::kNone>(x, r, column, s, ahead);
  }
  SweepSlice<kVectors, false, true, kFinish>(x, r, column, s, ahead);
}

template <size_t kVectors>
HWY_INLINE void SweepStrip(const Operands& x, size_t rows, size_t column, bool set, float* s,
                           Ahead& ahead) {
  const auto sweep = x.finish == Finish::kScale        ? SweepStrip<kVectors, Finish::kScale>
                     : x.finish == Finish::kDerivative ? SweepStrip<kVectors, Finish::kDerivative>
                                                       : SweepStrip<kVectors, Finish::kNone>;
  sweep(x, rows, column, set, s, ahead);
}

// A state [rows, columns], both padded, lies in strips of kStrip columns (the last one may be
// narrower), each dense: so a slice's vectors are a constant distance apart. Calls body(row, first
// column, width, at) for each row of each strip.
template <class Body>
HWY_INLINE void ForStrips(size_t rows, size_t columns, const Body& body) {
  for (size_t c = 0; c < columns; c += kStrip) {
    const size_t width = std::min(kStrip, columns - c);
    for (size_t r = 0; r < rows; ++r) body(r, c, width, c * rows + r * width);
  }
}

// s [rows, columns] += b_t v_t^T, out_t (+)= a_t s for the tokens of a block in order, and what
// becomes of out_t is written to to_t; `set`: out_t is replaced. rows and columns are padded, s is
// aligned.
HWY_INLINE void Sweep(const Operands& x, size_t rows, size_t columns, bool set, float* s,
                      Ahead& ahead) {
  size_t c = 0;
  for (; c + kStrip <= columns; c += kStrip) SweepStrip<2>(x, rows, c, set, s + c * rows, ahead);
  if (c < columns) SweepStrip<1>(x, rows, c, set, s + c * rows, ahead);
}

HWY_INLINE void Clear(float* to, size_t n) { std::memset(to, 0, n * sizeof(float)); }

// Takes consecutive pieces of a slot's scratch; sizes are multiples of kPad, so all stay aligned.
class Arena {
 public:
  explicit Arena(float* at)
      : at_(reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(at) + 63) & ~uintptr_t{63})) {}
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

// Where one head of one sequence is.
struct Place {
  size_t n, h, first, length;
  size_t valid;   // keys from this one on count for nothing
  size_t states;  // of what is kept: index of the first state, of the first denominator
  size_t denominators;

  Place(const CausalLinearShape& shape, const int64_t* lengths, const int64_t* offsets, size_t n,
        size_t h)
      : n(n), h(h), first(0), length(shape.length) {
    const size_t tokens =
        offsets ? static_cast<size_t>(offsets[shape.batch]) : shape.batch * shape.length;
    const Kept kept(shape, tokens, offsets != nullptr);
    denominators = kept.states * kept.state_size + (n * shape.heads + h) * length;
    if (offsets) {
      this->n = 0;
      first = static_cast<size_t>(offsets[n]);
      length = static_cast<size_t>(offsets[n + 1]) - first;
      denominators =
          kept.states * kept.state_size + h * static_cast<size_t>(offsets[shape.batch]) + first;
    }
    const size_t begin = Kept::First(shape, offsets, n);
    states = begin * shape.heads + h * (Kept::First(shape, offsets, n + 1) - begin);
    valid = lengths ? static_cast<size_t>(std::max<int64_t>(lengths[n], 0)) : length;
  }
};

// A block of tokens: the first one's row, and whether the next one is the row behind or in front.
struct Block {
  size_t first, tokens;
  bool backwards;

  size_t At(size_t t) const { return backwards ? first - t : first + t; }
};

// The rows of one tensor that belong to one head.
template <typename T>
class HeadRows {
 public:
  HeadRows(const Strided<T>& x, const Place& place, size_t width)
      : at_(x.data ? x.At(place.n, place.first, place.h) : nullptr), time_(x.time), width_(width) {}

  T* At(size_t l) const { return at_ + static_cast<ptrdiff_t>(l) * time_; }

  // Whether sweeps may use the rows where they are: they are whole vectors, and lie so close together
  // that a block of them does not fall on a few sets of the cache.
  bool InPlace() const {
    return std::is_same_v<std::remove_const_t<T>, float> && width_ % kPad == 0 &&
           std::abs(time_) <= 2 * static_cast<ptrdiff_t>(width_);
  }
  Rows<T> Of(const Block& block) const {
    return {At(block.first), block.backwards ? -time_ : time_};
  }

  void Prefetch(const Block& block, Ahead& ahead) const {
    const ptrdiff_t floats = static_cast<ptrdiff_t>(sizeof(float) / sizeof(T));
    ahead.Add({reinterpret_cast<const float*>(At(block.first)),
               (block.backwards ? -time_ : time_) / floats},
              (width_ + static_cast<size_t>(floats) - 1) / static_cast<size_t>(floats));
  }

  // The rows of a block through phi: where they are if they can stay there, else in `pack`
  // [tokens, padded width], where those of keys beyond `valid` are zero.
  Rows<const float> Read(FeatureMap map, const Block& block, size_t valid, float* pack) const {
    const size_t last = block.backwards ? block.first + 1 : block.first + block.tokens;
    if constexpr (std::is_same_v<T, const float>) {
      if (map == FeatureMap::kIdentity && last <= valid && InPlace()) return Of(block);
    }
    // The tokens that count: the first ones of the block, or if it goes backwards the last ones.
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

  // Where a sweep puts a block's results: into their rows if those are whole vectors, else into
  // `pack`, from where Store() takes them. Sums on their way are better kept in `pack` unless
  // InPlace(), and if they begin there.
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

// A dense state [dim, value_dim] into strips, the same transposed, and back.
HWY_INLINE void LoadState(const float* from, size_t dim, size_t value_dim, float* to) {
  ForStrips(Padded(dim), Padded(value_dim), [&](size_t f, size_t c, size_t width, size_t at) {
    if (f >= dim || c >= value_dim) return;
    std::memcpy(to + at, from + f * value_dim + c, std::min(width, value_dim - c) * sizeof(float));
  });
}
HWY_INLINE void LoadTransposed(const float* from, size_t dim, size_t value_dim, float* to) {
  ForStrips(Padded(value_dim), Padded(dim), [&](size_t m, size_t c, size_t width, size_t at) {
    if (m >= value_dim) return;
    for (size_t i = 0; i < width && c + i < dim; ++i) to[at + i] = from[(c + i) * value_dim + m];
  });
}
HWY_INLINE void StoreState(const float* from, size_t dim, size_t value_dim, float* to) {
  ForStrips(Padded(dim), Padded(value_dim), [&](size_t f, size_t c, size_t width, size_t at) {
    if (f >= dim || c >= value_dim) return;
    std::memcpy(to + f * value_dim + c, from + at, std::min(width, value_dim - c) * sizeof(float));
  });
}
// Strips [rows, columns] into strips [columns, rows].
HWY_INLINE void Transpose(const float* HWY_RESTRICT from, size_t rows, size_t columns,
                          float* HWY_RESTRICT to) {
  ForStrips(rows, columns, [&](size_t r, size_t c, size_t width, size_t at) {
    const size_t strip = r / kStrip * kStrip, across = std::min(kStrip, rows - strip);
    float* column = to + strip * columns + r - strip;
    for (size_t i = 0; i < width; ++i) column[(c + i) * across] = from[at + i];
  });
}

// 1 / den, but 0 where nothing has been seen and eps is 0, or so little that 1 / den has no float.
HWY_INLINE float Reciprocal(float den) { return std::abs(den) < FLT_MIN ? 0.0f : 1.0f / den; }

HWY_INLINE void Reciprocals(size_t n, const float* from, float* to) {
  const F32 d;
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    const Vec x = LoadN(from + i, used);
    const auto none = hn::Lt(hn::Abs(x), hn::Set(d, FLT_MIN));
    StoreN(hn::IfThenZeroElse(none, hn::Div(hn::Set(d, 1.0f), x)), to + i, used);
  });
}

// to[t] = the sum of the lanes of body(t). Four at a time: up to three floats behind the last one are
// written too, and the last token asked for again.
template <class Body>
HWY_INLINE void SumEach(size_t tokens, float* HWY_RESTRICT to, const Body& body) {
  for (size_t t = 0; t < tokens; t += 4) {
    const size_t last = tokens - 1;
    StoreSums(body(t), body(std::min(t + 1, last)), body(std::min(t + 2, last)),
              body(std::min(t + 3, last)), to + t);
  }
}

// z_t = z + k_0 + .. + k_t and den_t = q_t . z_t for the tokens of a block; z becomes the last z_t.
HWY_NOINLINE void Denominators(size_t tokens, size_t dp, Rows<const float> q, Rows<const float> k,
                               float* HWY_RESTRICT z, float* HWY_RESTRICT den) {
  const F32 d;
  HWY_ALIGN float part[kBlock * kLanes];
  for (size_t i = 0; i < dp; i += kLanes) {
    Vec z_t = hn::Load(d, z + i);
    for (size_t t = 0; t < tokens; ++t) {
      z_t = hn::Add(z_t, hn::LoadU(d, k.Row(t) + i));
      const Vec before = i == 0 ? hn::Zero(d) : hn::Load(d, part + t * kLanes);
      hn::Store(hn::MulAdd(z_t, hn::LoadU(d, q.Row(t) + i), before), d, part + t * kLanes);
    }
    hn::Store(z_t, d, z + i);
  }
  SumEach(tokens, den, [&](size_t t) HWY_ATTR { return hn::Load(d, part + t * kLanes); });
}

// to_t = g_t (z + k_0 + .. + k_t): what the denominators' gradients g say of phi(q).
HWY_NOINLINE void FromFront(size_t tokens, size_t dp, Rows<const float> k, Rows<const float> g,
                            float* HWY_RESTRICT z, float* HWY_RESTRICT to) {
  const F32 d;
  for (size_t i = 0; i < dp; i += kLanes) {
    Vec z_t = hn::Load(d, z + i);
    for (size_t t = 0; t < tokens; ++t) {
      z_t = hn::Add(z_t, hn::LoadU(d, k.Row(t) + i));
      hn::Store(hn::Mul(z_t, hn::Set(d, *g.Row(t))), d, to + t * dp + i);
    }
    hn::Store(z_t, d, z + i);
  }
}

// to_t = z + g_0 q_0 + .. + g_t q_t: what they say of phi(k).
HWY_NOINLINE void FromBehind(size_t tokens, size_t dp, Rows<const float> q, Rows<const float> g,
                             float* HWY_RESTRICT z, float* HWY_RESTRICT to) {
  const F32 d;
  for (size_t i = 0; i < dp; i += kLanes) {
    Vec z_t = hn::Load(d, z + i);
    for (size_t t = 0; t < tokens; ++t) {
      z_t = hn::MulAdd(hn::Set(d, *g.Row(t)), hn::LoadU(d, q.Row(t) + i), z_t);
      hn::Store(z_t, d, to + t * dp + i);
    }
    hn::Store(z_t, d, z + i);
  }
}

// g_t = grad_out_t / den_t, padded with zeros, and g_den_t = -(g_t . out_t).
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

template <typename T>
HWY_INLINE void ForwardOf(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearForwardArgsOf<T>& args, float* scratch, size_t n,
                          size_t h) {
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  const size_t dp = Padded(dim), mp = Padded(value_dim), index = n * shape.heads + h;
  const Place place(shape, args.lengths, args.offsets, n, h);
  const size_t length = place.length;
  const HeadRows<const T> q_rows(args.q, place, dim), k_rows(args.k, place, dim);
  const HeadRows<const T> v_rows(args.v, place, value_dim);
  const HeadRows<T> out_rows(args.out, place, value_dim);
  Arena arena(scratch);
  float* q_pack = arena.Take(kBlock * dp);
  float* k_pack = arena.Take(kBlock * dp);
  float* v_pack = arena.Take(kBlock * mp);
  float* out_pack = arena.Take(kBlock * mp);
  float* s = arena.TakeZeroed(dp * mp);
  float* z = arena.TakeZeroed(dp);
  float den[kBlock + 4], scale[kBlock];
  const auto padded_out = static_cast<ptrdiff_t>(mp);
  if (args.s) {
    LoadState(args.s + index * dim * value_dim, dim, value_dim, s);
    if (args.z) std::memcpy(z, args.z + index * dim, dim * sizeof(float));
  }

  const size_t segment = SegmentLength(length), state_size = dp * (mp + 1);
  for (size_t begin = 0; begin < length; begin += kBlock) {
    if (args.kept && begin % segment == 0) {
      float* kept = args.kept + (place.states + begin / segment) * state_size;
      std::memcpy(kept, s, dp * mp * sizeof(float));
      std::memcpy(kept + dp * mp, z, dp * sizeof(float));
    }
    const Block block{begin, std::min(kBlock, length - begin), false};
    const Rows<const float> q = q_rows.Read(options.feature_map, block, SIZE_MAX, q_pack);
    const Rows<const float> k = k_rows.Read(options.feature_map, block, place.valid, k_pack);
    const Rows<const float> v = v_rows.Read(FeatureMap::kIdentity, block, place.valid, v_pack);
    const Rows<float> to = out_rows.Results(block, out_pack);
    const Rows<float> out = out_rows.InPlace() ? to : Rows<float>{out_pack, padded_out};
    Ahead ahead(k.at);
    if (const Block next{begin + kBlock, kBlock, false}; next.first < length) {
      q_rows.Prefetch(next, ahead);
      k_rows.Prefetch(next, ahead);
      v_rows.Prefetch(next, ahead);
      out_rows.Prefetch(next, ahead);
    }
    if (options.normalize) {
      Denominators(block.tokens, dp, q, k, z, den);
      for (size_t t = 0; t < block.tokens; ++t) den[t] += options.eps;
      Reciprocals(block.tokens, den, scale);
      if (args.kept) {
        std::memcpy(args.kept + place.denominators + begin, den, block.tokens * sizeof(float));
      }
    }
    Sweep(
        {block.tokens, q, k, v, out, to, options.normalize ? Finish::kScale : Finish::kNone, scale},
        dp, mp, /*set=*/true, s, ahead);
    out_rows.Store(block, to, out_pack);
  }

  if (args.s) {
    StoreState(s, dim, value_dim, args.s + index * dim * value_dim);
    if (args.z) std::memcpy(args.z + index * dim, z, dim * sizeof(float));
  }
}

// What the sweeps of the backward read: g is the gradient of the numerator, grad_out / den, g_den
// that of the denominator, -(grad_out . out) / den (one float a row).
struct BackwardRows {
  Rows<const float> q, k, v, g, g_den;

  BackwardRows From(size_t t) const {
    return {{q.Row(t), q.stride},
            {k.Row(t), k.stride},
            {v.Row(t), v.stride},
            {g.Row(t), g.stride},
            {g_den.Row(t), g_den.stride}};
  }
  BackwardRows Reversed() const {
    return {{q.at, -q.stride},
            {k.at, -k.stride},
            {v.at, -v.stride},
            {g.at, -g.stride},
            {g_den.at, -g_den.stride}};
  }
};

template <typename T>
HWY_INLINE void BackwardOf(const CausalLinearShape& shape, const CausalLinearOptions& options,
                           const CausalLinearBackwardArgsOf<T>& args, float* scratch, size_t n,
                           size_t h) {
  const FeatureMap map = options.feature_map;
  const bool normalize = options.normalize;
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  const size_t dp = Padded(dim), mp = Padded(value_dim), index = n * shape.heads + h;
  const Place place(shape, args.lengths, args.offsets, n, h);
  const size_t length = place.length;
  const HeadRows<const T> q_rows(args.q, place, dim), k_rows(args.k, place, dim);
  const HeadRows<const T> v_rows(args.v, place, value_dim);
  const HeadRows<const T> out_rows(args.out, place, value_dim);
  const HeadRows<const T> grad_out_rows(args.grad_out, place, value_dim);
  const HeadRows<T> grad_q_rows(args.grad_q, place, dim), grad_k_rows(args.grad_k, place, dim);
  const HeadRows<T> grad_v_rows(args.grad_v, place, value_dim);
  Arena arena(scratch);
  float* q_pack = arena.Take(kKeptRows * dp);
  float* k_pack = arena.Take(kKeptRows * dp);
  float* v_pack = arena.Take(kKeptRows * mp);
  float* g_pack = arena.Take(kKeptRows * mp);
  float* d_pack = arena.Take(kBlock * dp);
  float* m_pack = arena.Take(kBlock * mp);
  float* front = arena.TakeZeroed(dp * mp);  // sum of v phi(k)^T [M, D] over what lies in front
  // Sums over what lies behind: of g phi(q)^T [M, D] and phi(q) g^T [D, M]; begins with the gradient
  // of the last state.
  float* behind_md = arena.TakeZeroed(dp * mp);
  float* behind_dm = arena.TakeZeroed(dp * mp);
  float* front_z = arena.TakeZeroed(dp);
  float* behind_z = arena.TakeZeroed(dp);
  float g_den_pack[kKeptRows + 4], scale[kKeptRows];

  const auto read_g = [&](const Block& block) HWY_ATTR -> Rows<const float> {
    if (!normalize) return grad_out_rows.Read(block, g_pack);
    const size_t low = block.backwards ? block.first + 1 - block.tokens : block.first;
    Reciprocals(block.tokens, args.kept + place.denominators + low, scale);
    if (block.backwards) std::reverse(scale, scale + block.tokens);
    NumeratorGradients<T>(block.tokens, value_dim, grad_out_rows.Of(block), out_rows.Of(block),
                          scale, g_pack, g_den_pack);
    return {g_pack, static_cast<ptrdiff_t>(mp)};
  };
  const auto read = [&](const Block& block) HWY_ATTR -> BackwardRows {
    return {q_rows.Read(map, block, SIZE_MAX, q_pack),
            k_rows.Read(map, block, place.valid, k_pack),
            v_rows.Read(FeatureMap::kIdentity, block, place.valid, v_pack),
            read_g(block),
            {g_den_pack, 1}};
  };
  const auto prefetch_inputs = [&](const Block& next, Ahead& ahead) HWY_ATTR {
    k_rows.Prefetch(next, ahead);
    v_rows.Prefetch(next, ahead);
    grad_out_rows.Prefetch(next, ahead);
    if (normalize) out_rows.Prefetch(next, ahead);
    q_rows.Prefetch(next, ahead);
  };
  const Finish at_x = map == FeatureMap::kElu ? Finish::kDerivative : Finish::kNone;
  const Rows<float> d_sums{d_pack, static_cast<ptrdiff_t>(dp)};
  const Rows<float> m_sums{m_pack, static_cast<ptrdiff_t>(mp)};

  if (args.grad_s) {
    const float* grad_s = args.grad_s + index * dim * value_dim;
    LoadTransposed(grad_s, dim, value_dim, behind_md);
    LoadState(grad_s, dim, value_dim, behind_dm);
  }
  if (args.grad_z && normalize) {
    std::memcpy(behind_z, args.grad_z + index * dim, dim * sizeof(float));
  }
  // Segment by segment from the end, each from the state kept at its beginning: first along it, then
  // back, while its rows are in the cache.
  const size_t segment = SegmentLength(length), state_size = dp * (mp + 1);
  for (size_t s = Segments(length); s-- > 0;) {
    const size_t begin = s * segment, end = std::min(begin + segment, length);
    const float* kept = args.kept + (place.states + s) * state_size;
    Transpose(kept, dp, mp, front);
    std::memcpy(front_z, kept + dp * mp, dp * sizeof(float));
    const bool keep = end - begin <= kKeptRows;
    BackwardRows rows{};
    if (keep) rows = read({begin, end - begin, false});

    // Eq. 13: grad phi(q)_i = sum_{j <= i} (g_i . v_j + g_den_i) phi(k)_j, and what the state began
    // with.
    for (size_t at = begin; at < end; at += kBlock) {
      const Block block{at, std::min(kBlock, end - at), false};
      const BackwardRows x = keep ? rows.From(at - begin) : read(block);
      const Rows<float> grad_q = grad_q_rows.Results(block, d_pack);
      if (normalize) {
        FromFront(block.tokens, dp, x.k, x.g_den, front_z, d_pack);
      }
      Ahead ahead(x.k.at);
      grad_q_rows.Prefetch({at + kBlock, kBlock, false}, ahead);
      if (!keep) {
        prefetch_inputs({at + kBlock, kBlock, false}, ahead);
      } else if (s > 0) {
        prefetch_inputs({at - segment, kBlock, false}, ahead);
      }
      const bool direct_q = !normalize && grad_q_rows.InPlace();
      Sweep({block.tokens, x.g, x.v, x.k, direct_q ? grad_q : d_sums, grad_q, at_x, nullptr, x.q},
            mp, dp, /*set=*/!normalize, front, ahead);
      grad_q_rows.Store(block, grad_q, d_pack);
    }

    // Eqs. 14 and 15: grad phi(k)_i = sum_{j >= i} (v_i . g_j + g_den_j) phi(q)_j and grad v_i =
    // sum_{j >= i} (phi(k)_i . phi(q)_j) g_j.
    for (size_t left = end; left > begin;) {
      const Block block{left - 1, std::min(kBlock, left - begin), true};
      left -= block.tokens;
      const BackwardRows x = keep ? rows.From(block.first - begin).Reversed() : read(block);
      const Rows<float> grad_k = grad_k_rows.Results(block, d_pack);
      const Rows<float> grad_v = grad_v_rows.Results(block, m_pack);
      if (normalize) {
        FromBehind(block.tokens, dp, x.q, x.g_den, behind_z, d_pack);
      }
      Ahead ahead(x.k.at);
      if (left > 0) {
        const Block next{left - 1, kBlock, true};
        grad_k_rows.Prefetch(next, ahead);
        grad_v_rows.Prefetch(next, ahead);
        if (!keep) prefetch_inputs(next, ahead);
      }
      const bool direct_k = !normalize && grad_k_rows.InPlace();
      Sweep({block.tokens, x.v, x.g, x.q, direct_k ? grad_k : d_sums, grad_k, at_x, nullptr, x.k},
            mp, dp, /*set=*/!normalize, behind_md, ahead);
      Sweep({block.tokens, x.k, x.q, x.g, grad_v_rows.InPlace() ? grad_v : m_sums, grad_v}, dp, mp,
            /*set=*/true, behind_dm, ahead);
      grad_k_rows.Store(block, grad_k, d_pack);
      grad_v_rows.Store(block, grad_v, m_pack);
      // What the sums say of keys that count for nothing is not their gradient.
      for (size_t t = 0; t < block.tokens && block.At(t) >= place.valid; ++t) {
        std::fill_n(grad_k_rows.At(block.At(t)), dim, T{});
      }
    }
  }
  // What has been summed up in front of the first position is the gradient of the first state.
  if (args.grad_s0) {
    StoreState(behind_dm, dim, value_dim, args.grad_s0 + index * dim * value_dim);
  }
  if (args.grad_z0 && normalize) {
    std::memcpy(args.grad_z0 + index * dim, behind_z, dim * sizeof(float));
  }
}

void ForwardHead(const CausalLinearShape& shape, const CausalLinearOptions& options,
                 const CausalLinearForwardArgs& args, float* scratch, size_t n, size_t h) {
  ForwardOf<float>(shape, options, args, scratch, n, h);
}
void ForwardHeadBf16(const CausalLinearShape& shape, const CausalLinearOptions& options,
                     const CausalLinearForwardArgsBf16& args, float* scratch, size_t n, size_t h) {
  ForwardOf<BFloat16>(shape, options, args, scratch, n, h);
}
void BackwardHead(const CausalLinearShape& shape, const CausalLinearOptions& options,
                  const CausalLinearBackwardArgs& args, float* scratch, size_t n, size_t h) {
  BackwardOf<float>(shape, options, args, scratch, n, h);
}
void BackwardHeadBf16(const CausalLinearShape& shape, const CausalLinearOptions& options,
                      const CausalLinearBackwardArgsBf16& args, float* scratch, size_t n,
                      size_t h) {
  BackwardOf<BFloat16>(shape, options, args, scratch, n, h);
}

void StepHead(size_t dim, size_t value_dim, const CausalLinearOptions& options,
              const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, const float* HWY_RESTRICT v,
              float* HWY_RESTRICT s, float* HWY_RESTRICT z, float* HWY_RESTRICT out) {
  const F32 d;
  HWY_ALIGN float phi_q[kPad], phi_k[kPad];
  Clear(out, value_dim);
  Vec den = hn::Zero(d);
  for (size_t f0 = 0; f0 < dim; f0 += hn::Lanes(d)) {
    const size_t rows = std::min(hn::Lanes(d), dim - f0);
    Vec pq = Phi(options.feature_map, LoadN(q + f0, rows));
    Vec pk = Phi(options.feature_map, LoadN(k + f0, rows));
    if (rows != hn::Lanes(d)) pq = ZeroBeyond(pq, rows), pk = ZeroBeyond(pk, rows);
    hn::Store(pq, d, phi_q);
    hn::Store(pk, d, phi_k);
    if (options.normalize) {
      const Vec z_f = hn::Add(LoadN(z + f0, rows), pk);
      StoreN(z_f, z + f0, rows);
      den = hn::MulAdd(pq, z_f, den);
    }
    ForVectors(value_dim, [&](size_t c, size_t used) HWY_ATTR {
      const Vec v_c = LoadN(v + c, used);
      Vec sum = LoadN(out + c, used);
      float* s_c = s + f0 * value_dim + c;
      for (size_t f = 0; f < rows; ++f, s_c += value_dim) {
        const Vec s_f = hn::MulAdd(hn::Set(d, phi_k[f]), v_c, LoadN(s_c, used));
        StoreN(s_f, s_c, used);
        sum = hn::MulAdd(hn::Set(d, phi_q[f]), s_f, sum);
      }
      StoreN(sum, out + c, used);
    });
  }
  if (!options.normalize) return;
  const Vec scale = hn::Set(d, Reciprocal(hn::GetLane(hn::SumOfLanes(d, den)) + options.eps));
  ForVectors(value_dim, [&](size_t c, size_t used) HWY_ATTR {
    StoreN(hn::Mul(LoadN(out + c, used), scale), out + c, used);
  });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_INL_H_
