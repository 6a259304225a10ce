// The maximum of logits and the sum of their exponentials.
//
//   const float largest = Largest(logits.data(), n);
//   const double sum = ExpSum(logits.data(), n, largest, 1 / temperature, weights.data());
//   // probability i = weights[i] / sum; log-sum-exp at temperature 1 = largest + log(sum)
#ifndef LINNET_KERNELS_EXP_SUM_H_
#define LINNET_KERNELS_EXP_SUM_H_

#include <cstddef>

namespace linnet::kernels {

// Returns the largest element of x [n], n > 0. If x contains NaNs, the result is unspecified.
float Largest(const float* x, size_t n);

// Writes out[i] = exp((x[i] - largest) * scale) for each element of x [n] and returns the sum. With
// out = nullptr, only returns the sum. Requires scale > 0 and x[i] <= largest for all i.
//
// If x[i] is -infinity, out[i] is exactly 0. Otherwise let a = (largest - x[i]) * scale. If
// a <= 87, the relative error of out[i] is at most 2e-6 + 2e-7 a. If a > 87, out[i] is about
// e^-87 = 1.6e-38.
double ExpSum(const float* x, size_t n, float largest, float scale, float* out);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_EXP_SUM_H_
