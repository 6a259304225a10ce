#include "linnet/kernels/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

void AddBody(size_t n, const float* x, float* to) {
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    StoreN(hn::Add(LoadN(to + i, used), LoadN(x + i, used)), to + i, used);
  });
}

void AddColumnsBody(size_t rows, size_t columns, const float* x, float* to) {
  for (size_t r = 0; r < rows; ++r) AddBody(columns, x + r * columns, to);
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(AddBody);
HWY_EXPORT(AddColumnsBody);

void Add(size_t n, const float* x, float* to) { HWY_DYNAMIC_DISPATCH(AddBody)(n, x, to); }

void AddColumns(size_t rows, size_t columns, const float* x, float* to) {
  HWY_DYNAMIC_DISPATCH(AddColumnsBody)(rows, columns, x, to);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
