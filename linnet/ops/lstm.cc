#include "linnet/ops/lstm.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/layer_rows.h"
#include "linnet/ops/lengths.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

// sums [L, N, 4 H] -> [L, N, H].
Tensor Plain(const Tensor& sums, const Tensor& w_hh, const Tensor& lengths, bool backward) {
  const int64_t length = sums.size(0);
  std::vector<Tensor> out(static_cast<size_t>(length));
  Tensor h = torch::zeros({sums.size(1), w_hh.size(1)}, sums.options()), cell = h;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t t = backward ? length - 1 - i : i;
    const std::vector<Tensor> gates = (sums[t] + torch::matmul(h, w_hh.t())).chunk(4, 1);
    // Whether position t is within each sequence. If not, state and output are 0.
    const Tensor there = (lengths > t).unsqueeze(1);
    const Tensor next =
        torch::sigmoid(gates[1]) * cell + torch::sigmoid(gates[0]) * torch::tanh(gates[2]);
    cell = torch::where(there, next, torch::zeros_like(next));
    h = torch::where(there, torch::sigmoid(gates[3]) * torch::tanh(next), torch::zeros_like(next));
    out[static_cast<size_t>(t)] = h;
  }
  return torch::stack(out);
}

}  // namespace

Tensor Lstm(const Tensor& x, const Tensor& w_ih, const Tensor& w_hh, const Tensor& b_ih,
            const Tensor& b_hh, const Tensor& lengths, bool backward) {
  const int64_t hidden = w_hh.dim() == 2 ? w_hh.size(1) : 0, gates = 4 * hidden;
  if (x.dim() != 3 || x.size(1) < 1 || hidden < 1 || w_hh.size(0) != gates ||
      w_ih.sizes() != at::IntArrayRef{gates, x.size(2)} || b_ih.sizes() != at::IntArrayRef{gates} ||
      b_hh.sizes() != at::IntArrayRef{gates}) {
    throw InputError(
        "an LSTM needs x [N, L, in], weights [4 H, in] and [4 H, H], biases [4 H]; got ", x.sizes(),
        ", ", w_ih.sizes(), ", ", w_hh.sizes(), ", ", b_ih.sizes(), ", ", b_hh.sizes());
  }
  if (!lengths.defined()) throw InputError("an LSTM needs the lengths [N] of its sequences");
  CheckLengths("LSTM", lengths, x);
  // Positions from lengths[n] on may hold anything, so they are set to 0.
  const Tensor behind =
      (torch::arange(x.size(1), lengths.options()) >= lengths.unsqueeze(1)).unsqueeze(2);
  const Tensor read = x.masked_fill(behind, 0).transpose(0, 1);
  const Tensor sums = Linear(read, w_ih, b_ih + b_hh, Precision::kFp32);
  if constexpr (kHasFused) {
    if (Fused(sums)) {
      return FusedLstm(sums, w_hh, lengths.contiguous(), backward).transpose(0, 1);
    }
  }
  return Plain(sums, w_hh, lengths, backward).transpose(0, 1);
}

}  // namespace linnet::ops
