// Gated linear recurrences as a differentiable libtorch operation over kernels/scan.h, which has
// their equations.
//
//   const kernels::ScanOptions options{.decay = kernels::ScanDecay::kHead,
//                                      .write = kernels::ScanWrite::kDelta, .scale = 0.18f};
//   torch::Tensor out = ops::Scan({.q = q, .k = k, .v = v, .decay = g, .erase = beta}, options);
//
// A long sequence in pieces; gradients flow back from each piece through all earlier ones:
//
//   torch::Tensor state;                               // undefined: zeros
//   for (const Piece& piece : pieces) out = ops::Scan(piece, options, {}, state);
#ifndef LINNET_OPS_SCAN_H_
#define LINNET_OPS_SCAN_H_

#include <torch/types.h>

#include "linnet/kernels/scan.h"

namespace linnet::ops {

// The tensors that the options use; the others are undefined.
struct ScanInputs {
  torch::Tensor q = {}, k = {};  // [N, L, H / group, D]: head h reads head h / group
  torch::Tensor v = {};          // [N, L, H, M]
  torch::Tensor decay = {};  // natural logarithms, <= 0. kHead: [N, L, H, 1]; kKey: [N, L, H, D]
  torch::Tensor erase = {}, write = {};  // [N, L, H, width] of kernels/scan.h
};

// Returns out [N, L, H, M]. Inputs may have any strides (a last axis that is not dense is copied);
// L, D, M >= 1. Runs the fused kernel in fp32 on the CPU, differentiable once; elsewhere the plain
// form, position by position.
//
// `lengths` is undefined or a dense int64 [N]: positions >= lengths[n] change nothing, whatever
// their keys, values and gates hold; outputs there read the last state. Throws InputError on
// options.normalize, and on tensors that do not match each other or the options.
torch::Tensor Scan(const ScanInputs& in, const kernels::ScanOptions& options,
                   const torch::Tensor& lengths = {});

// One piece of a longer sequence: begins with `state` [N, H, D, M] (undefined: zeros) and replaces
// it by the state after the piece. Does not write to the given tensor.
torch::Tensor Scan(const ScanInputs& in, const kernels::ScanOptions& options,
                   const torch::Tensor& lengths, torch::Tensor& state);

// The elementwise scan: out_t = h_t = e^g_t h_{t-1} + x_t for each channel. x, g and out
// [N, L, C], with L, C >= 1; state [N, C], `lengths` and forms as above.
torch::Tensor ChannelScan(const torch::Tensor& x, const torch::Tensor& g,
                          const torch::Tensor& lengths = {});
torch::Tensor ChannelScan(const torch::Tensor& x, const torch::Tensor& g,
                          const torch::Tensor& lengths, torch::Tensor& state);

}  // namespace linnet::ops

#endif  // LINNET_OPS_SCAN_H_
