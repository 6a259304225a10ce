#include "linnet/kernels/linear_step.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/linear_step.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/linear_step-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(LinearStepBody);
HWY_EXPORT(LinearFoldBody);
HWY_EXPORT(LinearSumsBody);
HWY_EXPORT(LinearExtendBody);

void LinearStep(const LinearStepShape& shape, size_t batch, const CausalLinearOptions& options,
                const LinearStepArgs& args) {
  HWY_DYNAMIC_DISPATCH(LinearStepBody)(shape, batch, options, args);
}

void LinearFold(const LinearStepShape& shape, HeadRange heads, float* hot, float* cold,
                size_t recent) {
  if (recent > 0) HWY_DYNAMIC_DISPATCH(LinearFoldBody)(shape, heads, hot, cold, recent);
}

void LinearSums(const LinearStepShape& shape, HeadRange heads, const float* hot, const float* cold,
                float* s, float* z) {
  HWY_DYNAMIC_DISPATCH(LinearSumsBody)(shape, heads, hot, cold, s, z);
}

void LinearExtend(const LinearStepShape& shape, HeadRange heads, FeatureMap feature_map,
                  size_t length, Strided<const float> k, Strided<const float> v, float* hot,
                  float* cold) {
  HWY_DYNAMIC_DISPATCH(LinearExtendBody)(shape, heads, feature_map, length, k, v, hot, cold);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
