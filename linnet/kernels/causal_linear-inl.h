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

// Dimensions are padded to this in scratch: a multiple of every target's lanes and of kRows.
inline constexpr size_t kPad = 16;
constexpr size_t Padded(size_t n) { return (n + kPad - 1) / kPad * kPad; }

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

// Copies a row into scratch, through phi; what the padding holds stays as it was (zero).
template <typename T>
HWY_INLINE void PackRow(FeatureMap map, const T* from, size_t n, float* HWY_RESTRICT to) {
  const F32 d;
  ForVectors(n, [&](size_t i, size_t lanes) HWY_ATTR {
    Vec x = Phi(map, LoadN(from + i, lanes));
    if (lanes != hn::Lanes(d)) x = ZeroBeyond(x, lanes);
    hn::Store(x, d, to + i);
  });
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

// Cache lines to ask for while a block is swept, one of each row of a tensor's next block.
struct Ahead {
  Rows<const float> line[2];
};

// One slice of the state, kRows x (kVectors * lanes), over all tokens of a block:
//   s += b_t v_t^T; out_t += a_t s, or where `first` out_t = a_t s.
// Not inlined: the accumulators fill the registers, and the call is one in kBlock x kRows rows.
template <size_t kVectors, bool kFirst>
HWY_NOINLINE void SweepSlice(size_t tokens, Rows<const float> a, Rows<const float> b,
                             Rows<const float> v, Rows<float> out, float* HWY_RESTRICT s,
                             size_t s_stride, Ahead ahead) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  Vec state[kRows][kVectors];
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      state[r][c] = hn::Load(d, s + r * s_stride + c * lanes);
    }
  }
  for (size_t t = 0; t < tokens; ++t) {
    hwy::Prefetch(ahead.line[0].at);
    hwy::Prefetch(ahead.line[1].at);
    Vec v_t[kVectors], out_t[kVectors];
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      v_t[c] = hn::LoadU(d, v.at + c * lanes);
      out_t[c] = kFirst ? hn::Zero(d) : hn::LoadU(d, out.at + c * lanes);
    }
    // Of each row's a one broadcast a vector, in the multiply-add's own memory operand, where AVX-512
    // has one: fewer instructions than a register for both, and 8% less time.
    const float* again = a.at;
    if (HWY_TARGET == HWY_AVX3) HidePointer(again);
    HWY_UNROLL(8)
    for (size_t r = 0; r < kRows; ++r) {
      const Vec b_r = hn::Set(d, b.at[r]);
      HWY_UNROLL(2)
      for (size_t c = 0; c < kVectors; ++c) {
        state[r][c] = hn::MulAdd(b_r, v_t[c], state[r][c]);
        out_t[c] = hn::MulAdd(hn::Set(d, c == 0 ? a.at[r] : again[r]), state[r][c], out_t[c]);
      }
    }
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) hn::StoreU(out_t[c], d, out.at + c * lanes);
    a.at += a.stride;
    b.at += b.stride;
    v.at += v.stride;
    out.at += out.stride;
    ahead.line[0].at += ahead.line[0].stride;
    ahead.line[1].at += ahead.line[1].stride;
  }
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      hn::Store(state[r][c], d, s + r * s_stride + c * lanes);
    }
  }
}

// Hands out the lines of the next block's rows, two to each slice of the state.
class Prefetcher {
 public:
  explicit Prefetcher(const float* nothing) : nothing_{nothing, 0} {}

  // All lines of `rows`, `width` floats wide.
  void Add(Rows<const float> rows, size_t width) {
    constexpr size_t kLine = 64 / sizeof(float);
    for (size_t i = 0; i < width && count_ < kMost; i += kLine) lines_[count_++] = rows.Columns(i);
  }
  Ahead Take() { return {{One(), One()}}; }

 private:
  static constexpr size_t kMost = 64;

  Rows<const float> One() { return taken_ < count_ ? lines_[taken_++] : nothing_; }

  Rows<const float> lines_[kMost];
  Rows<const float> nothing_;
  size_t count_ = 0, taken_ = 0;
};

