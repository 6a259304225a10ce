// Causal linear attention as a differentiable libtorch operation over kernels/causal_linear.h.
//
//   torch::Tensor out = ops::CausalLinearAttention(q, k, v, lengths, {.eps = 1e-6f});
//   out.sum().backward();
//
// A long sequence can be processed in pieces, that is, in consecutive ranges of positions.
// Gradients flow back from each piece through all earlier pieces:
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

// q, k [N, L, H, D], v [N, L, H, M] -> [N, L, H, M], any strides (a tensor whose last axis is not
// dense is copied); L, D, M >= 1. Computes equations 8-12 (forward) and 13-15 (backward) of
// Katharopoulos et al. (2020), including the feature map (by default phi = elu + 1) and, with
// options.normalize, the denominator. On the CPU, runs the fused kernel in fp32 and, without a
// carried state, in bf16. On a GPU, runs kernels/cuda for the same types, if the build has
// LINNET_CUDA and CausalLinearHasGpuKernels(D, M) (narrow.h) is true. Otherwise runs the plain form
// (unfused libtorch operations; plain.h) in chunks of kPlainChunk positions: batched matrix
// products within chunks, and prefix sums of the chunks' states. Only the plain form has second
// derivatives.
//
// `lengths` is undefined or a dense int64 [N]: keys at positions >= lengths[n] are masked out,
// whatever they and their values hold. Where the denominator is 0 (as with all keys masked and eps
// 0), out and its gradients are 0. For another feature map, with features of any size F, pass
// phi(q) and phi(k), [N, L, H, F], as q and k, with FeatureMap::kIdentity. Throws InputError on
// shapes that do not match (queries and keys must have the same length).
//
// Later keys and values do not change a bit of an output. Exception in the plain form: a NaN or
// infinity in v also reaches the earlier queries of its chunk.
torch::Tensor CausalLinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                                    const torch::Tensor& v, const torch::Tensor& lengths = {},
                                    const kernels::CausalLinearOptions& options = {});

// The sums of equations 18 and 19 of the same paper: s [N, H, F, M] and z [N, H, F], in the type of
// v. Undefined tensors mean zeros. z is read and written only if options.normalize.
struct CausalLinearState {
  torch::Tensor s, z;
};

// Attention over one piece of a longer sequence. Starts from `state` and replaces it by the state
// after the piece, without writing to the old state's tensors. Gradients flow from the new state to
// the old state and to q, k and v. `lengths` counts from the start of the piece. Consecutive pieces
// equal the whole sequence up to rounding. Detach the tensors of a state to stop the gradient
// there. Also throws InputError if the state does not have the shape, type and device that q and v
// imply or, with options.normalize, has only one of s and z.
torch::Tensor CausalLinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                                    const torch::Tensor& v, const torch::Tensor& lengths,
                                    const kernels::CausalLinearOptions& options,
                                    CausalLinearState& state);

// Packed sequences of different lengths, without padding: q, k [T, H, D], v [T, H, M] -> [T, H, M].
// Sequence n is rows cu_seqlens[n] .. cu_seqlens[n+1] - 1; cu_seqlens is int64 [N + 1], starts with
// 0, ends with T and never decreases (a sequence may be empty). With `state`, sequence n continues
// from the state's entry n. Throws InputError if the shapes, cu_seqlens or the state do not match.
//
// With three heads or more, the fused form equals CausalLinearAttention() over each sequence alone,
// bit for bit. (With one or two heads, CausalLinearAttention() divides a long sequence into parts,
// so its sums are added in another order.) The plain form processes one sequence after the other.
// All forms check the values of cu_seqlens on the CPU; a cu_seqlens on a GPU is copied first.
torch::Tensor CausalLinearAttentionPacked(const torch::Tensor& q, const torch::Tensor& k,
                                          const torch::Tensor& v, const torch::Tensor& cu_seqlens,
                                          const kernels::CausalLinearOptions& options = {});
torch::Tensor CausalLinearAttentionPacked(const torch::Tensor& q, const torch::Tensor& k,
                                          const torch::Tensor& v, const torch::Tensor& cu_seqlens,
                                          const kernels::CausalLinearOptions& options,
                                          CausalLinearState& state);

inline constexpr int64_t kPlainChunk = 64;  // positions per chunk of the plain form

}  // namespace linnet::ops

#endif  // LINNET_OPS_CAUSAL_LINEAR_H_
