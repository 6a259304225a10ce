// Helpers for the Highway bodies: vectors over rows of floats of any length.
#if defined(LINNET_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_VECTOR_INL_H_
#undef LINNET_KERNELS_VECTOR_INL_H_
#else
#define LINNET_KERNELS_VECTOR_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 16 lanes at most, so that rows padded to 16 suit every target.
using F32 = hn::CappedTag<float, 16>;
using Vec = hn::Vec<F32>;

// Loads n floats; the other lanes are zero. 1 <= n <= lanes. LoadN() and StoreN() touch no memory
// beyond the n floats, because another thread may be writing there. Highway's masked operations on
// NEON would touch that memory.
HWY_INLINE Vec LoadN(const float* from, size_t n) {
  const F32 d;
  if (HWY_LIKELY(n == hn::Lanes(d))) return hn::LoadU(d, from);
#if HWY_TARGET == HWY_NEON
  HWY_ALIGN const float part[4] = {from[0], n > 1 ? from[1] : 0.0f, n > 2 ? from[2] : 0.0f, 0.0f};
  return hn::Load(d, part);
#else
  return hn::MaskedLoad(hn::FirstN(d, n), d, from);
#endif
}

HWY_INLINE void StoreN(Vec v, float* to, size_t n) {
  const F32 d;
  if (HWY_LIKELY(n == hn::Lanes(d))) {
    hn::StoreU(v, d, to);
    return;
  }
#if HWY_TARGET == HWY_NEON
  HWY_ALIGN float part[4];
  hn::Store(v, d, part);
  to[0] = part[0];
  if (n > 1) to[1] = part[1];
  if (n > 2) to[2] = part[2];
#else
  hn::BlendedStore(v, hn::FirstN(d, n), d, to);
#endif
}

// max(x, low), but NaN if x is NaN; `low` must not be NaN. For a number and a NaN, hn::Max()
// returns the second argument on x86, and the number on other targets.
HWY_INLINE Vec AtLeast(Vec x, Vec low) {
#if HWY_TARGET == HWY_NEON
  return Vec(vmaxq_f32(low.raw, x.raw));
#elif HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Lt(x, low), low, x);
#else
  return hn::Max(low, x);
#endif
}

// min(x, high), but NaN if x is NaN; `high` must not be NaN.
HWY_INLINE Vec AtMost(Vec x, Vec high) {
#if HWY_TARGET == HWY_NEON
  return Vec(vminq_f32(high.raw, x.raw));
#elif HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Gt(x, high), high, x);
#else
  return hn::Min(high, x);
#endif
}

// v with its lanes from n on set to zero.
HWY_INLINE Vec ZeroBeyond(Vec v, size_t n) {
  const F32 d;
  return hn::IfThenElseZero(hn::FirstN(d, n), v);
}

#if HWY_TARGET != HWY_SCALAR
// to[0 .. 4) = the lane-wise sum of the vector's blocks of four lanes.
template <class D>
HWY_INLINE void StoreSumOfBlocks(D d, hn::Vec<D> x, float* to) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    StoreSumOfBlocks(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)), to);
  } else {
    hn::StoreU(x, d, to);
  }
}
#endif

// to[0 .. 4) = the sums of the lanes of a, b, c and d.
HWY_INLINE void StoreSums(Vec a, Vec b, Vec c, Vec d, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a), to[1] = hn::GetLane(b), to[2] = hn::GetLane(c), to[3] = hn::GetLane(d);
#else
  const F32 df;
  // pairs(a, b) is, in each block of four lanes, a0 + a2, b0 + b2, a1 + a3, b1 + b3. `sums` are the
  // four sums over each block.
  const hn::RepartitionToWide<F32> dw;
  const auto pairs = [&](Vec x, Vec y) HWY_ATTR {
    return hn::BitCast(dw, hn::Add(hn::InterleaveLower(df, x, y), hn::InterleaveUpper(df, x, y)));
  };
  const auto ab = pairs(a, b), cd = pairs(c, d);
  const Vec sums = hn::Add(hn::BitCast(df, hn::InterleaveLower(dw, ab, cd)),
                           hn::BitCast(df, hn::InterleaveUpper(dw, ab, cd)));
  StoreSumOfBlocks(df, sums, to);
#endif
}

HWY_INLINE float SumOf(Vec v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }

// Calls body(index of its first float, number of its floats) for each vector of a row of n floats.
template <class Body>
HWY_INLINE void ForVectors(size_t n, Body body) {
  const size_t lanes = hn::Lanes(F32());
  for (size_t i = 0; i < n; i += lanes) body(i, std::min(lanes, n - i));
}

// Leaves `at` unchanged but hides this from the compiler, which then loads a value again instead of
// keeping it in a register.
HWY_INLINE void HidePointer(const float*& at) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  asm("" : "+r"(at));
#endif
}

template <class Body, size_t... kIndex>
HWY_INLINE void UnrolledOver(Body& body, std::index_sequence<kIndex...>) {
  (body(std::integral_constant<size_t, kIndex>()), ...);
}

// Calls body(constant 0) .. body(constant kCount - 1). Arrays of vectors stay in registers only if
// constants index them.
template <size_t kCount, class Body>
HWY_INLINE void Unrolled(Body body) {
  UnrolledOver(body, std::make_index_sequence<kCount>());
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_VECTOR_INL_H_
