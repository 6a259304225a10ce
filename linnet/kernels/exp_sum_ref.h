// Reference for exp_sum.h: plain double precision.
#ifndef LINNET_KERNELS_EXP_SUM_REF_H_
#define LINNET_KERNELS_EXP_SUM_REF_H_

#include <cmath>
#include <cstddef>

namespace linnet::kernels {

inline double ExpSumRef(const float* x, size_t n, double largest, double scale, double* out) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    out[i] = std::exp((static_cast<double>(x[i]) - largest) * scale);
    sum += out[i];
  }
  return sum;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_EXP_SUM_REF_H_
