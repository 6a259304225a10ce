// Causal linear attention, forward and backward (the paper's equations 8-15 and algorithm 1).
// Memory does not grow with L x D x M. For one position at a time see linear_step.h.
//
//   CausalLinearShape shape{.batch = 2, .length = 783, .heads = 8, .dim = 32, .value_dim = 32};
//   CausalLinearOptions options{.feature_map = FeatureMap::kElu, .normalize = true};
//   std::vector<float> scratch(CausalLinearScratch(shape) * slots);
//   CausalLinearForward(shape, options,
//                       {.q = RowMajor(q, shape.length, shape.heads, shape.dim), ...,
//                        .out = RowMajor(out, shape.length, shape.heads, shape.value_dim)},
//                       {scratch.data(), slots}, parallel_for);
//
// With phi the feature map, per batch element and head, i = 0 .. L-1:
//
//   s_i = s_{i-1} + phi(k_i) v_i^T                  [F, M]  (eq. 18; s_{-1} is given or 0)
//   z_i = z_{i-1} + phi(k_i)                        [F]     (eq. 19)
//   out_i = phi(q_i) s_i / (phi(q_i) . z_i + eps)   [M]     (eq. 12; without `normalize`, only
//                                                           phi(q_i) s_i; 0 if the denominator's
//                                                           magnitude is below FLT_MIN)
//
// F = D for the feature maps here. Tensors are fp32 or bf16; states and all sums are fp32. Results
// do not depend on the number of slots or threads. The double-precision reference is
// causal_linear_ref.h.
//
// Packed sequences: with `offsets` [N+1], sequences of different lengths lie one after the other
// without padding. Sequence n is rows offsets[n] .. offsets[n+1] - 1 of tensors [T, H, D], where
// T = offsets[N], offsets[0] = 0 and offsets never decrease. Batch strides are then not read, and
// shape.length only affects the size of scratch and `kept`.
//
// Results do not depend, bit for bit, on the other sequences of a batch, padded or packed.
// Exception: if batch x heads is 1 or 2 and there are no offsets, a sequence of more than 256
// positions is divided into parts, so its sums are added in another order than in a larger batch.
#ifndef LINNET_KERNELS_CAUSAL_LINEAR_H_
#define LINNET_KERNELS_CAUSAL_LINEAR_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

enum class FeatureMap {
  kIdentity,  // phi(x) = x: the caller has already applied a feature map
  kElu,       // phi(x) = elu(x) + 1 (eq. 7)
};

struct CausalLinearShape {
  size_t batch = 0, length = 0, heads = 0, dim = 0, value_dim = 0;  // N, L, H, D, M
};

struct CausalLinearOptions {
  FeatureMap feature_map = FeatureMap::kElu;
  bool normalize = true;
  float eps = 1e-6f;
};

// Floats of scratch for each slot, for forward and backward. Each slot processes a share of the
// batch x heads problems; a problem is one head of one sequence. For packed sequences, all shares
// have about the same number of tokens. parallel_for divides the slots among threads.
size_t CausalLinearScratch(const CausalLinearShape& shape);

// Number of floats that the forward keeps for the backward: a denominator for each position and
// head, and the state of each head at the start of each segment. A sequence is cut into at most 256
// segments, each of 256 positions or more except the last, so its memory for states is bounded.
// `packed` means packed sequences: shape.length is then T, and T / 256 + N states are reserved per
// head, enough for any offsets.
size_t CausalLinearKept(const CausalLinearShape& shape, bool packed = false);

template <typename T>
struct CausalLinearForwardArgsOf {
  Strided<const T> q, k;  // [N, L, H, D]
  Strided<const T> v;     // [N, L, H, M]
  Strided<T> out;         // [N, L, H, M]
  // Optional, [N]: keys at positions >= lengths[n] are masked out of numerator and denominator,
  // even if they or their values hold NaN.
  const int64_t* lengths = nullptr;
  // Optional, [N + 1]: packed sequences (see above).
  const int64_t* offsets = nullptr;
  // Optional: CausalLinearKept() floats, written for the backward.
  float* kept = nullptr;
  // Optional, dense: s [N, H, D, M] and z [N, H, D] hold the state before the first position and
  // receive the state after the last one. If normalize is false, z may be null and is not changed.
  float* s = nullptr;
  float* z = nullptr;
};
using CausalLinearForwardArgs = CausalLinearForwardArgsOf<float>;
using CausalLinearForwardArgsBf16 = CausalLinearForwardArgsOf<BFloat16>;

void CausalLinearForward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                         const CausalLinearForwardArgs& args, Scratch scratch,
                         ParallelFor parallel_for);
void CausalLinearForward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                         const CausalLinearForwardArgsBf16& args, Scratch scratch,
                         ParallelFor parallel_for);

template <typename T>
struct CausalLinearBackwardArgsOf {
  Strided<const T> q, k, v;           // the forward's inputs
  Strided<const T> out, grad_out;     // [N, L, H, M]; out is read only if normalize
  const float* kept = nullptr;        // the forward's
  const int64_t* lengths = nullptr;   // the forward's
  const int64_t* offsets = nullptr;   // the forward's
  Strided<T> grad_q, grad_k, grad_v;  // all are written
  // All states below are optional and dense: those of s are [N, H, D, M], those of z are
  // [N, H, D] and used only if normalize is true.
  // The forward's initial state; null means zero. Only the CUDA kernel reads it: the kernels here
  // take it from `kept`.
  const float* s = nullptr;
  const float* z = nullptr;
  // Gradient of the forward's final state; null means zero.
  const float* grad_s = nullptr;
  const float* grad_z = nullptr;
  // Written: gradient of the forward's initial state.
  float* grad_s0 = nullptr;
  float* grad_z0 = nullptr;
};
using CausalLinearBackwardArgs = CausalLinearBackwardArgsOf<float>;
using CausalLinearBackwardArgsBf16 = CausalLinearBackwardArgsOf<BFloat16>;

// Gradients of sum(out * grad_out) + sum(s * grad_s) + sum(z * grad_z), where s and z are the final
// state: equations 13-15, including the derivatives of the normalizer and the feature map. The
// forward sums start from the forward's initial state, the backward sums from the gradient of its
// final state. States within a segment are recomputed, so for long sequences only the tensors and
// the denominators grow with the length.
void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgs& args, Scratch scratch,
                          ParallelFor parallel_for);
void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgsBf16& args, Scratch scratch,
                          ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_H_
