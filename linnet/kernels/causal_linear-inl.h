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

// phi'(x) from phi(x): elu(x) + 1 is exp(x) <= 1 where its derivative is, and above 1 elsewhere.
HWY_INLINE Vec PhiDerivative(FeatureMap map, Vec phi) {
  const Vec one = hn::Set(F32(), 1.0f);
  return map == FeatureMap::kIdentity ? one : hn::Min(phi, one);
}

// Copies a row into scratch, through phi, and zeros behind it up to the padded width.
template <typename T>
HWY_INLINE void PackRow(FeatureMap map, const T* from, size_t n, float* HWY_RESTRICT to) {
  const F32 d;
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    hn::Store(Phi(map, LoadN(from + i, kLanes)), d, to + i);
  }
  if (whole == n && n % kPad == 0) return;
  for (size_t i = whole; i < Padded(n); i += kLanes) {
    const bool some = i < n;
    hn::Store(some ? ZeroBeyond(Phi(map, LoadN(from + i, n - i)), n - i) : hn::Zero(d), d, to + i);
  }
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

// What a sweep reads and writes; see Sweep().
struct Operands {
  size_t tokens;
  Rows<const float> a, b, v;
  Rows<float> out;
};

// One slice of the state, kRows x (kVectors * kLanes), over all tokens of a block:
//   s += b_t v_t^T; out_t += a_t s, or where kFirst out_t = a_t s.
template <size_t kVectors, bool kFirst>
HWY_INLINE void SweepSlice(const Operands& x, size_t row, size_t column, float* HWY_RESTRICT s,
                           Ahead& ahead) {
  const F32 d;
  const float* a = x.a.at + row;
  const float* b = x.b.at + row;
  const float* v = x.v.at + column;
  float* out = x.out.at + column;
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
    for (size_t c = 0; c < kVectors; ++c) hn::StoreU(out_t[c], d, out + c * kLanes);
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
template <size_t kVectors>
HWY_NOINLINE void SweepStrip(const Operands& x, size_t rows, size_t column, bool set,
                             float* HWY_RESTRICT s, Ahead& ahead) {
  size_t r = 0;
  if (set) {
    SweepSlice<kVectors, true>(x, 0, column, s, ahead);
    r = kRows;
  }
  for (; r < rows; r += kRows) {
    SweepSlice<kVectors, false>(x, r, column, s + r * kVectors * kLanes, ahead);
  }
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

// s [rows, columns] += b_t v_t^T, out_t (+)= a_t s for the tokens of a block in order; `set`: out_t
// is replaced. rows and columns are padded, s is aligned.
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
    const Kept kept(shape, offsets);
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
    const size_t padded = Padded(width_);
    for (size_t t = 0; t < block.tokens; ++t) {
      const size_t l = block.At(t);
      if (l < valid) {
        PackRow(map, At(l), width_, pack + t * padded);
      } else {
        Clear(pack + t * padded, padded);
      }
    }
    return {pack, static_cast<ptrdiff_t>(padded)};
  }
  Rows<const float> Read(const Block& block, float* pack) const {
    return Read(FeatureMap::kIdentity, block, SIZE_MAX, pack);
  }

  // Where a block's results go: to their rows if they can be summed up there, else to `pack`, from
  // where Store() takes them.
  Rows<float> Results(const Block& block, bool final, float* pack) const {
    if constexpr (std::is_same_v<T, float>) {
      if (final && InPlace()) return Of(block);
    }
    return {pack, static_cast<ptrdiff_t>(Padded(width_))};
  }
  // map(t, i, x) makes of the i-th vector of token t's result what is stored.
  template <class Map>
  HWY_INLINE void Store(const Block& block, const Rows<float>& results, const float* pack,
                        const Map& map) const {
    if (results.at != pack) return;
    for (size_t t = 0; t < block.tokens; ++t) {
      T* to = At(block.At(t));
      const float* from = results.Row(t);
      ForVectors(width_, [&](size_t i, size_t used) HWY_ATTR {
        StoreN(map(t, i, hn::Load(F32(), from + i)), to + i, used);
      });
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

// 1 / den, but 0 where nothing has been seen and eps is 0.
HWY_INLINE float Reciprocal(float den) { return den == 0.0f ? 0.0f : 1.0f / den; }

template <typename T>
HWY_INLINE void ForwardOf(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearForwardArgsOf<T>& args, float* scratch, size_t n,
                          size_t h) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
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
  float den[kBlock], scale[kBlock];
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
    const Rows<float> out = out_rows.Results(block, !options.normalize, out_pack);
    Ahead ahead(k.at);
    if (const Block next{begin + kBlock, kBlock, false}; next.first < length) {
      q_rows.Prefetch(next, ahead);
      k_rows.Prefetch(next, ahead);
      v_rows.Prefetch(next, ahead);
      out_rows.Prefetch(next, ahead);
    }
    Sweep({block.tokens, q, k, v, out}, dp, mp, /*set=*/true, s, ahead);
    if (options.normalize) {
      for (size_t t = 0; t < block.tokens; ++t) {
        Vec sum = hn::Zero(d);
        for (size_t i = 0; i < dp; i += lanes) {
          const Vec z_i = hn::Add(hn::Load(d, z + i), hn::LoadU(d, k.Row(t) + i));
          hn::Store(z_i, d, z + i);
          sum = hn::MulAdd(z_i, hn::LoadU(d, q.Row(t) + i), sum);
        }
        den[t] = hn::GetLane(hn::SumOfLanes(d, sum)) + options.eps;
        scale[t] = Reciprocal(den[t]);
      }
      if (args.kept) {
        std::memcpy(args.kept + place.denominators + begin, den, block.tokens * sizeof(float));
      }
    }
    out_rows.Store(block, out, out_pack, [&](size_t t, size_t, Vec x) HWY_ATTR {
      return options.normalize ? hn::Mul(x, hn::Set(d, scale[t])) : x;
    });
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
  const F32 d;
  const size_t lanes = hn::Lanes(d);
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
  HWY_ALIGN float g_den_pack[kKeptRows];

  const auto read_g = [&](const Block& block) HWY_ATTR -> Rows<const float> {
    if (!normalize) return grad_out_rows.Read(block, g_pack);
    for (size_t t = 0; t < block.tokens; ++t) {
      const size_t l = block.At(t);
      const T* grad_out = grad_out_rows.At(l);
      const T* out = out_rows.At(l);
      const Vec scale = hn::Set(d, Reciprocal(args.kept[place.denominators + l]));
      Vec dot = hn::Zero(d);
      ForVectors(value_dim, [&](size_t i, size_t used) HWY_ATTR {
        const Vec x = hn::Mul(LoadN(grad_out + i, used), scale);
        hn::Store(x, d, g_pack + t * mp + i);  // a partial load is zero beyond its end
        dot = hn::MulAdd(x, LoadN(out + i, used), dot);
      });
      for (size_t i = (value_dim + kLanes - 1) / kLanes * kLanes; i < mp; i += kLanes) {
        hn::Store(hn::Zero(d), d, g_pack + t * mp + i);
      }
      g_den_pack[t] = -hn::GetLane(hn::SumOfLanes(d, dot));
    }
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
  // Gradients at phi(x) as gradients at x.
  const auto at_x = [&](const Rows<const float>& phi) HWY_ATTR {
    return [&, phi](size_t t, size_t i, Vec x)
               HWY_ATTR { return hn::Mul(x, PhiDerivative(map, hn::LoadU(d, phi.Row(t) + i))); };
  };
  const auto as_it_is = [](size_t, size_t, Vec x) HWY_ATTR { return x; };
  // Where nothing is left to do after the sweep, gradients are summed up in their own rows.
  const bool final = !normalize && map == FeatureMap::kIdentity;

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
      const Rows<float> grad_q = grad_q_rows.Results(block, final, d_pack);
      if (normalize) {
        for (size_t t = 0; t < block.tokens; ++t) {
          const Vec g_den = hn::Set(d, *x.g_den.Row(t));
          for (size_t i = 0; i < dp; i += lanes) {
            const Vec z_i = hn::Add(hn::Load(d, front_z + i), hn::LoadU(d, x.k.Row(t) + i));
            hn::Store(z_i, d, front_z + i);
            hn::Store(hn::Mul(z_i, g_den), d, d_pack + t * dp + i);
          }
        }
      }
      Ahead ahead(x.k.at);
      grad_q_rows.Prefetch({at + kBlock, kBlock, false}, ahead);
      if (!keep) {
        prefetch_inputs({at + kBlock, kBlock, false}, ahead);
      } else if (s > 0) {
        prefetch_inputs({at - segment, kBlock, false}, ahead);
      }
      Sweep({block.tokens, x.g, x.v, x.k, grad_q}, mp, dp, /*set=*/!normalize, front, ahead);
      grad_q_rows.Store(block, grad_q, d_pack, at_x(x.q));
    }

    // Eqs. 14 and 15: grad phi(k)_i = sum_{j >= i} (v_i . g_j + g_den_j) phi(q)_j and grad v_i =
    // sum_{j >= i} (phi(k)_i . phi(q)_j) g_j.
    for (size_t left = end; left > begin;) {
      const Block block{left - 1, std::min(kBlock, left - begin), true};
      left -= block.tokens;
      const BackwardRows x = keep ? rows.From(block.first - begin).Reversed() : read(block);
      const bool whole = block.first < place.valid;
      const Rows<float> grad_k = grad_k_rows.Results(block, final && whole, d_pack);
      const Rows<float> grad_v = grad_v_rows.Results(block, /*final=*/true, m_pack);
      if (normalize) {
        for (size_t t = 0; t < block.tokens; ++t) {
          const Vec g_den = hn::Set(d, *x.g_den.Row(t));
          for (size_t i = 0; i < dp; i += lanes) {
            const Vec z_i =
                hn::MulAdd(g_den, hn::LoadU(d, x.q.Row(t) + i), hn::Load(d, behind_z + i));
            hn::Store(z_i, d, behind_z + i);
            hn::Store(z_i, d, d_pack + t * dp + i);
          }
        }
      }
      Ahead ahead(x.k.at);
      if (left > 0) {
        const Block next{left - 1, kBlock, true};
        grad_k_rows.Prefetch(next, ahead);
        grad_v_rows.Prefetch(next, ahead);
        if (!keep) prefetch_inputs(next, ahead);
      }
      Sweep({block.tokens, x.v, x.g, x.q, grad_k}, mp, dp, /*set=*/!normalize, behind_md, ahead);
      Sweep({block.tokens, x.k, x.q, x.g, grad_v}, dp, mp, /*set=*/true, behind_dm, ahead);
      if (!whole) {  // what the sums say of keys that count for nothing is not their gradient
        for (size_t t = 0; t < block.tokens; ++t) {
          if (block.At(t) >= place.valid) Clear(d_pack + t * dp, dp);
        }
      }
      grad_k_rows.Store(block, grad_k, d_pack, at_x(x.k));
      grad_v_rows.Store(block, grad_v, m_pack, as_it_is);
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
