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
#include "linnet/kernels/bfloat16-inl.h"
#include "linnet/kernels/linear_step.h"
#include "linnet/kernels/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Features that are worked on together; what a position's phi(q) takes on the stack.
inline constexpr size_t kFeatures = 64;
// Rows that LinearExtend() adds up before it adds them to the sums.
inline constexpr size_t kExtendRows = 64;

// One head's state: T is what positions read, Rest what the sums keep beside it.
template <typename T>
struct HeadState {
  using Rest = std::conditional_t<std::is_same_v<T, float>, BFloat16, float>;

  T* s;     // [F, M']
  float* z; // [F']
  T* rows;  // [kRecentKeys, F' + M']
  Rest* s_rest;
  float* z_rest;
  size_t dim, fp, mp;

  HeadState(const LinearStepShape& shape, float* hot, float* cold)
      : s(reinterpret_cast<T*>(hot)),
        z(hot + shape.HotSums()),
        dim(shape.dim),
        fp(LinearStepShape::Padded(shape.dim)),
        mp(LinearStepShape::Padded(shape.value_dim)) {
    rows = reinterpret_cast<T*>(z + fp);
    z_rest = cold;
    s_rest = reinterpret_cast<Rest*>(cold + fp);
  }
  T* Row(size_t i) const { return rows + i * (fp + mp); }
};

