#include "linnet/kernels/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/activation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/activation-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(ActivateBody);

void Activate(Activation activation, size_t n, float* x) {
  HWY_DYNAMIC_DISPATCH(ActivateBody)(activation, n, x);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
