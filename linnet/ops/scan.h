// Gated linear recurrences as a differentiable libtorch operation over kernels/scan.h, which states
// the equations.
//
//   const kernels::ScanOptions options{.decay = kernels::ScanDecay::kHead,
//                                      .write = kernels::ScanWrite::kDelta, .scale = 0.18f};
//   torch::Tensor out = ops::Scan({.q = q, .k = k, .v = v, .decay = g, .erase = beta}, options);
//
// A long sequence can be processed in pieces, that is, in consecutive ranges of positions.
// Gradients flow back from each piece through all earlier pieces:
//
//   torch::Tensor state;                               // undefined: zeros
//   for (const Piece& piece : pieces) out = ops::Scan(piece, options, {}, state);
#ifndef LINNET_OPS_SCAN_H_
#define LINNET_OPS_SCAN_H_

#include <torch/types.h>

#include "linnet/kernels/scan.h"

namespace linnet::ops {

// The inputs of a scan. Tensors that the options do not use may be undefined.
struct ScanInputs {
  torch::Tensor q = {}, k = {};  // [N, L, H / group, D]: head h of v reads head h / group
  torch::Tensor v = {};          // [N, L, H, M]
  // Natural logarithms of the decays, <= 0. ScanDecay::kHead: [N, L, H, 1]; kKey: [N, L, H, D].
  torch::Tensor decay = {};
  torch::Tensor erase = {}, write = {};  // [N, L, H, width]; kernels/scan.h lists the widths
};

// Returns out [N, L, H, M]. Inputs may have any strides (a tensor whose last axis is not dense is
// copied); L, D, M >= 1. In fp32 on the CPU, runs the fused kernel. In fp32 on a GPU, runs the
// kernels of kernels/cuda if D and M are multiples of 4, at most 128. Both give first derivatives
// only. Elsewhere runs the plain form: libtorch operations, position by position.
//
// `lengths` is undefined or a dense int64 [N]: positions >= lengths[n] do not change the state,
// whatever their keys, values and gates hold, and their outputs read the sequence's final state.
// Throws InputError if options.normalize is true, or if tensors do not match each other or the
// options.
torch::Tensor Scan(const ScanInputs& in, const kernels::ScanOptions& options,
                   const torch::Tensor& lengths = {});

// Scans one piece of a longer sequence. Starts from `state` [N, H, D, M] (undefined: zeros) and
// replaces it by the state after the piece, without writing to the old state's tensor.
torch::Tensor Scan(const ScanInputs& in, const kernels::ScanOptions& options,
                   const torch::Tensor& lengths, torch::Tensor& state);

// The elementwise scan: out_t = h_t = e^g_t h_{t-1} + x_t for each channel. x, g and out
// [N, L, C], with L, C >= 1; state [N, C]. `lengths` and the choice of the form are as in Scan().
torch::Tensor ChannelScan(const torch::Tensor& x, const torch::Tensor& g,
                          const torch::Tensor& lengths = {});
torch::Tensor ChannelScan(const torch::Tensor& x, const torch::Tensor& g,
                          const torch::Tensor& lengths, torch::Tensor& state);

}  // namespace linnet::ops

#endif  // LINNET_OPS_SCAN_H_