// s [rows, columns] += b_t v_t^T, out_t (+)= a_t s for the tokens of a block in order; `set`: out_t
// is replaced. rows and columns are padded, s is aligned.
HWY_INLINE void Sweep(size_t tokens, size_t rows, size_t columns, Rows<const float> a,
                      Rows<const float> b, Rows<const float> v, Rows<float> out, bool set, float* s,
                      Prefetcher& prefetcher) {
  const size_t lanes = hn::Lanes(F32());
  for (size_t c = 0; c < columns;) {
    const size_t vectors = columns - c > lanes ? 2 : 1;
    for (size_t r = 0; r < rows; r += kRows) {
      const auto slice = vectors == 2
                             ? (set && r == 0 ? SweepSlice<2, true> : SweepSlice<2, false>)
                             : (set && r == 0 ? SweepSlice<1, true> : SweepSlice<1, false>);
      slice(tokens, a.Columns(r), b.Columns(r), v.Columns(c), out.Columns(c), s + r * columns + c,
            columns, prefetcher.Take());
    }
    c += vectors * lanes;
  }
}

HWY_INLINE void Clear(float* to, size_t n) { std::memset(to, 0, n * sizeof(float)); }

// Takes consecutive pieces of a slot's scratch; sizes are multiples of kPad, so all stay aligned.
class Arena {
 public:
  explicit Arena(float* at)
      : at_(reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(at) + 63) & ~uintptr_t{63})) {}
  // Zeroed, so that padding is zero.
  float* Take(size_t n) {
    float* piece = at_;
    at_ += Padded(n);
    Clear(piece, Padded(n));
    return piece;
  }

 private:
  float* at_;
};

// Where one head of one sequence is.
struct Place {
  size_t n, h, first, length;
  size_t valid;         // keys from this one on count for nothing
  size_t denominators;  // index of the first one

