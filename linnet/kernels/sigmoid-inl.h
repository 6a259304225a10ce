// The logistic function and SiLU for the Highway bodies of kernels.
#if defined(LINNET_KERNELS_SIGMOID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_SIGMOID_INL_H_
#undef LINNET_KERNELS_SIGMOID_INL_H_
#else
#define LINNET_KERNELS_SIGMOID_INL_H_
#endif

#include "hwy/highway.h"
#include "linnet/kernels/exp-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// scale / (1 + e^-x), computed from e^-|x|, which cannot overflow.
HWY_INLINE Vec ScaledSigmoid(Vec scale, Vec x) {
  const F32 d;
  const Vec small = Exp(hn::Neg(hn::Abs(x)));
  const Vec above = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(scale, small), scale);
  return hn::Div(above, hn::Add(hn::Set(d, 1.0f), small));
}

HWY_INLINE Vec Sigmoid(Vec x) { return ScaledSigmoid(hn::Set(F32(), 1.0f), x); }

// The factor is bounded because Exp() does not fall below e^-87.
HWY_INLINE Vec Silu(Vec x) { return ScaledSigmoid(AtLeast(x, hn::Set(F32(), -1000.0f)), x); }

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_SIGMOID_INL_H_
