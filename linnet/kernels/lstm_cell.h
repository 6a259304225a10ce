// Cell update of one LSTM step, forward and backward. The caller computes the matrix products.
//
//   LstmCellForward(rows, h, {.gates = gates, .cell_before = c0, .cell = c1, .out = h1});
//
// Each row of gates [4 H] holds i, f, g and o. The caller passes in sums of matrix products and
// biases, to which the kernel applies:
//
//   i, f, o = sigmoid(.), g = tanh(.)        written in place, for the backward
//   cell = f cell_before + i g,   out = o tanh(cell)
#ifndef LINNET_KERNELS_LSTM_CELL_H_
#define LINNET_KERNELS_LSTM_CELL_H_

#include <cstddef>
#include <cstdint>

namespace linnet::kernels {

// Rows are dense, one per sequence. A null cell_before means zeros. Row n is absent if `at`, the
// position of this step, is >= lengths[n]: its cell and out become 0. Null lengths: all rows are
// present.
struct LstmCellForwardArgs {
  float* gates = nullptr;              // [rows, 4 H], replaced by the values after sigmoid and tanh
  const float* cell_before = nullptr;  // [rows, H]
  float* cell = nullptr;               // [rows, H]; may be cell_before
  float* out = nullptr;                // [rows, H]
  const int64_t* lengths = nullptr;    // [rows]
  int64_t at = 0;
};
void LstmCellForward(size_t rows, size_t hidden, const LstmCellForwardArgs& args);

// gates: as left by the forward. grad_out [rows, H]: the whole gradient of out, including the part
// from later steps. grad_cell [rows, H]: on entry, the part of the gradient of cell that comes from
// later steps; on return, the gradient of cell_before. grad_gates [rows, 4 H]: the gradient of the
// sums that were passed to the forward; may be the same memory as gates. Gradients of absent rows
// are 0.
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
