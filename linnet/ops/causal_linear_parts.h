// What causal linear attention is made of, for another autograd function than the one in
// fused_causal_linear.cc: python/ registers its own with PyTorch, over the same checks and the same
// calls of the kernel.
#ifndef LINNET_OPS_CAUSAL_LINEAR_PARTS_H_
#define LINNET_OPS_CAUSAL_LINEAR_PARTS_H_

#include <torch/types.h>

#include "linnet/ops/causal_linear.h"

namespace linnet::ops {

// Throw InputError as CausalLinearAttention and CausalLinearAttentionPacked do; they look at shapes
// and types alone. state: null where none is wanted.
void CheckCausalLinear(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       const torch::Tensor& lengths, const kernels::CausalLinearOptions& options,
                       const CausalLinearState* state);
void CheckCausalLinearPacked(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             const torch::Tensor& cu_seqlens,
                             const kernels::CausalLinearOptions& options,
                             const CausalLinearState* state);

// cu_seqlens on the CPU and dense; throws InputError where its numbers do not cut up `rows` rows.
torch::Tensor CausalLinearOffsets(const torch::Tensor& cu_seqlens, int64_t rows);

// What the fused form keeps for its backward, in floats: a function of shapes alone, as tracing needs
// it. `sequences`: of packed rows q [1, T, H, D]; 0: q is [N, L, H, D].
int64_t CausalLinearKeptSize(const torch::Tensor& q, const torch::Tensor& v, int64_t sequences);

// The fused form, without autograd (not in a build on the plain forms). Shapes as in fused.h; what
// is absent is an undefined tensor. The arguments have been checked.
struct FusedCausalLinearInputs {
  torch::Tensor q, k, v, lengths, offsets;
  CausalLinearState state;  // before the first position
};

struct FusedCausalLinearResults {
  torch::Tensor out;   // [N, L, H, M]
  torch::Tensor kept;  // CausalLinearKeptSize() floats: for the backward
  CausalLinearState
      state;  // after the last position: s where with_state is true, z where normalize
              // is too
};

struct FusedCausalLinearGradients {
  torch::Tensor q, k, v;
  CausalLinearState state;  // of the inputs' state, where there was one
};

FusedCausalLinearResults FusedCausalLinearForward(const FusedCausalLinearInputs& inputs,
                                                  bool with_state,
                                                  const kernels::CausalLinearOptions& options);

// `state_grad`: of the state after the last position; undefined: zero.
FusedCausalLinearGradients FusedCausalLinearBackward(const FusedCausalLinearInputs& inputs,
                                                     const torch::Tensor& out,
                                                     const torch::Tensor& kept,
                                                     const torch::Tensor& grad_out,
                                                     const CausalLinearState& state_grad,
                                                     const kernels::CausalLinearOptions& options);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CAUSAL_LINEAR_PARTS_H_
