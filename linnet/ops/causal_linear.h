// Causal linear attention as a differentiable libtorch operation over kernels/causal_linear.h.
//
//   torch::Tensor out = ops::CausalLinearAttention(q, k, v, lengths, {.eps = 1e-6f});
//   out.sum().backward();
//
// A long sequence in pieces, with gradients from each piece back through all before it:
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
// copied); L, D, M >= 1. In fp32 on the CPU the fused kernel; elsewhere its plain twin: chunks of
// kPlainChunk positions, as batched matrix products inside a chunk and sums of states between them.
// `lengths` is undefined or int64 [N]: keys at positions >= lengths[n] count for nothing, whatever
// they and their values hold. Equations 8-12 forward, 13-15 backward; with the options' defaults
// phi = elu + 1 and the normaliser are inside. Where the normaliser is 0 (nothing has been seen and
// eps is 0) out is 0 and so are its gradients. Features of another size F than the queries' D are
// for the caller to make: q and k are then phi(q) and phi(k), [N, L, H, F], with
// FeatureMap::kIdentity. Throws InputError on shapes that do not fit (in particular where keys and
// queries differ in length, which a causal product does not define).
//
// The future does not reach the past, not in a single bit. But for one thing in the plain form:
// values that are no numbers reach the queries before them in the same chunk.
torch::Tensor CausalLinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                                    const torch::Tensor& v, const torch::Tensor& lengths = {},
                                    const kernels::CausalLinearOptions& options = {});

// The sums of equations 18 and 19: s [N, H, F, M] and z [N, H, F], in the type of v. Undefined:
// nothing has been seen yet. z is of the normaliser, and not read or written without it.
struct CausalLinearState {
  torch::Tensor s, z;
};

// One piece of a longer sequence: begins with `state` and replaces it by the state after the piece.
// The tensors in it are not written to, and gradients pass from the new ones to the old ones and to
// q, k and v. `lengths` counts from the beginning of the piece. Pieces of a sequence, one after the
// other, equal it as a whole but for rounding. Detach the tensors of a state to cut the gradient
// there. Throws InputError also on a state that does not fit.
torch::Tensor CausalLinearAttention(const torch::Tensor& q, const torch::Tensor& k,
                                    const torch::Tensor& v, const torch::Tensor& lengths,
                                    const kernels::CausalLinearOptions& options,
                                    CausalLinearState& state);

// Sequences of different lengths, one after the other without padding: q, k [T, H, D], v [T, H, M]
// -> [T, H, M]. Sequence n is the rows cu_seqlens[n] .. cu_seqlens[n+1]; cu_seqlens is int64
// [N + 1], begins with 0, ends with T and never falls (a sequence may be empty). The fused form
// equals CausalLinearAttention of each sequence alone to the bit (where there are three heads or more:
// one or two of a long sequence alone are dealt out to the threads in parts, and their sums added in
// another order); the plain one runs them in turn,
// and reads cu_seqlens on the CPU. With a state, each sequence continues its own. Throws InputError
// on shapes, a cu_seqlens or a state that do not fit.
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
