// The Highway body of activation.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_ACTIVATION_INL_H_
#undef LINNET_KERNELS_ACTIVATION_INL_H_
#else
#define LINNET_KERNELS_ACTIVATION_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Not Max: what it makes of a NaN differs between targets.
HWY_INLINE Vec Relu(Vec x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(F32())), x); }

// x Phi(x) = max(x, 0) - a Phi(-a) with a = |x|, so that only the tail needs a formula:
// Phi(-a) = exp(-a^2 / 2) t p(t), t = 1 / (1 + 0.35 a), where p is the minimax polynomial of degree
// 8 over 0 <= a <= 14 (relative error 3.2e-8; beyond, the tail is below the smallest float).
HWY_INLINE Vec Gelu(Vec x) {
  const F32 d;
  const auto c = [d](float value) HWY_ATTR { return hn::Set(d, value); };
  const Vec size = hn::Abs(x), limit = c(14.0f);
  const Vec a = hn::IfThenElse(hn::Gt(size, limit), limit, size);
  const Vec t = hn::Div(c(1.0f), hn::MulAdd(a, c(0.35f), c(1.0f)));
  Vec p = c(-0.0291459188f);
  p = hn::MulAdd(p, t, c(0.143971641f));
  p = hn::MulAdd(p, t, c(-0.255714135f));
  p = hn::MulAdd(p, t, c(0.159174024f));
  p = hn::MulAdd(p, t, c(-0.0231097413f));
  p = hn::MulAdd(p, t, c(0.105507965f));
  p = hn::MulAdd(p, t, c(0.119832877f));
  p = hn::MulAdd(p, t, c(0.139861868f));
  p = hn::MulAdd(p, t, c(0.139621404f));
  const Vec bell = hn::Exp(d, hn::Mul(hn::Mul(a, a), c(-0.5f)));
  return hn::NegMulAdd(hn::Mul(hn::Mul(a, bell), t), p, Relu(x));
}

template <class Function>
HWY_INLINE void Map(size_t n, float* x, Function function) {
  ForVectors(n, [&](size_t i, size_t used)
                    HWY_ATTR { StoreN(function(LoadN(x + i, used)), x + i, used); });
}

void ActivateBody(Activation activation, size_t n, float* x) {
  if (activation == Activation::kRelu) {
    Map(n, x, [](Vec v) HWY_ATTR { return Relu(v); });
  } else {
    Map(n, x, [](Vec v) HWY_ATTR { return Gelu(v); });
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_ACTIVATION_INL_H_
