// Reference for MaskedConvolution() in plain double precision, by its definition. Tests check the
// gradients against finite differences of this reference.
#ifndef LINNET_KERNELS_MASKED_CONVOLUTION_REF_H_
#define LINNET_KERNELS_MASKED_CONVOLUTION_REF_H_

#include <cstddef>
#include <vector>

#include "linnet/kernels/masked_convolution.h"

namespace linnet::kernels {

// x [images, rows, columns, in], without zeros around it -> [images, rows, columns, out].
inline std::vector<double> MaskedConvolutionRef(const MaskedConvolutionShape& shape,
                                                const std::vector<double>& x,
                                                const std::vector<double>& weight,
                                                const std::vector<double>& bias) {
  // Input i of pixel (row, column) of image n.
  const auto input = [&](size_t n, size_t row, size_t column, size_t i) {
    const size_t from_row = row + i / (shape.window_columns * shape.in) + 1;
    const size_t from_column = column + i / shape.in % shape.window_columns;
    if (from_row < shape.window_rows || from_column < shape.Side() ||
        from_column >= shape.columns + shape.Side()) {
      return 0.0;
    }
    const size_t pixel = (n * shape.rows + from_row - shape.window_rows) * shape.columns +
                         from_column - shape.Side();
    return x[pixel * shape.in + i % shape.in];
  };
  std::vector<double> out;
  for (size_t n = 0; n < shape.images; ++n) {
    for (size_t row = 0; row < shape.rows; ++row) {
      for (size_t column = 0; column < shape.columns; ++column) {
        for (size_t o = 0; o < shape.out; ++o) {
          double sum = bias[o];
          for (size_t i = 0; i < shape.Inputs(); ++i) {
            sum += weight[o * shape.Inputs() + i] * input(n, row, column, i);
          }
          out.push_back(sum);
        }
      }
    }
  }
  return out;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_MASKED_CONVOLUTION_REF_H_
