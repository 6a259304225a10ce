#include "linnet/kernels/gates.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/gates.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/gates-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(SiluBody);
HWY_EXPORT(SigmoidBody);
HWY_EXPORT(LogSigmoidBody);
HWY_EXPORT(SoftplusBody);
HWY_EXPORT(TanhBody);
HWY_EXPORT(GateBySiluBody);
HWY_EXPORT(InterpolateBody);

void Silu(size_t n, float* x) { HWY_DYNAMIC_DISPATCH(SiluBody)(n, x); }

void Sigmoid(size_t n, float scale, float* x) { HWY_DYNAMIC_DISPATCH(SigmoidBody)(n, scale, x); }

void LogSigmoid(size_t n, float scale, float* x) {
  HWY_DYNAMIC_DISPATCH(LogSigmoidBody)(n, scale, x);
}

void Softplus(size_t n, float scale, float* x) { HWY_DYNAMIC_DISPATCH(SoftplusBody)(n, scale, x); }

void Tanh(size_t n, float* x) { HWY_DYNAMIC_DISPATCH(TanhBody)(n, x); }

void GateBySilu(size_t n, const float* gate, float* x) {
  HWY_DYNAMIC_DISPATCH(GateBySiluBody)(n, gate, x);
}

void Interpolate(size_t n, const float* x, const float* other, const float* share, float* to) {
  HWY_DYNAMIC_DISPATCH(InterpolateBody)(n, x, other, share, to);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
