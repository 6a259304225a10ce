// Causal linear attention as a differentiable libtorch operation over kernels/causal_linear.h.
//
//   torch::Tensor out = ops::CausalLinearAttention(q, k, v, lengths, {.eps = 1e-6f});
//   out.sum().backward();
#ifndef LINNET_OPS_CAUSAL_LINEAR_H_
#define LINNET_OPS_CAUSAL_LINEAR_H_

#include <torch/types.h>

#include "linnet/kernels/causal_linear.h"

namespace linnet::ops {

// q, k [N, L, H, D], v [N, L, H, M] -> [N, L, H, M], any strides (a last axis that is not dense is
// copied). In fp32 on the CPU the fused kernel; elsewhere its plain twin: chunks of kPlainChunk
// positions, as batched matrix products inside a chunk and sums of states between them. `lengths` is undefined or int64 [N]: keys at positions >= lengths[n]
// count for nothing. Equations 8-12 forward, 13-15 backward; with the options' defaults phi = elu +
// 1 and the normaliser are inside. Throws InputError on shapes that do not fit (in particular where
// keys and queries differ in length, which a causal product does not define).
torch::Tensor CausalLinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                                    const torch::Tensor& v, const torch::Tensor& lengths = {},
                                    const kernels::CausalLinearOptions& options = {});

inline constexpr int64_t kPlainChunk = 64;

}  // namespace linnet::ops

#endif  // LINNET_OPS_CAUSAL_LINEAR_H_
