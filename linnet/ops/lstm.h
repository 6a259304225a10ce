// One direction of an LSTM layer as a differentiable libtorch operation over kernels/lstm_cell.h.
//
//   out = Lstm(x, w_ih, w_hh, b_ih, b_hh, lengths, /*backward=*/false);
//
// On the CPU, libtorch's own LSTM accumulates the gradient of w_hh step by step. The fused form
// here computes it as one matrix product after the last step.
#ifndef LINNET_OPS_LSTM_H_
#define LINNET_OPS_LSTM_H_

#include <torch/types.h>

namespace linnet::ops {

// x [N, L, in], weights [4 H, in] and [4 H, H], biases [4 H] (gates i, f, g, o, as in PyTorch) ->
// [N, L, H]. `lengths` int64 [N]: positions from lengths[n] on are not read, and their outputs are
// zeros. If `backward`, visits the positions from lengths[n] - 1 down to 0. In fp32 on the CPU,
// runs the fused kernel (first derivatives only); elsewhere libtorch's operations, step by step.
// Throws InputError on shapes that do not match.
torch::Tensor Lstm(const torch::Tensor& x, const torch::Tensor& w_ih, const torch::Tensor& w_hh,
                   const torch::Tensor& b_ih, const torch::Tensor& b_hh,
                   const torch::Tensor& lengths, bool backward);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LSTM_H_
