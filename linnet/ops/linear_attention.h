// Non-causal linear attention as a differentiable libtorch operation over
// kernels/linear_attention.h.
//
//   torch::Tensor out = ops::LinearAttention(q, k, v, lengths);
//   out.sum().backward();
#ifndef LINNET_OPS_LINEAR_ATTENTION_H_
#define LINNET_OPS_LINEAR_ATTENTION_H_

#include <torch/types.h>

#include "linnet/kernels/linear_attention.h"

namespace linnet::ops {

// q [N, L, H, D], k [N, S, H, D], v [N, S, H, M] -> [N, L, H, M], any strides (a tensor whose last
// axis is not dense is copied); L, S, D, M >= 1. Computes equations 4-6 of Katharopoulos et al.
// (2020), including the feature map (by default phi = elu + 1) and, with options.normalize, the
// denominator. In fp32 and bf16 on the CPU, runs the fused kernel (first derivatives only);
// elsewhere the plain form: unfused libtorch operations.
//
// `lengths` is undefined or int64 [N]: keys at positions >= lengths[n] are masked out, whatever
// they and their values hold. Where the denominator is 0, out is 0. For another feature map, with
// features of any size F, pass phi(q) [N, L, H, F] and phi(k) [N, S, H, F] as q and k, with
// FeatureMap::kIdentity. Throws InputError on shapes that do not match.
torch::Tensor LinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, const torch::Tensor& lengths = {},
                              const kernels::LinearAttentionOptions& options = {});

}  // namespace linnet::ops

#endif  // LINNET_OPS_LINEAR_ATTENTION_H_
