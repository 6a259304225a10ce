#include "linnet/kernels/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/activation-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(ActivateF32);
HWY_EXPORT(ActivateBf16);
HWY_EXPORT(GatedSiluBody);
HWY_EXPORT(SquaredReluBody);
HWY_EXPORT(ActivateBackwardF32);
HWY_EXPORT(ActivateBackwardBf16);

void Activate(Activation activation, size_t n, float* x) { Activate(activation, n, x, x); }

void Activate(Activation activation, size_t n, const float* x, float* out) {
  HWY_DYNAMIC_DISPATCH(ActivateF32)(activation, n, x, out);
}

void Activate(Activation activation, size_t n, const BFloat16* x, BFloat16* out) {
  HWY_DYNAMIC_DISPATCH(ActivateBf16)(activation, n, x, out);
}

void GatedSilu(size_t rows, size_t width, const float* x, float* out) {
  HWY_DYNAMIC_DISPATCH(GatedSiluBody)(rows, width, x, out);
}

void SquaredRelu(size_t n, float* x) { HWY_DYNAMIC_DISPATCH(SquaredReluBody)(n, x); }

void ActivateBackward(Activation activation, size_t rows, size_t columns,
                      const ActivationBackwardArgs<float>& args) {
  HWY_DYNAMIC_DISPATCH(ActivateBackwardF32)(activation, rows, columns, args);
}

void ActivateBackward(Activation activation, size_t rows, size_t columns,
                      const ActivationBackwardArgs<BFloat16>& args) {
  HWY_DYNAMIC_DISPATCH(ActivateBackwardBf16)(activation, rows, columns, args);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
