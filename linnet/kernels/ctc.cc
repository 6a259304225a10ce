#include "linnet/kernels/ctc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/ctc.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/ctc-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(CtcBody);

size_t CtcScratch(size_t frames, size_t labels, bool with_grad) {
  const size_t row = 2 * (labels + 1 + 2 * kCtcPad);
  return 2 * labels + 3 * kCtcPad + row * (with_grad ? frames + 2 : 2);
}

double Ctc(const CtcArgs& args, float* scratch) {
  return HWY_DYNAMIC_DISPATCH(CtcBody)(args, scratch);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
