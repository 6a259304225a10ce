// One direction of an LSTM layer as a differentiable libtorch operation over kernels/lstm_cell.h.
//
//   out = Lstm(x, w_ih, w_hh, b_ih, b_hh, lengths, /*backward=*/false);
//
// libtorch's own LSTM on the CPU adds to the gradient of w_hh at every step; here it is one product
// at the end.
#ifndef LINNET_OPS_LSTM_H_
#define LINNET_OPS_LSTM_H_

#include <torch/types.h>

namespace linnet::ops {

// x [N, L, in], weights [4 H, in] and [4 H, H], biases [4 H] (gates i, f, g, o, as in PyTorch) ->
// [N, L, H]. `lengths` int64 [N]: positions from lengths[n] on are not read, and their outputs are
// zeros. `backward` runs each sequence from its last position to its first. The fused form is
// differentiable once. Throws InputError on shapes that do not match.
torch::Tensor Lstm(const torch::Tensor& x, const torch::Tensor& w_ih, const torch::Tensor& w_hh,
                   const torch::Tensor& b_ih, const torch::Tensor& b_hh,
                   const torch::Tensor& lengths, bool backward);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LSTM_H_
