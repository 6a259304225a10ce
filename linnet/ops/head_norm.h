// Norms over the heads of gated recurrences as differentiable libtorch operations over
// kernels/head_norm.h. In fp32 on the CPU they run the fused kernels (first derivatives only),
// elsewhere libtorch's operations.
//
//   qkv = SiluL2Norm(qkv, /*normed=*/2 * heads * dim, /*width=*/dim, 1e-6);
//   out = GatedRmsNorm(out, weight, gate, kernels::GateFunction::kSilu, 1e-5);
#ifndef LINNET_OPS_HEAD_NORM_H_
#define LINNET_OPS_HEAD_NORM_H_

#include <torch/types.h>

#include <cstdint>

#include "linnet/kernels/head_norm.h"

namespace linnet::ops {

// silu(x), x [..., C]. Each group of `width` of the first `normed` columns is then divided by its
// length, sqrt(sum of squares + eps). Throws InputError unless normed is a multiple of width and at
// most C.
torch::Tensor SiluL2Norm(const torch::Tensor& x, int64_t normed, int64_t width, double eps);

// x / sqrt(mean(x^2) + eps) * weight * f(gate), with the mean over the last axis: x and gate
// [N, L, H, M], weight [M]. If the gate is undefined, f is 1. Throws InputError on other shapes.
torch::Tensor GatedRmsNorm(const torch::Tensor& x, const torch::Tensor& weight,
                           const torch::Tensor& gate, kernels::GateFunction function, double eps);

}  // namespace linnet::ops

#endif  // LINNET_OPS_HEAD_NORM_H_
