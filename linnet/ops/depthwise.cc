#include "linnet/ops/depthwise.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/lengths.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

Tensor Plain(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& lengths,
             bool causal) {
  const int64_t width = weight.size(0), before = causal ? width - 1 : width / 2;
  // hidden: the mask of positions >= lengths[n]. counted: x with zeros there.
  Tensor hidden, counted = x;
  if (lengths.defined()) {
    hidden = (torch::arange(x.size(1), lengths.options()) >= lengths.unsqueeze(1)).unsqueeze(2);
    counted = x.masked_fill(hidden, 0);
  }
  // conv1d takes inputs [N, C, L] and weights [C, 1, width].
  const Tensor padded =
      torch::constant_pad_nd(counted.transpose(1, 2), {before, width - 1 - before});
  Tensor out = torch::conv1d(padded, weight.t().unsqueeze(1), bias, at::IntArrayRef{1},
                             at::IntArrayRef{0}, at::IntArrayRef{1}, x.size(2));
  out = out.transpose(1, 2);
  return lengths.defined() ? out.masked_fill(hidden, 0) : out.contiguous();
}

}  // namespace

Tensor DepthwiseConvolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& lengths, bool causal) {
  if (x.dim() != 3 || weight.dim() != 2 || weight.size(0) < 1 || weight.size(1) != x.size(2) ||
      bias.dim() != 1 || bias.size(0) != x.size(2)) {
    throw InputError(
        "a depthwise convolution needs x [N, L, C], weight [width, C] and bias [C]; got ",
        x.sizes(), ", ", weight.sizes(), ", ", bias.sizes());
  }
  if (!causal && weight.size(0) % 2 == 0) {
    throw InputError("a non-causal depthwise convolution needs an odd width, not ", weight.size(0));
  }
  CheckLengths("depthwise convolution", lengths, x);
  if constexpr (kHasFused) {
    if (Fused(x)) return FusedDepthwise(x, weight, bias, lengths, causal);
  }
  return Plain(x, weight, bias, lengths, causal);
}

}  // namespace linnet::ops
