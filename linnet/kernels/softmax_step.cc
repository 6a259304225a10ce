#include "linnet/kernels/softmax_step.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/softmax_step.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/softmax_step-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(SoftmaxStepBody);

void SoftmaxStep(const SoftmaxStepShape& shape, size_t batch, float scale,
                 const SoftmaxStepArgs& args) {
  HWY_DYNAMIC_DISPATCH(SoftmaxStepBody)(shape, batch, scale, args);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
