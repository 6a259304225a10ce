#include "linnet/kernels/rwkv7.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/rwkv7.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/rwkv7-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(Rwkv7KeysBody);
HWY_EXPORT(Rwkv7OutputBody);

void Rwkv7Keys(const Rwkv7KeysArgs& args) { HWY_DYNAMIC_DISPATCH(Rwkv7KeysBody)(args); }

void Rwkv7Output(const Rwkv7OutputArgs& args) { HWY_DYNAMIC_DISPATCH(Rwkv7OutputBody)(args); }

}  // namespace linnet::kernels
#endif  // HWY_ONCE
