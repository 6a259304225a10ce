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
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "linnet/kernels/causal_linear.h"
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
  const F32 d;
  if (map == FeatureMap::kIdentity) return x;
  const Vec zero = hn::Zero(d);
  // exp(min(x, 0)) + max(x, 0): both branches of elu(x) + 1 at once.
  return hn::Add(hn::Exp(d, hn::Min(x, zero)), hn::Max(x, zero));
}

// phi'(x) from phi(x): elu(x) + 1 is exp(x) <= 1 where its derivative is, and above 1 elsewhere.
HWY_INLINE Vec PhiDerivative(FeatureMap map, Vec phi) {
  const Vec one = hn::Set(F32(), 1.0f);
  return map == FeatureMap::kIdentity ? one : hn::Min(phi, one);
}

// The rows of one head lie far apart where heads share a row of the tensor, and no hardware
// prefetcher follows them: without asking a block ahead, half of the time went into waiting for
// them.
HWY_INLINE void PrefetchRow(const float* row, size_t n) {
  constexpr size_t kLine = 64 / sizeof(float);
  for (size_t i = 0; i < n; i += kLine) hwy::Prefetch(row + i);
  hwy::Prefetch(row + n - 1);
}

// Copies a row into scratch, through phi; what the padding holds stays as it was (zero).
HWY_INLINE void PackRow(FeatureMap map, const float* from, size_t n, float* HWY_RESTRICT to) {
  const F32 d;
  ForVectors(n, [&](size_t i, size_t lanes) {
    Vec x = Phi(map, LoadN(from + i, lanes));
    if (lanes != hn::Lanes(d)) x = ZeroBeyond(x, lanes);
    hn::Store(x, d, to + i);
  });
}

// One slice of the state, kRows x (kVectors * lanes), over all tokens of a block:
//   s += b_t v_t^T; out_t += a_t s.
template <size_t kVectors>
HWY_INLINE void SweepSlice(size_t tokens, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                           size_t row_stride, const float* HWY_RESTRICT v, float* HWY_RESTRICT out,
                           size_t column_stride, float* HWY_RESTRICT s) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  Vec state[kRows][kVectors];
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kVectors>(
        [&](auto c) HWY_ATTR { state[r][c] = hn::Load(d, s + r * column_stride + c * lanes); });
  });
  for (size_t t = 0; t < tokens; ++t) {
    Vec v_t[kVectors], out_t[kVectors];
    Unrolled<kVectors>([&](auto c) HWY_ATTR {
      v_t[c] = hn::Load(d, v + c * lanes);
      out_t[c] = hn::Load(d, out + c * lanes);
    });
    Unrolled<kRows>([&](auto r) HWY_ATTR {
      const Vec b_r = hn::Set(d, b[r]), a_r = hn::Set(d, a[r]);
      Unrolled<kVectors>([&](auto c) HWY_ATTR {
        state[r][c] = hn::MulAdd(b_r, v_t[c], state[r][c]);
        out_t[c] = hn::MulAdd(a_r, state[r][c], out_t[c]);
      });
    });
    Unrolled<kVectors>([&](auto c) HWY_ATTR { hn::Store(out_t[c], d, out + c * lanes); });
    a += row_stride;
    b += row_stride;
    v += column_stride;
    out += column_stride;
  }
  Unrolled<kRows>([&](auto r) HWY_ATTR {
    Unrolled<kVectors>(
        [&](auto c) HWY_ATTR { hn::Store(state[r][c], d, s + r * column_stride + c * lanes); });
  });
}

