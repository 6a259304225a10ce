// One step of an LSTM's cells, when its gates' products are done: forward and backward.
//
//   LstmCellForward(rows, h, {.gates = gates, .cell_before = c0, .cell = c1, .out = h1});
//
// Of each row's gates [4 H] = (i, f, g, o), products and biases summed up:
//
//   i, f, o = sigmoid(.), g = tanh(.)        kept in place, for the way back
//   cell = f cell_before + i g,   out = o tanh(cell)
#ifndef LINNET_KERNELS_LSTM_CELL_H_
#define LINNET_KERNELS_LSTM_CELL_H_

#include <cstddef>
#include <cstdint>

namespace linnet::kernels {

// Dense rows; cell_before null: zeros. Rows n with `at` >= lengths[n] are not there: their cells and outs
// become 0. lengths null: all are.
struct LstmCellForwardArgs {
  float* gates = nullptr;  // [rows, 4 H], replaced by what they are after sigmoid and tanh
  const float* cell_before = nullptr;  // [rows, H]
  float* cell = nullptr;               // [rows, H]; may be cell_before
  float* out = nullptr;                // [rows, H]
  const int64_t* lengths = nullptr;    // [rows]
  int64_t at = 0;
};
void LstmCellForward(size_t rows, size_t hidden, const LstmCellForwardArgs& args);

// gates: what the forward left. grad_out [rows, H]: of out, all of it; grad_cell [rows, H]: of cell by way
// of the steps that follow, replaced by that of cell_before. grad_gates [rows, 4 H]: of the sums that the
// forward was given; may be gates.
struct LstmCellBackwardArgs {
  const float* gates = nullptr;
  const float* cell_before = nullptr;
  const float* cell = nullptr;
  const float* grad_out = nullptr;
  float* grad_cell = nullptr;
  float* grad_gates = nullptr;
  const int64_t* lengths = nullptr;
  int64_t at = 0;
};
void LstmCellBackward(size_t rows, size_t hidden, const LstmCellBackwardArgs& args);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LSTM_CELL_H_
