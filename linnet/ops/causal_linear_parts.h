// The checks and kernel calls of causal linear attention, without the autograd function of
// fused_causal_linear.cc. python/causal_linear.cc calls them from an autograd function of its own,
// which is registered with PyTorch.
#ifndef LINNET_OPS_CAUSAL_LINEAR_PARTS_H_
#define LINNET_OPS_CAUSAL_LINEAR_PARTS_H_

#include <torch/types.h>

#include "linnet/ops/causal_linear.h"

namespace linnet::ops {

// Throw InputError on shapes, types and devices that CausalLinearAttention() and
// CausalLinearAttentionPacked() refuse. They read no tensor values: CausalLinearOffsets() checks
// the values of cu_seqlens. state: null if no state is carried.
void CheckCausalLinear(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                       const torch::Tensor& lengths, const kernels::CausalLinearOptions& options,
                       const CausalLinearState* state);
void CheckCausalLinearPacked(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             const torch::Tensor& cu_seqlens,
                             const kernels::CausalLinearOptions& options,
                             const CausalLinearState* state);

// Returns cu_seqlens, dense and on the CPU. Throws InputError if it does not divide `rows` rows
// into sequences, or if it has no values because it is being traced.
torch::Tensor CausalLinearOffsets(const torch::Tensor& cu_seqlens, int64_t rows);

// Size in floats of the buffer that the fused form keeps for its backward. Depends on shapes alone,
// as tracing requires. `sequences`: the number of packed sequences in q [1, T, H, D]; 0 if q is
// [N, L, H, D].
int64_t CausalLinearKeptSize(const torch::Tensor& q, const torch::Tensor& v, int64_t sequences);

// Arguments of FusedCausalLinearForward(), the fused form without autograd (not available in a
// plain-only build). Shapes are those of fused.h; absent tensors are undefined. The caller must
// have checked the arguments.
struct FusedCausalLinearInputs {
  torch::Tensor q, k, v, lengths, offsets;
  CausalLinearState state;  // before the first position
};

struct FusedCausalLinearResults {
  torch::Tensor out;        // [N, L, H, M]
  torch::Tensor kept;       // CausalLinearKeptSize() floats for the backward
  CausalLinearState state;  // after the last position: s only if with_state, z only if normalize
                            // is also true
};

struct FusedCausalLinearGradients {
  torch::Tensor q, k, v;
  CausalLinearState state;  // gradient of inputs.state; undefined where inputs.state is undefined
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
