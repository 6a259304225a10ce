#include "linnet/kernels/bfloat16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/bfloat16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/bfloat16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

void NarrowBody(size_t n, const float* from, BFloat16* to) {
  ForVectors(n,
             [&](size_t i, size_t used) HWY_ATTR { StoreN(LoadN(from + i, used), to + i, used); });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(NarrowBody);

void Narrow(size_t n, const float* from, BFloat16* to) {
  HWY_DYNAMIC_DISPATCH(NarrowBody)(n, from, to);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
