// e^x for the Highway bodies of kernels. Unlike hn::Exp, which takes 1.5 times as long, it returns
// no subnormal numbers and does not handle overflow.
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

// e^x. The relative error is at most 3e-7 for -10 <= x <= 88 and 1.3e-6 for -87 <= x < -10; on
// targets without fused multiply-add, up to 1e-7 |x| more. For x < -87 the result is
// e^-87 = 1.6e-38, for x > 88 it is unspecified, and for NaN it is NaN.
//
// Computed as 2^n 2^f, where n is the integer nearest to x log2(e) and |f| <= 1/2. 2^f is
// approximated by the polynomial of degree 5 with the least maximum relative error, which is 7.5e-8
// before the coefficients are rounded to float.
HWY_INLINE Vec Exp(Vec x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const Vec log2_e = hn::Set(d, 1.44269504f);
  // 1.5 * 2^23: adding it rounds a number to an integer, which is in the sum's lowest bits.
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
