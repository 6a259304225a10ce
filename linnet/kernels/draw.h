// Draws an index from weights, and finds its rank.
//
//   size_t index = DrawIndex(weights.data(), n, u * sum);  // with probability weights[index] / sum
//   bool kept = SumOfHeavier(weights.data(), n, index) < top_p * sum;
#ifndef LINNET_KERNELS_DRAW_H_
#define LINNET_KERNELS_DRAW_H_

#include <cstddef>

namespace linnet::kernels {

// The first index at which the running sum of weights [n] exceeds `target`; if no sum does, the
// last index of a positive weight. Rounding may move it to a positive weight nearby. Requires
// n > 0, target >= 0, and finite weights, none of them negative and not all of them zero.
size_t DrawIndex(const float* weights, size_t n, double target);

// The sum of all weights that are larger than weights[index], or as large and before it. Its
// relative error is at most 4e-6.
double SumOfHeavier(const float* weights, size_t n, size_t index);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_DRAW_H_
