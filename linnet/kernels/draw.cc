#include "linnet/kernels/draw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/draw.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/draw-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(DrawIndexBody);
HWY_EXPORT(SumOfHeavierBody);

size_t DrawIndex(const float* weights, size_t n, double target) {
  return HWY_DYNAMIC_DISPATCH(DrawIndexBody)(weights, n, target);
}

double SumOfHeavier(const float* weights, size_t n, size_t index) {
  return HWY_DYNAMIC_DISPATCH(SumOfHeavierBody)(weights, n, index);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
