#include "linnet/kernels/exp_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/exp_sum.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/exp_sum-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(LargestBody);
HWY_EXPORT(ExpSumBody);

float Largest(const float* x, size_t n) { return HWY_DYNAMIC_DISPATCH(LargestBody)(x, n); }

double ExpSum(const float* x, size_t n, float largest, float scale, float* out) {
  return HWY_DYNAMIC_DISPATCH(ExpSumBody)(x, n, largest, scale, out);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
