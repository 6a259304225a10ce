// Linear attention over the whole sequence as a differentiable libtorch operation over
// kernels/linear_attention.h.
//
//   torch::Tensor out = ops::LinearAttention(q, k, v, lengths);
//   out.sum().backward();
#ifndef LINNET_OPS_LINEAR_ATTENTION_H_
#define LINNET_OPS_LINEAR_ATTENTION_H_

#include <torch/types.h>

#include "linnet/kernels/linear_attention.h"

namespace linnet::ops {

// q [N, L, H, D], k [N, S, H, D], v [N, S, H, M] -> [N, L, H, M], any strides (a last axis that is not
// dense is copied); L, S, D, M >= 1. In fp32 and bf16 on the CPU the fused kernel; elsewhere its plain
// twin, two batched matrix products. `lengths` is undefined or int64 [N]: keys at positions >=
// lengths[n] count for nothing, whatever they and their values hold. Equations 4-6; with the options'
// defaults phi = elu + 1 and the normaliser are inside, and out is 0 where the normaliser is. Features
// of another size F than the queries' D are for the caller to make: q and k are then phi(q) and
// phi(k), [N, L, H, F], with FeatureMap::kIdentity. In the fused form it can be differentiated once.
// Throws InputError on shapes that do not fit.
torch::Tensor LinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, const torch::Tensor& lengths = {},
                              const kernels::LinearAttentionOptions& options = {});

}  // namespace linnet::ops

#endif  // LINNET_OPS_LINEAR_ATTENTION_H_
