#include "linnet/kernels/layer_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/layer_norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/layer_norm-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(LayerNormBody);
HWY_EXPORT(LayerNormBackwardBody);

void LayerNorm(const LayerNormShape& shape, const LayerNormInput& input,
               const LayerNormParameters& parameters, float* y, size_t y_stride) {
  HWY_DYNAMIC_DISPATCH(LayerNormBody)(shape, input, parameters, y, y_stride);
}

void LayerNormBackward(const LayerNormShape& shape, const LayerNormBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(LayerNormBackwardBody)(shape, args);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
