// What logits come to: their largest, and the sum of their exponentials.
//
//   const float largest = Largest(logits.data(), n);
//   const double sum = ExpSum(logits.data(), n, largest, 1 / temperature, weights.data());
//   // probability i = weights[i] / sum; log-sum-exp at temperature 1 = largest + log(sum)
#ifndef LINNET_KERNELS_EXP_SUM_H_
#define LINNET_KERNELS_EXP_SUM_H_

#include <cstddef>

namespace linnet::kernels {

// The largest of x [n], n > 0. Of NaNs any number.
float Largest(const float* x, size_t n);

// Sum of out[i] = exp((x[i] - largest) scale), x [n], no x above `largest`, scale > 0; of x = -infinity
// exactly 0. With a = |x[i] - largest| scale each is within 2e-6 + 2e-7 a of itself, and none below
// 1.6e-38. `out` [n] may be nullptr.
double ExpSum(const float* x, size_t n, float largest, float scale, float* out);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_EXP_SUM_H_
