// Loads bfloat16 arrays into float vectors, and stores float vectors as bfloat16.
#if defined(LINNET_KERNELS_BFLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_BFLOAT16_INL_H_
#undef LINNET_KERNELS_BFLOAT16_INL_H_
#else
#define LINNET_KERNELS_BFLOAT16_INL_H_
#endif

#include "hwy/highway.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

using U16 = hn::Rebind<uint16_t, F32>;

// The nearest bfloat16 numbers, ties to even, in the upper halves of the lanes. Highway's own
// conversion truncates in some versions.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<F32>> NearestBFloat16(Vec x) {
  const hn::RebindToUnsigned<F32> d32;
  const auto bits = hn::BitCast(d32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(x));  // rounding might turn NaN into infinity or 0
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  return hn::IfThenElse(nan, quiet, rounded);
}

HWY_INLINE hn::Vec<U16> ToBFloat16(Vec x) {
  const auto upper = hn::ShiftRight<16>(NearestBFloat16(x));
  return hn::DemoteTo(U16(), hn::BitCast(hn::RebindToSigned<F32>(), upper));
}

// Rounds to bfloat16 and converts back.
HWY_INLINE Vec RoundToBFloat16(Vec x) {
  const hn::RebindToUnsigned<F32> d32;
  return hn::BitCast(F32(), hn::And(NearestBFloat16(x), hn::Set(d32, 0xffff0000u)));
}

HWY_INLINE Vec FromBFloat16(hn::Vec<U16> x) {
  const hn::RebindToUnsigned<F32> d32;
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(d32, x)));
}

// The bfloat16 versions of LoadN() and StoreN() of vector-inl.h.
HWY_INLINE Vec LoadN(const BFloat16* from, size_t n) {
  const U16 d;
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(from);
  if (HWY_LIKELY(n == hn::Lanes(d))) return FromBFloat16(hn::LoadU(d, bits));
  HWY_ALIGN uint16_t part[16] = {};
  for (size_t i = 0; i < n; ++i) part[i] = bits[i];
  return FromBFloat16(hn::Load(d, part));
}

HWY_INLINE void StoreN(Vec x, BFloat16* to, size_t n) {
  const U16 d;
  uint16_t* bits = reinterpret_cast<uint16_t*>(to);
  if (HWY_LIKELY(n == hn::Lanes(d))) {
    hn::StoreU(ToBFloat16(x), d, bits);
    return;
  }
  HWY_ALIGN uint16_t part[16];
  hn::Store(ToBFloat16(x), d, part);
  for (size_t i = 0; i < n; ++i) bits[i] = part[i];
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_BFLOAT16_INL_H_
