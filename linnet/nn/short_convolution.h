// The causal depthwise convolution of gated recurrences. It can continue from earlier inputs
// (private to linnet/nn).
#ifndef LINNET_NN_SHORT_CONVOLUTION_H_
#define LINNET_NN_SHORT_CONVOLUTION_H_

#include <torch/types.h>
#include <torch/utils.h>

#include "linnet/ops/depthwise.h"

namespace linnet::nn {

// x [N, L, C], weight [width, C], bias [C] (undefined: zeros), lengths undefined or int64 [N] ->
// [N, L, C]. past: null, or the last width - 1 inputs before x (undefined: zeros).
// ShortConvolution() replaces them by the last width - 1 inputs up to the end of x.
inline torch::Tensor ShortConvolution(const torch::Tensor& x, const torch::Tensor& weight,
                                      const torch::Tensor& bias, const torch::Tensor& lengths,
                                      torch::Tensor* past) {
  const int64_t behind = weight.size(0) - 1, length = x.size(1);
  torch::Tensor rows = x;
  if (past != nullptr) {
    const torch::Tensor before =
        past->defined() ? *past : torch::zeros({x.size(0), behind, x.size(2)}, x.options());
    rows = torch::cat({before.to(x.scalar_type()), x}, 1);
    *past = rows.narrow(1, length, behind);
  }
  const torch::Tensor y = ops::DepthwiseConvolution(
      rows, weight, bias.defined() ? bias : torch::zeros({x.size(2)}, x.options()), lengths,
      /*causal=*/true);
  return past != nullptr ? y.narrow(1, behind, length) : y;
}

}  // namespace linnet::nn

#endif  // LINNET_NN_SHORT_CONVOLUTION_H_