HWY_INLINE float ToFloat(float x) { return x; }
HWY_INLINE float ToFloat(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

HWY_INLINE Vec LoadAll(const float* from) { return hn::Load(F32(), from); }
HWY_INLINE Vec LoadAll(const BFloat16* from) {
  return FromBFloat16(hn::Load(U16(), reinterpret_cast<const uint16_t*>(from)));
}
HWY_INLINE void StoreAll(Vec x, float* to) { hn::Store(x, F32(), to); }
HWY_INLINE void StoreAll(Vec x, BFloat16* to) {
  hn::Store(ToBFloat16(x), U16(), reinterpret_cast<uint16_t*>(to));
}
// What is left of x once it is stored as a T.
HWY_INLINE Vec Rounded(Vec x, const float*) { return x; }
HWY_INLINE Vec Rounded(Vec x, const BFloat16*) { return FromBFloat16(ToBFloat16(x)); }

// (sum, rest) += x, where sum is rounded as a T and what that loses is in the rest. The error of a
// sum that is rounded to nearest is a float itself (Knuth's exact addition).
template <typename T, typename Rest>
HWY_INLINE void AddTo(T* sum, Rest* rest, Vec x) {
  const Vec old = LoadAll(sum);
  const Vec add = hn::Add(LoadAll(rest), x);
  const Vec now = Rounded(hn::Add(old, add), sum);
  const Vec shown = hn::Sub(now, old);  // of what was to be added
  const Vec lost = hn::Add(hn::Sub(old, hn::Sub(now, shown)), hn::Sub(add, shown));
  StoreAll(now, sum);
  StoreAll(lost, rest);
}

// s, z += the sum over `count` rows of key(i, f) value(i)^T, features [f0, f0 + features).
template <typename T, class Key, class Value>
HWY_INLINE void Accumulate(const HeadState<T>& state, size_t count, size_t f0, size_t features,
                           const Key& key, const Value& value) {
  const F32 d;
  constexpr size_t kBlock = HWY_TARGET == HWY_AVX3 ? 8 : 4;
  for (size_t f = f0; f < f0 + features; f += kBlock) {
    const size_t rows = std::min(kBlock, f0 + features - f);
    for (size_t c = 0; c < state.mp; c += kLanes) {
      Vec sum[kBlock];
      HWY_UNROLL(8)
      for (size_t r = 0; r < kBlock; ++r) sum[r] = hn::Zero(d);
      for (size_t i = 0; i < count; ++i) {
        const Vec v = value(i, c);
        HWY_UNROLL(8)
        for (size_t r = 0; r < kBlock; ++r) {
          sum[r] = hn::MulAdd(hn::Set(d, key(i, f + r)), v, sum[r]);
        }
      }
      for (size_t r = 0; r < rows; ++r) {
        AddTo(state.s + (f + r) * state.mp + c, state.s_rest + (f + r) * state.mp + c, sum[r]);
      }
    }
  }
}

template <typename T>
HWY_NOINLINE void FoldHead(const HeadState<T>& state, size_t recent) {
  const auto key = [&](size_t i, size_t f) HWY_ATTR { return ToFloat(state.Row(i)[f]); };
  const auto value = [&](size_t i, size_t c) HWY_ATTR {
    return LoadAll(state.Row(i) + state.fp + c);
  };
  Accumulate(state, recent, 0, state.dim, key, value);
  for (size_t f = 0; f < state.fp; f += kLanes) {
    Vec sum = hn::Zero(F32());
    for (size_t i = 0; i < recent; ++i) sum = hn::Add(sum, LoadAll(state.Row(i) + f));
    AddTo(state.z + f, state.z_rest + f, sum);
  }
}

template <typename T>
HWY_NOINLINE void ExtendHead(const HeadState<T>& state, FeatureMap map, size_t value_dim,
                             size_t length, const float* k, ptrdiff_t k_stride, const float* v,
                             ptrdiff_t v_stride) {
  const F32 d;
  HWY_ALIGN float phi[kExtendRows * kPad];
  for (size_t f0 = 0; f0 < state.dim; f0 += kPad) {
    const size_t features = std::min(kPad, state.dim - f0);
    for (size_t i = 0; i < length; ++i) {
      const float* row = k + static_cast<ptrdiff_t>(i) * k_stride + f0;
      for (size_t f = 0; f < kPad; f += kLanes) {
        const size_t used = f < features ? std::min(kLanes, features - f) : 0;
        const Vec x = used > 0 ? ZeroBeyond(Phi(map, LoadN(row + f, used)), used) : hn::Zero(d);
        hn::Store(x, d, phi + i * kPad + f);
      }
    }
    for (size_t f = 0; f < kPad; f += kLanes) {
      Vec sum = hn::Zero(d);
      for (size_t i = 0; i < length; ++i) sum = hn::Add(sum, hn::Load(d, phi + i * kPad + f));
      AddTo(state.z + f0 + f, state.z_rest + f0 + f, sum);
    }
    const auto key = [&](size_t i, size_t f) HWY_ATTR { return phi[i * kPad + f - f0]; };
    const auto value = [&](size_t i, size_t c) HWY_ATTR {
      const float* row = v + static_cast<ptrdiff_t>(i) * v_stride + c;
      if (c + kLanes <= value_dim) return hn::LoadU(d, row);
      return c < value_dim ? LoadN(row, value_dim - c) : hn::Zero(d);
    };
    Accumulate(state, length, f0, features, key, value);
  }
}

// out[c ..] (+)= phi(q) s over `features` rows of s, and weights of rows of values; kVectors columns.
// next: from this head's state to the one that comes after it, whose lines are asked for.
template <size_t kVectors, typename T>
HWY_INLINE void ReadColumns(const HeadState<T>& state, size_t f0, size_t features,
                            const float* HWY_RESTRICT phi_q, size_t rows,
                            const float* HWY_RESTRICT weights, ptrdiff_t next, size_t c,
                            size_t value_dim, bool first, float scale, float* HWY_RESTRICT out) {
  const F32 d;
  Vec sum[2][kVectors];  // two chains of additions each
  Unrolled<kVectors>([&](auto j) HWY_ATTR {
    const size_t at = c + j * kLanes;
    sum[0][j] = first || at >= value_dim ? hn::Zero(d)
                                         : LoadN(out + at, std::min(kLanes, value_dim - at));
    sum[1][j] = hn::Zero(d);
  });
  const auto add = [&](const T* row, float weight, auto chain) HWY_ATTR {
    const Vec w = hn::Set(d, weight);
    Unrolled<kVectors>([&](auto j) HWY_ATTR {
      if (j * kLanes * sizeof(T) % 64 == 0) {
        hwy::Prefetch(reinterpret_cast<const std::byte*>(row + j * kLanes) + next);
      }
      sum[chain][j] = hn::MulAdd(w, LoadAll(row + j * kLanes), sum[chain][j]);
    });
  };
  const std::integral_constant<size_t, 0> even;
  const std::integral_constant<size_t, 1> odd;
  const T* s = state.s + f0 * state.mp + c;
  size_t f = 0;
  for (; f + 2 <= features; f += 2) {
    add(s + f * state.mp, phi_q[f], even);
    add(s + (f + 1) * state.mp, phi_q[f + 1], odd);
  }
  if (f < features) add(s + f * state.mp, phi_q[f], even);
  size_t i = 0;
  for (; i + 2 <= rows; i += 2) {
    add(state.Row(i) + state.fp + c, weights[i], even);
    add(state.Row(i + 1) + state.fp + c, weights[i + 1], odd);
  }
  if (i < rows) add(state.Row(i) + state.fp + c, weights[i], even);
  Unrolled<kVectors>([&](auto j) HWY_ATTR {
    const size_t at = c + j * kLanes;
    if (at >= value_dim) return;
    const Vec total = hn::Mul(hn::Add(sum[0][j], sum[1][j]), hn::Set(d, scale));
    StoreN(total, out + at, std::min(kLanes, value_dim - at));
  });
}

// |z|, with the keys that wait.
template <typename T>
HWY_NOINLINE float LengthOfZ(const HeadState<T>& state, size_t count) {
  Vec squares = hn::Zero(F32());
  for (size_t f = 0; f < state.fp; f += kLanes) {
    Vec z = LoadAll(state.z + f);
    for (size_t i = 0; i < count; ++i) z = hn::Add(z, LoadAll(state.Row(i) + f));
    squares = hn::MulAdd(z, z, squares);
  }
  return std::sqrt(hn::GetLane(hn::SumOfLanes(F32(), squares)));
}

template <typename T>
HWY_INLINE void StepHead(const HeadState<T>& state, const CausalLinearOptions& options,
                         size_t value_dim, const float* HWY_RESTRICT q,
                         const float* HWY_RESTRICT k, const float* HWY_RESTRICT v, size_t recent,
                         float floor, ptrdiff_t next, float* HWY_RESTRICT out) {
  const F32 d;
  T* row = state.Row(recent);
  const size_t dim = state.dim, count = recent + 1;
  for (size_t f = 0; f < state.fp; f += kLanes) {
    const size_t used = f < dim ? std::min(kLanes, dim - f) : 0;
    StoreAll(used > 0 ? ZeroBeyond(Phi(options.feature_map, LoadN(k + f, used)), used)
                      : hn::Zero(d),
             row + f);
  }
  for (size_t c = 0; c < state.mp; c += kLanes) {
    const size_t used = c < value_dim ? std::min(kLanes, value_dim - c) : 0;
    StoreAll(used > 0 ? LoadN(v + c, used) : hn::Zero(d), row + state.fp + c);
  }

  HWY_ALIGN float phi_q[kFeatures], weights[kRecentKeys] = {};
  Vec den = hn::Zero(d);
  for (size_t f0 = 0; f0 < dim; f0 += kFeatures) {
    const size_t features = std::min(kFeatures, dim - f0);
    const size_t padded = LinearStepShape::Padded(features);
    for (size_t f = 0; f < padded; f += kLanes) {
      const size_t used = f < features ? std::min(kLanes, features - f) : 0;
      const Vec phi = used > 0 ? ZeroBeyond(Phi(options.feature_map, LoadN(q + f0 + f, used)), used)
                               : hn::Zero(d);
      hn::Store(phi, d, phi_q + f);
      if (options.normalize) den = hn::MulAdd(phi, hn::Load(d, state.z + f0 + f), den);
    }
    // Four at a time; those beyond `count` are old or zero, and not looked at.
    for (size_t i = 0; i < count; i += 4) {
      Vec dot[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      for (size_t f = 0; f < padded; f += kLanes) {
        const Vec phi = hn::Load(d, phi_q + f);
        Unrolled<4>([&](auto r) HWY_ATTR {
          const T* key = state.Row(i + r) + f0 + f;
          hwy::Prefetch(reinterpret_cast<const std::byte*>(key) + next);
          dot[r] = hn::MulAdd(phi, LoadAll(key), dot[r]);
        });
      }
      float sums[4];
      StoreSums(dot[0], dot[1], dot[2], dot[3], sums);
      for (size_t r = 0; r < 4 && i + r < count; ++r) weights[i + r] += sums[r];
    }
    const bool last = f0 + features == dim;
    float scale = 1;
    if (last && options.normalize) {
      float total = hn::GetLane(hn::SumOfLanes(d, den));
      for (size_t i = 0; i < count; ++i) total += weights[i];
      scale = floor > 0 ? 1 / std::max(total, floor * LengthOfZ(state, count))
                        : Reciprocal(total + options.eps);
    }
    size_t c = 0;
    const auto read = [&](auto vectors) HWY_ATTR {
      ReadColumns<vectors>(state, f0, features, phi_q, last ? count : 0, weights, next, c,
                           value_dim, f0 == 0, scale, out);
      c += vectors * kLanes;
    };
    while (c + 2 * kLanes <= state.mp) read(std::integral_constant<size_t, 2>());
    if (c < state.mp) read(std::integral_constant<size_t, 1>());
  }
  if (count == kRecentKeys) FoldHead(state, count);
}

template <typename T>
HWY_INLINE void StepAll(const LinearStepShape& shape, size_t batch,
                        const CausalLinearOptions& options, const LinearStepArgs& args) {
  const auto hot = static_cast<ptrdiff_t>(shape.HotFloats());
  const auto cold = static_cast<ptrdiff_t>(shape.ColdFloats());
  const auto place = [&](size_t n) { return args.sequences ? args.sequences[n] : n; };
  for (size_t n = 0; n < batch; ++n) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(place(n)) * args.state_stride;
    for (size_t h = 0; h < shape.heads; ++h) {
      const auto head = static_cast<ptrdiff_t>(h);
      // The last of all asks for itself.
      ptrdiff_t next = 0;
      if (h + 1 < shape.heads) {
        next = hot;
      } else if (n + 1 < batch) {
        next = static_cast<ptrdiff_t>(place(n + 1)) * args.state_stride - at - head * hot;
      }
      const HeadState<T> state(shape, args.hot + at + head * hot, args.cold + at + head * cold);
      StepHead(state, options, shape.value_dim, args.q.At(n, 0, h), args.k.At(n, 0, h),
               args.v.At(n, 0, h), args.recent[place(n)], args.floor,
               next * static_cast<ptrdiff_t>(sizeof(float)), args.out.At(n, 0, h));
    }
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

// Calls body(head's state, head) for each head of a sequence.
template <class Body>
HWY_INLINE void ForHeads(const LinearStepShape& shape, float* hot, float* cold, const Body& body) {
  for (size_t h = 0; h < shape.heads; ++h) {
    float* head_hot = hot + h * shape.HotFloats();
    float* head_cold = cold + h * shape.ColdFloats();
    if (shape.narrow) {
      body(HeadState<BFloat16>(shape, head_hot, head_cold), h);
    } else {
      body(HeadState<float>(shape, head_hot, head_cold), h);
    }
  }
}

void LinearFoldBody(const LinearStepShape& shape, float* hot, float* cold, size_t recent) {
  ForHeads(shape, hot, cold,
           [&](const auto& state, size_t) HWY_ATTR { FoldHead(state, recent); });
}

void LinearSumsBody(const LinearStepShape& shape, const float* hot, const float* cold, float* s,
                    float* z) {
  const auto sums = [&](const auto& state, size_t h) HWY_ATTR {
    const auto copy = [](const auto* sum, const auto* rest, size_t n, float* to) HWY_ATTR {
      ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
        StoreN(hn::Add(LoadAll(sum + i), LoadAll(rest + i)), to + i, used);
      });
    };
    for (size_t f = 0; f < shape.dim; ++f) {
      copy(state.s + f * state.mp, state.s_rest + f * state.mp, shape.value_dim,
           s + (h * shape.dim + f) * shape.value_dim);
    }
    copy(state.z, state.z_rest, shape.dim, z + h * shape.dim);
  };
  ForHeads(shape, const_cast<float*>(hot), const_cast<float*>(cold), sums);
}

void LinearExtendBody(const LinearStepShape& shape, FeatureMap feature_map, size_t length,
                      Strided<const float> k, Strided<const float> v, float* hot, float* cold) {
  ForHeads(shape, hot, cold, [&](const auto& state, size_t h) HWY_ATTR {
    for (size_t i = 0; i < length; i += kExtendRows) {
      ExtendHead(state, feature_map, shape.value_dim, std::min(kExtendRows, length - i),
                 k.At(0, i, h), k.time, v.At(0, i, h), v.time);
    }
  });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LINEAR_STEP_INL_H_