// s [rows, columns] += b_t v_t^T, out_t += a_t s for the tokens of a block in order. a, b
// [tokens, rows], v, out [tokens, columns], all padded and aligned.
HWY_INLINE void Sweep(size_t tokens, size_t rows, size_t columns, const float* a, const float* b,
                      const float* v, float* out, float* s) {
  const size_t lanes = hn::Lanes(F32());
  for (size_t c = 0; c < columns;) {
    const size_t vectors = columns - c > lanes ? 2 : 1;
    for (size_t r = 0; r < rows; r += kRows) {
      float* slice = s + r * columns + c;
      if (vectors == 2) {
        SweepSlice<2>(tokens, a + r, b + r, rows, v + c, out + c, columns, slice);
      } else {
        SweepSlice<1>(tokens, a + r, b + r, rows, v + c, out + c, columns, slice);
      }
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

// Where the rows of one head of one sequence are.
struct Rows {
  size_t n, h, first, length;
  size_t denominators;  // index of the first one

  Rows(const CausalLinearShape& shape, const int64_t* offsets, size_t n, size_t h)
      : n(n), h(h), first(0), length(shape.length), denominators((n * shape.heads + h) * length) {
    if (!offsets) return;
    this->n = 0;
    first = static_cast<size_t>(offsets[n]);
    length = static_cast<size_t>(offsets[n + 1]) - first;
    denominators = h * static_cast<size_t>(offsets[shape.batch]) + first;
  }

  template <typename T>
  struct Of {
    T* first;
    ptrdiff_t time;
    T* At(size_t l) const { return first + static_cast<ptrdiff_t>(l) * time; }
  };
  template <typename T>
  Of<T> In(const Strided<T>& x) const {
    return {x.data ? x.At(n, first, h) : nullptr, x.time};
  }
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

void ForwardHead(const CausalLinearShape& shape, const CausalLinearOptions& options,
                 const CausalLinearForwardArgs& args, float* scratch, size_t n, size_t h) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  const size_t dp = Padded(dim), mp = Padded(value_dim), index = n * shape.heads + h;
  const Rows rows(shape, args.offsets, n, h);
  const size_t length = rows.length;
  const size_t valid =
      args.lengths ? static_cast<size_t>(std::max<int64_t>(args.lengths[n], 0)) : length;
  const auto q_rows = rows.In(args.q), k_rows = rows.In(args.k), v_rows = rows.In(args.v);
  const auto out_rows = rows.In(args.out);
  Arena arena(scratch);
  float* phi_q = arena.Take(kBlock * dp);
  float* phi_k = arena.Take(kBlock * dp);
  float* v = arena.Take(kBlock * mp);
  float* out = arena.Take(kBlock * mp);
  float* s = arena.Take(dp * mp);
  float* z = arena.Take(dp);
  float den[kBlock];
  if (args.s) {
    LoadState(args.s + index * dim * value_dim, dim, value_dim, s, mp);
    if (args.z) std::memcpy(z, args.z + index * dim, dim * sizeof(float));
  }

  for (size_t begin = 0; begin < length; begin += kBlock) {
    const size_t tokens = std::min(kBlock, length - begin);
    for (size_t t = 0; t < tokens; ++t) {
      const size_t l = begin + t;
      if (const size_t ahead = l + kBlock; ahead < length) {
        PrefetchRow(q_rows.At(ahead), dim);
        PrefetchRow(k_rows.At(ahead), dim);
        PrefetchRow(v_rows.At(ahead), value_dim);
      }
      PrefetchRow(out_rows.At(l), value_dim);
      float* phi_q_t = phi_q + t * dp;
      float* phi_k_t = phi_k + t * dp;
      PackRow(options.feature_map, q_rows.At(l), dim, phi_q_t);
      if (l < valid) {
        PackRow(options.feature_map, k_rows.At(l), dim, phi_k_t);
        PackRow(FeatureMap::kIdentity, v_rows.At(l), value_dim, v + t * mp);
      } else {
        Clear(phi_k_t, dp);
        Clear(v + t * mp, mp);
      }
      if (options.normalize) {
        Vec sum = hn::Zero(d);
        for (size_t i = 0; i < dp; i += lanes) {
          const Vec z_i = hn::Add(hn::Load(d, z + i), hn::Load(d, phi_k_t + i));
          hn::Store(z_i, d, z + i);
          sum = hn::MulAdd(z_i, hn::Load(d, phi_q_t + i), sum);
        }
        den[t] = hn::GetLane(hn::SumOfLanes(d, sum)) + options.eps;
      }
    }
    Clear(out, tokens * mp);
    Sweep(tokens, dp, mp, phi_q, phi_k, v, out, s);
    for (size_t t = 0; t < tokens; ++t) {
      const Vec scale = hn::Set(d, options.normalize ? Reciprocal(den[t]) : 1.0f);
      float* to = out_rows.At(begin + t);
      ForVectors(value_dim, [&](size_t i, size_t used) HWY_ATTR {
        StoreN(hn::Mul(hn::Load(d, out + t * mp + i), scale), to + i, used);
      });
    }
    if (options.normalize && args.denominator) {
      std::memcpy(args.denominator + rows.denominators + begin, den, tokens * sizeof(float));
    }
  }

  if (args.s) {
    StoreState(s, dim, value_dim, args.s + index * dim * value_dim, mp);
    if (args.z) std::memcpy(args.z + index * dim, z, dim * sizeof(float));
  }
}

void BackwardHead(const CausalLinearShape& shape, const CausalLinearOptions& options,
                  const CausalLinearBackwardArgs& args, float* scratch, size_t n, size_t h) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const FeatureMap map = options.feature_map;
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  const size_t dp = Padded(dim), mp = Padded(value_dim), index = n * shape.heads + h;
  const Rows rows(shape, args.offsets, n, h);
  const size_t length = rows.length;
  const size_t valid =
      args.lengths ? static_cast<size_t>(std::max<int64_t>(args.lengths[n], 0)) : length;
  const auto q_rows = rows.In(args.q), k_rows = rows.In(args.k), v_rows = rows.In(args.v);
  const auto out_rows = rows.In(args.out), grad_out_rows = rows.In(args.grad_out);
  const auto grad_q_rows = rows.In(args.grad_q), grad_k_rows = rows.In(args.grad_k);
  const auto grad_v_rows = rows.In(args.grad_v);
  Arena arena(scratch);
  float* phi_q = arena.Take(kBlock * dp);
  float* phi_k = arena.Take(kBlock * dp);
  float* v = arena.Take(kBlock * mp);
  float* g = arena.Take(kBlock * mp);  // gradient of the numerator: grad_out / den
  float* out_d = arena.Take(kBlock * dp);
  float* out_m = arena.Take(kBlock * mp);
  float* s_dm = arena.Take(dp * mp);
  float* s_md = arena.Take(dp * mp);
  float* sum = arena.Take(dp);
  float g_den[kBlock];  // gradient of the denominator: -(grad_out . out) / den

  const auto pack = [&](size_t t, size_t l) HWY_ATTR {
    PackRow(map, q_rows.At(l), dim, phi_q + t * dp);
    if (l < valid) {
      PackRow(map, k_rows.At(l), dim, phi_k + t * dp);
      PackRow(FeatureMap::kIdentity, v_rows.At(l), value_dim, v + t * mp);
    } else {
      Clear(phi_k + t * dp, dp);
      Clear(v + t * mp, mp);
    }
    const float* grad_out = grad_out_rows.At(l);
    if (!options.normalize) {
      PackRow(FeatureMap::kIdentity, grad_out, value_dim, g + t * mp);
      g_den[t] = 0;
      return;
    }
    const float scale = Reciprocal(args.denominator[rows.denominators + l]);
    const float* out = out_rows.At(l);
    Vec dot = hn::Zero(d);
    ForVectors(value_dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec x = hn::Mul(LoadN(grad_out + i, used), hn::Set(d, scale));
      hn::Store(x, d, g + t * mp + i);  // a partial load is zero beyond its end
      dot = hn::MulAdd(x, LoadN(out + i, used), dot);
    });
    g_den[t] = -hn::GetLane(hn::SumOfLanes(d, dot));
  };
  const auto prefetch = [&](size_t l) HWY_ATTR {
    PrefetchRow(q_rows.At(l), dim);
    PrefetchRow(k_rows.At(l), dim);
    PrefetchRow(v_rows.At(l), value_dim);
    PrefetchRow(grad_out_rows.At(l), value_dim);
    if (options.normalize) PrefetchRow(out_rows.At(l), value_dim);
  };
  // Writes rows of gradients at phi(x) as gradients at x.
  const auto unpack = [&](const float* grad, const float* phi, float* to) HWY_ATTR {
    ForVectors(dim, [&](size_t i, size_t used) HWY_ATTR {
      StoreN(hn::Mul(hn::Load(d, grad + i), PhiDerivative(map, hn::Load(d, phi + i))), to + i,
             used);
    });
  };

  const size_t state = index * dim * value_dim;
  // Eq. 13, from the front: grad phi(q)_i = sum_{j <= i} (g_i . v_j + g_den_i) phi(k)_j, and what
  // the state began with.
  if (args.s) LoadTransposed(args.s + state, dim, value_dim, s_md, dp);
  if (args.z && options.normalize) std::memcpy(sum, args.z + index * dim, dim * sizeof(float));
  for (size_t begin = 0; begin < length; begin += kBlock) {
    const size_t tokens = std::min(kBlock, length - begin);
    for (size_t t = 0; t < tokens; ++t) {
      if (begin + t + kBlock < length) prefetch(begin + t + kBlock);
      PrefetchRow(grad_q_rows.At(begin + t), dim);
      pack(t, begin + t);
      for (size_t i = 0; i < dp; i += lanes) {
        const Vec z_i = hn::Add(hn::Load(d, sum + i), hn::Load(d, phi_k + t * dp + i));
        hn::Store(z_i, d, sum + i);
        hn::Store(hn::Mul(z_i, hn::Set(d, g_den[t])), d, out_d + t * dp + i);
      }
    }
    Sweep(tokens, mp, dp, g, v, phi_k, out_d, s_md);
    for (size_t t = 0; t < tokens; ++t) {
      unpack(out_d + t * dp, phi_q + t * dp, grad_q_rows.At(begin + t));
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
  if (args.grad_z && options.normalize) {
    std::memcpy(sum, args.grad_z + index * dim, dim * sizeof(float));
  }
  for (size_t end = length; end > 0;) {
    const size_t tokens = std::min(kBlock, end);
    for (size_t t = 0; t < tokens; ++t) {
      const size_t l = end - 1 - t;
      if (l >= kBlock) prefetch(l - kBlock);
      PrefetchRow(grad_k_rows.At(l), dim);
      PrefetchRow(grad_v_rows.At(l), value_dim);
      pack(t, l);
      for (size_t i = 0; i < dp; i += lanes) {
        const Vec z_i =
            hn::MulAdd(hn::Set(d, g_den[t]), hn::Load(d, phi_q + t * dp + i), hn::Load(d, sum + i));
        hn::Store(z_i, d, sum + i);
        hn::Store(z_i, d, out_d + t * dp + i);
      }
    }
    Clear(out_m, tokens * mp);
    Sweep(tokens, mp, dp, v, g, phi_q, out_d, s_md);
    Sweep(tokens, dp, mp, phi_k, phi_q, g, out_m, s_dm);
    for (size_t t = 0; t < tokens; ++t) {
      const size_t l = end - 1 - t;
      float* grad_k = grad_k_rows.At(l);
      if (l < valid) {
        unpack(out_d + t * dp, phi_k + t * dp, grad_k);
      } else {
        Clear(grad_k, dim);
      }
      float* grad_v = grad_v_rows.At(l);
      ForVectors(value_dim, [&](size_t i, size_t used) HWY_ATTR {
        StoreN(hn::Load(d, out_m + t * mp + i), grad_v + i, used);
      });
    }
    end -= tokens;
  }
  // What has been summed up in front of the first position is the gradient of the first state.
  if (args.grad_s0) StoreState(s_dm, dim, value_dim, args.grad_s0 + state, mp);
  if (args.grad_z0 && options.normalize) {
    std::memcpy(args.grad_z0 + index * dim, sum, dim * sizeof(float));
  }
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
