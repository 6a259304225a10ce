#include <algorithm>

#include "linnet/kernels/lstm_cell.h"
#include "linnet/runtime/walker.h"

namespace linnet {

// Floats for the gates of one direction, the outputs of two layers (both directions), and a cell.
size_t LstmScratch(const Model::Packed& model, size_t rows) {
  return rows * (4 + 2 + 2) * model.d_model + RoundUp(model.d_model, kCacheLine / sizeof(float));
}

void RunLstm(const Model::Packed& model, const Block& block, const Workspace& work) {
  using kernels::LinearMode;
  const size_t rows = block.rows(), d = model.d_model;
  float* cell = work.lstm;
  float* gates = cell + RoundUp(d, kCacheLine / sizeof(float));
  float* outs[] = {gates + rows * 4 * d, gates + rows * 6 * d};
  const float* x = block.frames;
  size_t in = static_cast<size_t>(model.spec.speech()->Inputs());
  for (size_t l = 0; l < model.lstm.size(); l += 2) {
    float* out = outs[l / 2 % 2];
    for (size_t backward = 0; backward < 2; ++backward) {
      const PackedLstm& part = model.lstm[l + backward];
      Multiply(model.precision, rows, in, 4 * d, x, in, part.in, LinearMode::kOverwrite, gates,
               4 * d, work.narrow_wide);
      std::fill_n(cell, d, 0.0f);
      const float* before = nullptr;  // hidden state after the frame read before; null: zeros
      for (size_t i = 0; i < rows; ++i) {
        const size_t t = backward == 1 ? rows - 1 - i : i;
        float* gate = gates + t * 4 * d;
        float* h = out + t * 2 * d + backward * d;
        if (before != nullptr) {
          Multiply(model.precision, 1, d, 4 * d, before, d, part.recurrent, LinearMode::kAdd, gate,
                   4 * d, work.narrow_wide);
        }
        kernels::LstmCellForward(1, d,
                                 {.gates = gate, .cell_before = cell, .cell = cell, .out = h});
        before = h;
      }
    }
    x = out, in = 2 * d;
  }
  const size_t first = block.only_last ? rows - 1 : 0;
  Multiply(model.predictor_precision(), rows - first, in, model.outputs, x + first * in, in,
           model.predictor, LinearMode::kOverwrite, block.outputs, model.outputs, work.narrow_wide);
}

}  // namespace linnet