  Place(const CausalLinearShape& shape, const int64_t* lengths, const int64_t* offsets, size_t n,
        size_t h)
      : n(n), h(h), first(0), length(shape.length), denominators((n * shape.heads + h) * length) {
    if (offsets) {
      this->n = 0;
      first = static_cast<size_t>(offsets[n]);
      length = static_cast<size_t>(offsets[n + 1]) - first;
      denominators = h * static_cast<size_t>(offsets[shape.batch]) + first;
    }
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

  void Prefetch(const Block& block, Prefetcher& prefetcher) const {
    const ptrdiff_t floats = static_cast<ptrdiff_t>(sizeof(float) / sizeof(T));
    prefetcher.Add({reinterpret_cast<const float*>(At(block.first)),
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

// A dense state [dim, value_dim] into padded rows, the same transposed, and back.
HWY_INLINE void LoadState(const float* from, size_t dim, size_t value_dim, float* to, size_t mp) {
  for (size_t f = 0; f < dim; ++f) {
    std::memcpy(to + f * mp, from + f * value_dim, value_dim * sizeof(float));
  }
}
HWY_INLINE void LoadTransposed(const float* from, size_t dim, size_t value_dim, float* to,
                               size_t dp) {
  for (size_t f = 0; f < dim; ++f) {
    for (size_t c = 0; c < value_dim; ++c) to[c * dp + f] = from[f * value_dim + c];
  }
}
HWY_INLINE void StoreState(const float* from, size_t dim, size_t value_dim, float* to, size_t mp) {
  for (size_t f = 0; f < dim; ++f) {
    std::memcpy(to + f * value_dim, from + f * mp, value_dim * sizeof(float));
  }
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
  float* s = arena.Take(dp * mp);
  float* z = arena.Take(dp);
  float den[kBlock], scale[kBlock];
  if (args.s) {
    LoadState(args.s + index * dim * value_dim, dim, value_dim, s, mp);
    if (args.z) std::memcpy(z, args.z + index * dim, dim * sizeof(float));
  }

  for (size_t begin = 0; begin < length; begin += kBlock) {
    const Block block{begin, std::min(kBlock, length - begin), false};
    const Rows<const float> q = q_rows.Read(options.feature_map, block, SIZE_MAX, q_pack);
    const Rows<const float> k = k_rows.Read(options.feature_map, block, place.valid, k_pack);
    const Rows<const float> v = v_rows.Read(FeatureMap::kIdentity, block, place.valid, v_pack);
    const Rows<float> out = out_rows.Results(block, !options.normalize, out_pack);
    Prefetcher prefetcher(k.at);
    if (const Block next{begin + kBlock, kBlock, false}; next.first < length) {
      q_rows.Prefetch(next, prefetcher);
      k_rows.Prefetch(next, prefetcher);
      v_rows.Prefetch(next, prefetcher);
      out_rows.Prefetch(next, prefetcher);
    }
    Sweep(block.tokens, dp, mp, q, k, v, out, /*set=*/true, s, prefetcher);
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
      if (args.denominator) {
        std::memcpy(args.denominator + place.denominators + begin, den,
                    block.tokens * sizeof(float));
      }
    }
    out_rows.Store(block, out, out_pack, [&](size_t t, size_t, Vec x) HWY_ATTR {
      return options.normalize ? hn::Mul(x, hn::Set(d, scale[t])) : x;
    });
  }

  if (args.s) {
    StoreState(s, dim, value_dim, args.s + index * dim * value_dim, mp);
    if (args.z) std::memcpy(args.z + index * dim, z, dim * sizeof(float));
  }
}

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
  float* q_pack = arena.Take(kBlock * dp);
  float* k_pack = arena.Take(kBlock * dp);
  float* v_pack = arena.Take(kBlock * mp);
  float* g_pack = arena.Take(kBlock * mp);
  float* d_pack = arena.Take(kBlock * dp);
  float* m_pack = arena.Take(kBlock * mp);
  float* s_dm = arena.Take(dp * mp);
  float* s_md = arena.Take(dp * mp);
  float* sum = arena.Take(dp);
  float g_den[kBlock];  // gradient of the denominator: -(grad_out . out) / den

  // The gradient of the numerator, grad_out / den, and that of the denominator.
  const auto read_g = [&](const Block& block) HWY_ATTR -> Rows<const float> {
    if (!normalize) return grad_out_rows.Read(block, g_pack);
    for (size_t t = 0; t < block.tokens; ++t) {
      const size_t l = block.At(t);
      const T* grad_out = grad_out_rows.At(l);
      const T* out = out_rows.At(l);
      const Vec scale = hn::Set(d, Reciprocal(args.denominator[place.denominators + l]));
      Vec dot = hn::Zero(d);
      ForVectors(value_dim, [&](size_t i, size_t used) HWY_ATTR {
        const Vec x = hn::Mul(LoadN(grad_out + i, used), scale);
        hn::Store(x, d, g_pack + t * mp + i);  // a partial load is zero beyond its end
        dot = hn::MulAdd(x, LoadN(out + i, used), dot);
      });
      g_den[t] = -hn::GetLane(hn::SumOfLanes(d, dot));
    }
    return {g_pack, static_cast<ptrdiff_t>(mp)};
  };
  const auto prefetch_inputs = [&](const Block& next, Prefetcher& prefetcher) HWY_ATTR {
    k_rows.Prefetch(next, prefetcher);
    v_rows.Prefetch(next, prefetcher);
    grad_out_rows.Prefetch(next, prefetcher);
    if (normalize) out_rows.Prefetch(next, prefetcher);
  };
  // Gradients at phi(x) as gradients at x.
  const auto at_x = [&](const Rows<const float>& phi) HWY_ATTR {
    return [&, phi](size_t t, size_t i, Vec x)
               HWY_ATTR { return hn::Mul(x, PhiDerivative(map, hn::LoadU(d, phi.Row(t) + i))); };
  };
  const auto as_it_is = [](size_t, size_t, Vec x) HWY_ATTR { return x; };
  // Where nothing is left to do after the sweep, gradients are summed up in their own rows.
  const bool final = !normalize && map == FeatureMap::kIdentity;

  const size_t state = index * dim * value_dim;
  // Eq. 13, from the front: grad phi(q)_i = sum_{j <= i} (g_i . v_j + g_den_i) phi(k)_j, and what
  // the state began with.
  if (args.s) LoadTransposed(args.s + state, dim, value_dim, s_md, dp);
  if (args.z && normalize) std::memcpy(sum, args.z + index * dim, dim * sizeof(float));
  for (size_t begin = 0; begin < length; begin += kBlock) {
    const Block block{begin, std::min(kBlock, length - begin), false};
    const Rows<const float> k = k_rows.Read(map, block, place.valid, k_pack);
    const Rows<const float> v = v_rows.Read(FeatureMap::kIdentity, block, place.valid, v_pack);
    const Rows<const float> g = read_g(block);
    const Rows<float> grad_q = grad_q_rows.Results(block, final, d_pack);
    if (normalize) {
      for (size_t t = 0; t < block.tokens; ++t) {
        for (size_t i = 0; i < dp; i += lanes) {
          const Vec z_i = hn::Add(hn::Load(d, sum + i), hn::LoadU(d, k.Row(t) + i));
          hn::Store(z_i, d, sum + i);
          hn::Store(hn::Mul(z_i, hn::Set(d, g_den[t])), d, d_pack + t * dp + i);
        }
      }
    }
    Prefetcher prefetcher(k.at);
    if (const Block next{begin + kBlock, kBlock, false}; next.first < length) {
      prefetch_inputs(next, prefetcher);
      if (map != FeatureMap::kIdentity) q_rows.Prefetch(next, prefetcher);
      grad_q_rows.Prefetch(next, prefetcher);
    }
    Sweep(block.tokens, mp, dp, g, v, k, grad_q, /*set=*/!normalize, s_md, prefetcher);
    if (final) {
      grad_q_rows.Store(block, grad_q, d_pack, as_it_is);
    } else {
      const Rows<const float> q = q_rows.Read(map, block, SIZE_MAX, q_pack);
      grad_q_rows.Store(block, grad_q, d_pack, at_x(q));
    }
  }

  // Eqs. 14 and 15, from the back: grad phi(k)_i = sum_{j >= i} (v_i . g_j + g_den_j) phi(q)_j and
  // grad v_i = sum_{j >= i} (phi(k)_i . phi(q)_j) g_j.
  // The gradient of the last state is what stands behind the last position.
  Clear(s_md, dp * mp);
  Clear(sum, dp);
  if (args.grad_s) {
    LoadTransposed(args.grad_s + state, dim, value_dim, s_md, dp);
    LoadState(args.grad_s + state, dim, value_dim, s_dm, mp);
  }
  if (args.grad_z && normalize) {
    std::memcpy(sum, args.grad_z + index * dim, dim * sizeof(float));
  }
  for (size_t end = length; end > 0;) {
    const Block block{end - 1, std::min(kBlock, end), true};
    end -= block.tokens;
    const bool whole = block.first < place.valid;
    const Rows<const float> q = q_rows.Read(map, block, SIZE_MAX, q_pack);
    const Rows<const float> k = k_rows.Read(map, block, place.valid, k_pack);
    const Rows<const float> v = v_rows.Read(FeatureMap::kIdentity, block, place.valid, v_pack);
    const Rows<const float> g = read_g(block);
    const Rows<float> grad_k = grad_k_rows.Results(block, final && whole, d_pack);
    const Rows<float> grad_v = grad_v_rows.Results(block, /*final=*/true, m_pack);
    if (normalize) {
      for (size_t t = 0; t < block.tokens; ++t) {
        for (size_t i = 0; i < dp; i += lanes) {
          const Vec z_i =
              hn::MulAdd(hn::Set(d, g_den[t]), hn::LoadU(d, q.Row(t) + i), hn::Load(d, sum + i));
          hn::Store(z_i, d, sum + i);
          hn::Store(z_i, d, d_pack + t * dp + i);
        }
      }
    }
    Prefetcher prefetcher(k.at);
    if (end > 0) {
      const Block next{end - 1, kBlock, true};
      prefetch_inputs(next, prefetcher);
      q_rows.Prefetch(next, prefetcher);
      grad_k_rows.Prefetch(next, prefetcher);
      grad_v_rows.Prefetch(next, prefetcher);
    }
    Sweep(block.tokens, mp, dp, v, g, q, grad_k, /*set=*/!normalize, s_md, prefetcher);
    Sweep(block.tokens, dp, mp, k, q, g, grad_v, /*set=*/true, s_dm, prefetcher);
    if (!whole) {  // what the sums say of keys that count for nothing is not their gradient
      for (size_t t = 0; t < block.tokens; ++t) {
        if (block.At(t) >= place.valid) Clear(d_pack + t * dp, dp);
      }
    }
    grad_k_rows.Store(block, grad_k, d_pack, at_x(k));
    grad_v_rows.Store(block, grad_v, m_pack, as_it_is);
  }
  // What has been summed up in front of the first position is the gradient of the first state.
  if (args.grad_s0) StoreState(s_dm, dim, value_dim, args.grad_s0 + state, mp);
  if (args.grad_z0 && normalize) {
    std::memcpy(args.grad_z0 + index * dim, sum, dim * sizeof(float));
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
