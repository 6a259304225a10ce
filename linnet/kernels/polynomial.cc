#include "linnet/kernels/polynomial.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/polynomial.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/polynomial-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(Polynomial2FeaturesRange);
HWY_EXPORT(Polynomial2BackwardRange);

void Polynomial2Features(size_t rows, size_t dim, const float* x, float* phi,
                         ParallelFor parallel_for) {
  parallel_for(rows, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(Polynomial2FeaturesRange)(dim, x, phi, begin, end);
  });
}

void Polynomial2Backward(size_t rows, size_t dim, const float* x, const float* grad_phi,
                         float* grad_x, ParallelFor parallel_for) {
  parallel_for(rows, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(Polynomial2BackwardRange)(dim, x, grad_phi, grad_x, begin, end);
  });
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
