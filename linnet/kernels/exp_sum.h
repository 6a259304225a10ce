// Maximum and sum of exponentials of logits.
//
//   const float largest = Largest(logits.data(), n);
//   const double sum = ExpSum(logits.data(), n, largest, 1 / temperature, weights.data());
//   // probability i = weights[i] / sum; log-sum-exp at temperature 1 = largest + log(sum)
#ifndef LINNET_KERNELS_EXP_SUM_H_
#define LINNET_KERNELS_EXP_SUM_H_

#include <cstddef>

namespace linnet::kernels {

// The largest of x [n], n > 0. If x contains NaNs, the result is unspecified.
float Largest(const float* x, size_t n);

// Sum of out[i] = exp((x[i] - largest) scale) over x [n]. No x may exceed `largest`; scale > 0.
// out[i] is exactly 0 for x[i] = -infinity. Otherwise, with a = |x[i] - largest| scale, its
// relative error is at most 2e-6 + 2e-7 a for a <= 87; for larger a, out[i] stays at 1.6e-38. `out`
// [n] may be nullptr.
double ExpSum(const float* x, size_t n, float largest, float scale, float* out);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_EXP_SUM_H_
