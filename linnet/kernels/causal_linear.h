// Causal linear attention, forward and backward (equations 8-15 and algorithm 1 of Katharopoulos et
// al. 2020). No buffer holds a state for each position, so none has L x D x M elements. For one
// position at a time, see linear_step.h.
//
//   CausalLinearShape shape{.batch = 2, .length = 783, .heads = 8, .dim = 32, .value_dim = 32};
//   CausalLinearOptions options{.feature_map = FeatureMap::kElu, .normalize = true};
//   std::vector<float> scratch(CausalLinearScratch(shape) * slots);
//   CausalLinearForward(shape, options,
//                       {.q = RowMajor(q, shape.length, shape.heads, shape.dim), ...,
//                        .out = RowMajor(out, shape.length, shape.heads, shape.value_dim)},
//                       {scratch.data(), slots}, parallel_for);
//
// With phi the feature map and F = D its number of features, per batch element and head,
// i = 0 .. L-1:
//
//   s_i = s_{i-1} + phi(k_i) v_i^T                  [F, M]  (eq. 18; s_{-1} is given or 0)
//   z_i = z_{i-1} + phi(k_i)                        [F]     (eq. 19)
//   out_i = phi(q_i) s_i / (phi(q_i) . z_i + eps)   [M]     (eq. 12)
//
// out_i = 0 if the denominator's magnitude is below FLT_MIN. Without `normalize`, there is no
// denominator: out_i = phi(q_i) s_i.
//
// Tensors are fp32 or bf16; states and all sums are fp32. Results do not depend on the number of
// slots or threads. The double-precision reference is causal_linear_ref.h.
//
// Packed sequences: if `offsets` [N+1] is given, sequences of different lengths lie one after the
// other without padding. Sequence n is rows offsets[n] .. offsets[n+1] - 1 of tensors [T, H, D] and
// [T, H, M], where T = offsets[N]. offsets[0] must be 0, and offsets must not decrease. Batch
// strides are ignored, and shape.length affects only the sizes of scratch and `kept`.
//
// The results of a sequence do not depend, bit for bit, on the other sequences of a batch, padded
// or packed. Exception: if batch x heads is 1 or 2 and there are no offsets, a sequence of more
// than 256 positions is divided into parts. Its sums are then added in a different order than in a
// larger batch.
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

// Number of floats of scratch for each slot, enough for the forward and for the backward. Each slot
// processes a share of the batch x heads problems, where a problem is one head of one sequence. For
// packed sequences, all shares have about the same number of tokens. parallel_for divides the slots
// among threads.
size_t CausalLinearScratch(const CausalLinearShape& shape);

// Number of floats that the forward keeps for the backward: a denominator for each position and
// head, and the state of each head at the start of each segment. A sequence is cut into at most 256
// segments. Each segment but the last has at least 256 positions. If `packed`, the sequences are
// packed and shape.length is T. Then T / 256 + N states are reserved per head, enough for any
// offsets.
size_t CausalLinearKept(const CausalLinearShape& shape, bool packed = false);

template <typename T>
struct CausalLinearForwardArgsOf {
  Strided<const T> q, k;  // [N, L, H, D]
  Strided<const T> v;     // [N, L, H, M]
  Strided<T> out;         // [N, L, H, M]
  // Optional, [N]: keys at positions >= lengths[n] do not contribute to the numerator or the
  // denominator, even if they or their values hold NaN.
  const int64_t* lengths = nullptr;
  // Optional, [N + 1]: packed sequences (see above).
  const int64_t* offsets = nullptr;
  // Optional output: CausalLinearKept() floats for the backward.
  float* kept = nullptr;
  // Optional and dense. On entry, s [N, H, D, M] and z [N, H, D] hold the state before the first
  // position; on return, they hold the state after the last one. If normalize is false, z is not
  // changed and may be null.
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
  Strided<const T> q, k, v;           // as in the forward
  Strided<const T> out, grad_out;     // [N, L, H, M]; out is read only if normalize is true
  const float* kept = nullptr;        // written by the forward
  const int64_t* lengths = nullptr;   // as in the forward
  const int64_t* offsets = nullptr;   // as in the forward
  Strided<T> grad_q, grad_k, grad_v;  // outputs, all required
  // The arrays below are optional and dense. s, grad_s and grad_s0 are [N, H, D, M]. z, grad_z and
  // grad_z0 are [N, H, D] and are used only if normalize is true.
  // The forward's initial state; null means zero. Only the CUDA kernel reads it. The CPU kernels
  // read the initial state from `kept`.
  const float* s = nullptr;
  const float* z = nullptr;
  // Gradient of the forward's final state; null means zero.
  const float* grad_s = nullptr;
  const float* grad_z = nullptr;
  // Output: gradient of the forward's initial state.
  float* grad_s0 = nullptr;
  float* grad_z0 = nullptr;
};
using CausalLinearBackwardArgs = CausalLinearBackwardArgsOf<float>;
using CausalLinearBackwardArgsBf16 = CausalLinearBackwardArgsOf<BFloat16>;

// Gradients of sum(out * grad_out) + sum(s * grad_s) + sum(z * grad_z), where s and z are the final
// state. These are equations 13-15, with the derivatives of the denominator and the feature map.
// Sums over earlier positions start from the forward's initial state. Sums over later positions
// start from the gradient of the forward's final state. States within a segment are recomputed from
// the state kept at its start.
void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgs& args, Scratch scratch,
                          ParallelFor parallel_for);
void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgsBf16& args, Scratch scratch,
                          ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_H_
