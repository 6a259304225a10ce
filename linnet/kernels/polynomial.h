// The exact features of the polynomial kernel of degree two, for linear attention (section 3.2.1 of
// Katharopoulos et al. 2020):
//
//   phi(q) . phi(k) = (q . k / sqrt(D) + 1)^2,   phi(x) = (1, sqrt(2) y_i, y_i^2, sqrt(2) y_i y_j)
//
// with y = x / D^(1/4) and pairs i < j, ordered by i and then by j.
#ifndef LINNET_KERNELS_POLYNOMIAL_H_
#define LINNET_KERNELS_POLYNOMIAL_H_

#include <cstddef>

#include "linnet/base/parallel.h"

namespace linnet::kernels {

// F, the number of features.
constexpr size_t Polynomial2Size(size_t dim) { return 1 + dim + dim * (dim + 1) / 2; }

// x [rows, dim] -> phi [rows, F], both dense.
void Polynomial2Features(size_t rows, size_t dim, const float* x, float* phi,
                         ParallelFor parallel_for);
// grad_x, the gradient with respect to x, for the gradient grad_phi of the features.
void Polynomial2Backward(size_t rows, size_t dim, const float* x, const float* grad_phi,
                         float* grad_x, ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_POLYNOMIAL_H_
