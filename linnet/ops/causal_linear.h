// Causal linear attention as a differentiable libtorch operation over kernels/causal_linear.h.
//
//   torch::Tensor out = ops::CausalLinearAttention(q, k, v, lengths, {.eps = 1e-6f});
//   out.sum().backward();
//
// A long sequence in pieces; gradients flow back from each piece through all earlier ones:
//
//   ops::CausalLinearState state;
//   for (const Piece& piece : pieces) {
//     out = ops::CausalLinearAttention(piece.q, piece.k, piece.v, {}, options, state);
//   }
#ifndef LINNET_OPS_CAUSAL_LINEAR_H_
#define LINNET_OPS_CAUSAL_LINEAR_H_

#include <torch/types.h>

#include "linnet/kernels/causal_linear.h"

namespace linnet::ops {

// q, k [N, L, H, D], v [N, L, H, M] -> [N, L, H, M], any strides (a last axis that is not dense is
// copied); L, D, M >= 1. The paper's equations 8-12 forward, 13-15 backward; feature map and
// normalizer are included (by default phi = elu + 1). On the CPU, runs the fused kernel in fp32
// and, without a carried state, in bf16. On a GPU, runs kernels/cuda for the same types in a build
// with LINNET_CUDA, if CausalLinearHasGpuKernels(D, M) (narrow.h). Elsewhere runs the plain form in
// chunks of kPlainChunk positions: batched matrix products inside a chunk, and sums of states
// between chunks. The kernels' forms are differentiable once.
//
// `lengths` is undefined or a dense int64 [N]: keys at positions >= lengths[n] are masked out,
// whatever they and their values hold. Where the denominator is 0 (as with all keys masked and eps
// 0), out and its gradients are 0. For features of another size F than the queries' D, pass q and k
// as phi(q) and phi(k), [N, L, H, F], with FeatureMap::kIdentity. Throws InputError on shapes that
// do not match (queries and keys must have the same length).
//
// Strictly causal, bit for bit. Exception in the plain form: a NaN or infinity in v also reaches
// the earlier queries of its chunk.
torch::Tensor CausalLinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                                    const torch::Tensor& v, const torch::Tensor& lengths = {},
                                    const kernels::CausalLinearOptions& options = {});

// The sums of the paper's equations 18 and 19: s [N, H, F, M] and z [N, H, F], in the type of v.
// Undefined means the empty state. z is read and written only if options.normalize.
struct CausalLinearState {
  torch::Tensor s, z;
};

// One piece of a longer sequence: begins with `state` and replaces it by the state after the piece.
// Does not write to the given tensors; gradients flow from the new state to the old one and to q, k
// and v. `lengths` counts from the start of the piece. Consecutive pieces equal the whole sequence
// up to rounding. Detach the tensors of a state to stop the gradient there. Also throws InputError
// on a state of another shape, type or device than q and v imply, or with only one of s and z.
torch::Tensor CausalLinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                                    const torch::Tensor& v, const torch::Tensor& lengths,
                                    const kernels::CausalLinearOptions& options,
                                    CausalLinearState& state);

// Packed sequences of different lengths, without padding: q, k [T, H, D], v [T, H, M] -> [T, H, M].
// Sequence n is rows cu_seqlens[n] .. cu_seqlens[n+1] - 1; cu_seqlens is int64 [N + 1], starts with
// 0, ends with T and never decreases (a sequence may be empty). With a state, each sequence
// continues its own. Throws InputError if the shapes, cu_seqlens or the state do not match.
//
// The fused form equals CausalLinearAttention of each sequence alone, bit for bit, with three heads
// or more. (With one or two heads, CausalLinearAttention divides a long sequence into parts, so its
// sums are added in another order.) The plain form runs the sequences in turn. All forms check
// cu_seqlens on the CPU.
torch::Tensor CausalLinearAttentionPacked(const torch::Tensor& q, const torch::Tensor& k,
                                          const torch::Tensor& v, const torch::Tensor& cu_seqlens,
                                          const kernels::CausalLinearOptions& options = {});
torch::Tensor CausalLinearAttentionPacked(const torch::Tensor& q, const torch::Tensor& k,
                                          const torch::Tensor& v, const torch::Tensor& cu_seqlens,
                                          const kernels::CausalLinearOptions& options,
                                          CausalLinearState& state);

inline constexpr int64_t kPlainChunk = 64;

}  // namespace linnet::ops

#endif  // LINNET_OPS_CAUSAL_LINEAR_H_
