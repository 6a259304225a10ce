// References for head_norm.h in plain double precision. Tests check the gradients against finite
// differences of these.
#ifndef LINNET_KERNELS_HEAD_NORM_REF_H_
#define LINNET_KERNELS_HEAD_NORM_REF_H_

#include <cmath>
#include <vector>

#include "linnet/kernels/head_norm.h"

namespace linnet::kernels {

inline std::vector<double> SiluL2NormRef(const SiluL2NormShape& shape,
                                         const std::vector<double>& x) {
  std::vector<double> y;
  for (double v : x) y.push_back(v / (1 + std::exp(-v)));
  for (size_t r = 0; r < shape.rows; ++r) {
    for (size_t g = 0; g < shape.normed; g += shape.width) {
      double* group = &y[r * shape.columns + g];
      double squares = shape.eps;
      for (size_t i = 0; i < shape.width; ++i) squares += group[i] * group[i];
      for (size_t i = 0; i < shape.width; ++i) group[i] /= std::sqrt(squares);
    }
  }
  return y;
}

// x and gate [rows, heads, width], weight [width]; an empty gate: f = 1.
inline std::vector<double> GatedRmsNormRef(const GatedRmsNormShape& shape,
                                           const std::vector<double>& x,
                                           const std::vector<double>& weight,
                                           const std::vector<double>& gate) {
  std::vector<double> y = x;
  for (size_t at = 0; at < x.size(); at += shape.width) {
    double squares = 0;
    for (size_t i = 0; i < shape.width; ++i) squares += x[at + i] * x[at + i];
    const double rms = std::sqrt(squares / static_cast<double>(shape.width) + shape.eps);
    for (size_t i = 0; i < shape.width; ++i) {
      y[at + i] *= weight[i] / rms;
      if (gate.empty()) continue;
      const double z = gate[at + i], s = 1 / (1 + std::exp(-z));
      y[at + i] *= shape.function == GateFunction::kSilu ? z * s : s;
    }
  }
  return y;
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_HEAD_NORM_REF_H_
