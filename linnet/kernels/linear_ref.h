// Reference for linear.h: plain double precision.
#ifndef LINNET_KERNELS_LINEAR_REF_H_
#define LINNET_KERNELS_LINEAR_REF_H_

#include <cstddef>

namespace linnet::kernels {

// b[o] + sum_k x[k] W[o, k], for one row and one output.
inline double LinearRef(size_t in, const float* x, const float* weight_row, float bias) {
  double sum = bias;
  for (size_t k = 0; k < in; ++k) sum += double{x[k]} * double{weight_row[k]};
  return sum;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_REF_H_
