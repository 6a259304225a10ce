#include "linnet/kernels/bfloat16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/bfloat16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/bfloat16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

void NarrowBody(size_t n, const float* from, BFloat16* to, float factor) {
  const Vec times = hn::Set(F32(), factor);
  ForVectors(n, [&](size_t i, size_t used)
                    HWY_ATTR { StoreN(hn::Mul(LoadN(from + i, used), times), to + i, used); });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(NarrowBody);

void Narrow(size_t n, const float* from, BFloat16* to, float factor) {
  HWY_DYNAMIC_DISPATCH(NarrowBody)(n, from, to, factor);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
