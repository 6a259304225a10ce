// Sums of rows of floats.
//
//   AddColumns(rows, columns, grad, bias_grad);
#ifndef LINNET_KERNELS_ROWS_H_
#define LINNET_KERNELS_ROWS_H_

#include <cstddef>

namespace linnet::kernels {

// to[c] += sum over the rows of x [rows, columns].
void AddColumns(size_t rows, size_t columns, const float* x, float* to);

// to += x, both [n].
void Add(size_t n, const float* x, float* to);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_ROWS_H_
