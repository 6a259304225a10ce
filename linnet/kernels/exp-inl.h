// e^x for the Highway bodies, without subnormal results and without handling of overflow. hn::Exp
// provides both, and takes 1.5 times as long.
#if defined(LINNET_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_EXP_INL_H_
#undef LINNET_KERNELS_EXP_INL_H_
#else
#define LINNET_KERNELS_EXP_INL_H_
#endif

#include "hwy/highway.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// e^x for x <= 88. The relative error is at most 3e-7 down to x = -10 and 1.3e-6 below. Below x =
// -87 the result stays at e^-87 = 1.6e-38. Above 88 it is unspecified. NaN for NaN.
//
// Computed as 2^n 2^f, where n is the integer nearest to x log2(e). For |f| <= 1/2, 2^f is the
// polynomial of degree 5 with the least maximum relative error (7.5e-8 before its coefficients are
// rounded to float).
HWY_INLINE Vec Exp(Vec x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const Vec log2_e = hn::Set(d, 1.44269504f);
  // Adding this constant rounds away the fraction and leaves the integer in the lowest bits.
  const Vec round = hn::Set(d, 12582912.0f);
  x = AtLeast(x, hn::Set(d, -87.0f));
  const Vec shifted = hn::MulAdd(x, log2_e, round);
  const Vec f = hn::MulSub(x, log2_e, hn::Sub(shifted, round));
  Vec p = hn::Set(d, 1.3276472e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 9.6755410e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5507131e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022120e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314694e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0000001f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_EXP_INL_H_
