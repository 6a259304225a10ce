// Reference for lstm_cell.h in plain double precision, for one cell.
#ifndef LINNET_KERNELS_LSTM_CELL_REF_H_
#define LINNET_KERNELS_LSTM_CELL_REF_H_

#include <cmath>

namespace linnet::kernels {

struct LstmCellRef {
  double cell, out;
};
// i, f, g, o: the gates before sigmoid and tanh.
inline LstmCellRef LstmCell(double i, double f, double g, double o, double cell_before) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const double cell = sigmoid(f) * cell_before + sigmoid(i) * std::tanh(g);
  return {cell, sigmoid(o) * std::tanh(cell)};
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LSTM_CELL_REF_H_
