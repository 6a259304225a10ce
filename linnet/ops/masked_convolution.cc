#include "linnet/ops/masked_convolution.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

Tensor Plain(const Tensor& x, const Tensor& weight, const Tensor& bias,
             const MaskedConvolutionOptions& options) {
  const int64_t in = x.size(3), side = options.columns / 2;
  // The kernel of conv2d is a whole window. The masked inputs, with weights of zero, come last.
  const int64_t masked = options.rows * options.columns * in - weight.size(1);
  const Tensor kernel = torch::constant_pad_nd(weight, {0, masked})
                            .reshape({-1, options.rows, options.columns, in})
                            .permute({0, 3, 1, 2});
  const Tensor image = (options.gelu ? torch::gelu(x) : x).permute({0, 3, 1, 2});
  return torch::conv2d(torch::constant_pad_nd(image, {side, side, options.rows - 1, 0}), kernel,
                       bias)
      .permute({0, 2, 3, 1});
}

}  // namespace

Tensor MaskedConvolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const MaskedConvolutionOptions& options) {
  if (x.dim() != 4 || weight.dim() != 2 || bias.dim() != 1 || bias.size(0) != weight.size(0)) {
    throw InputError(
        "a masked convolution needs x [N, R, C, in], weight [out, inputs] and bias [out]; got ",
        x.sizes(), ", ", weight.sizes(), ", ", bias.sizes());
  }
  if (x.size(1) < 1 || x.size(2) < 1 || x.size(3) < 1 || weight.size(0) < 1) {
    throw InputError("a masked convolution needs at least one row, column, input and output; got ",
                     x.sizes(), " and ", weight.sizes());
  }
  for (const Tensor& parameter : {weight, bias}) {
    if (parameter.scalar_type() != x.scalar_type() || parameter.device() != x.device()) {
      throw InputError("a masked convolution needs tensors of one type on one device; got ",
                       x.scalar_type(), " on ", x.device().str(), " and ", parameter.scalar_type(),
                       " on ", parameter.device().str());
    }
  }
  if (options.rows < 1 || options.columns < 1 || options.columns % 2 == 0) {
    throw InputError("the window of a masked convolution needs rows and an odd number of columns, ",
                     "not ", options.rows, " x ", options.columns);
  }
  const int64_t above = (options.rows - 1) * options.columns * x.size(3);
  const int64_t most = above + (options.columns / 2 + 1) * x.size(3);
  if (weight.size(1) < above || weight.size(1) > most) {
    throw InputError("a masked convolution with a window of ", options.rows, " x ", options.columns,
                     " pixels of ", x.size(3), " channels has ", above, " to ", most,
                     " inputs, not ", weight.size(1));
  }
  if constexpr (kHasFused) {
    // The kernel has no gradient of inputs that a window reads in part.
    const bool whole = (weight.size(1) - above) % x.size(3) == 0;
    if (Fused(x) && (whole || !x.requires_grad())) {
      return FusedMaskedConvolution(x, weight, bias, options);
    }
  }
  return Plain(x, weight, bias, options);
}

}  // namespace linnet::ops
