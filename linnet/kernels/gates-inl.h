// The Highway bodies of gates.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_GATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_GATES_INL_H_
#undef LINNET_KERNELS_GATES_INL_H_
#else
#define LINNET_KERNELS_GATES_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "linnet/kernels/sigmoid-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// log(sigmoid(x)) = min(x, 0) - log(1 + e^-|x|), so that nothing overflows.
HWY_INLINE Vec LogSigmoidOf(Vec x) {
  const F32 d;
  const Vec rest = hn::Log1p(d, Exp(hn::Neg(hn::Abs(x))));
  return hn::Sub(AtMost(x, hn::Zero(d)), rest);
}

template <class Function>
HWY_INLINE void Replace(size_t n, float* x, Function function) {
  ForVectors(n, [&](size_t i, size_t used)
                    HWY_ATTR { StoreN(function(LoadN(x + i, used)), x + i, used); });
}

void SiluBody(size_t n, float* x) {
  Replace(n, x, [](Vec v) HWY_ATTR { return Silu(v); });
}
void SigmoidBody(size_t n, float scale, float* x) {
  const Vec factor = hn::Set(F32(), scale);
  Replace(n, x, [&](Vec v) HWY_ATTR { return ScaledSigmoid(factor, v); });
}
void LogSigmoidBody(size_t n, float scale, float* x) {
  const Vec factor = hn::Set(F32(), scale);
  Replace(n, x, [&](Vec v) HWY_ATTR { return hn::Mul(factor, LogSigmoidOf(v)); });
}
void SoftplusBody(size_t n, float scale, float* x) {
  const Vec factor = hn::Set(F32(), -scale);
  Replace(n, x, [&](Vec v) HWY_ATTR { return hn::Mul(factor, LogSigmoidOf(hn::Neg(v))); });
}
void TanhBody(size_t n, float* x) {
  Replace(n, x, [](Vec v) HWY_ATTR { return hn::Tanh(F32(), v); });
}
void GateBySiluBody(size_t n, const float* gate, float* x) {
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    StoreN(hn::Mul(LoadN(x + i, used), Silu(LoadN(gate + i, used))), x + i, used);
  });
}

void InterpolateBody(size_t n, const float* x, const float* other, const float* share, float* to) {
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    const Vec from = LoadN(x + i, used);
    const Vec towards = other == nullptr ? hn::Zero(F32()) : LoadN(other + i, used);
    StoreN(hn::MulAdd(hn::Sub(towards, from), LoadN(share + i, used), from), to + i, used);
  });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_GATES_INL_H_
