// Reference for draw.h: plain double precision.
#ifndef LINNET_KERNELS_DRAW_REF_H_
#define LINNET_KERNELS_DRAW_REF_H_

#include <cstddef>

namespace linnet::kernels {

inline size_t DrawIndexRef(const float* weights, size_t n, double target) {
  size_t last = 0;
  for (size_t i = 0; i < n; ++i) {
    if (weights[i] > 0) last = i;
    target -= weights[i];
    if (target < 0) break;
  }
  return last;
}

inline double SumOfHeavierRef(const float* weights, size_t n, size_t index) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const bool heavier = weights[i] > weights[index] || (weights[i] == weights[index] && i < index);
    if (heavier) sum += weights[i];
  }
  return sum;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_DRAW_REF_H_
