// Parts of causal linear attention for autograd functions other than the one in
// fused_causal_linear.cc: python/ registers its own with PyTorch, over the same checks and kernel
// calls.
#ifndef LINNET_OPS_CAUSAL_LINEAR_PARTS_H_
#define LINNET_OPS_CAUSAL_LINEAR_PARTS_H_

#include <torch/types.h>

#include "linnet/ops/causal_linear.h"

namespace linnet::ops {

// Throw InputError like CausalLinearAttention and CausalLinearAttentionPacked, but read no values
// of tensors: CausalLinearOffsets() checks those of cu_seqlens. state: null if none is carried.
void CheckCausalLinear(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       const torch::Tensor& lengths, const kernels::CausalLinearOptions& options,
                       const CausalLinearState* state);
void CheckCausalLinearPacked(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             const torch::Tensor& cu_seqlens,
                             const kernels::CausalLinearOptions& options,
                             const CausalLinearState* state);

// cu_seqlens on the CPU and dense. Throws InputError if it does not partition `rows` rows or, being
// traced, has no data.
torch::Tensor CausalLinearOffsets(const torch::Tensor& cu_seqlens, int64_t rows);

// Size in floats of the buffer that the fused form keeps for its backward. Depends on shapes alone,
// as tracing requires. `sequences`: the number of packed sequences in q [1, T, H, D]; 0 if q is
// [N, L, H, D].
int64_t CausalLinearKeptSize(const torch::Tensor& q, const torch::Tensor& v, int64_t sequences);

// The fused form without autograd (not available in a plain-only build). Shapes as in fused.h;
// absent tensors are undefined. The arguments must have been checked.
struct FusedCausalLinearInputs {
  torch::Tensor q, k, v, lengths, offsets;
  CausalLinearState state;  // before the first position
};

struct FusedCausalLinearResults {
  torch::Tensor out;        // [N, L, H, M]
  torch::Tensor kept;       // CausalLinearKeptSize() floats for the backward
  CausalLinearState state;  // after the last position: s if with_state, z if normalize
                            // is also true
};

struct FusedCausalLinearGradients {
  torch::Tensor q, k, v;
  CausalLinearState state;  // gradient of the inputs' state, if there is one
};

FusedCausalLinearResults FusedCausalLinearForward(const FusedCausalLinearInputs& inputs,
                                                  bool with_state,
                                                  const kernels::CausalLinearOptions& options);

// `state_grad`: gradient of the final state; undefined: zero.
FusedCausalLinearGradients FusedCausalLinearBackward(const FusedCausalLinearInputs& inputs,
                                                     const torch::Tensor& out,
                                                     const torch::Tensor& kept,
                                                     const torch::Tensor& grad_out,
                                                     const CausalLinearState& state_grad,
                                                     const kernels::CausalLinearOptions& options);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CAUSAL_LINEAR_PARTS_H_
