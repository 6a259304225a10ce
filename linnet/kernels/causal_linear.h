// Causal linear attention: forward and backward (the paper's equations 8-15 and algorithm 1), in
// memory that does not grow with L x D x M. One position at a time: linear_step.h.
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
//                                                           phi(q_i) s_i; 0 where the denominator
//                                                           is 0, or below every normal float)
//
// F = D for the feature maps here. Tensors are fp32 or bf16, states and all sums fp32. Results do not
// depend on how many slots or threads are used. The plain twin in double precision is
// causal_linear_ref.h.
//
// Sequences of different lengths may lie one after the other, without padding: then `offsets` [N+1]
// says where, sequence n being the rows offsets[n] .. offsets[n+1] of tensors [T, H, D] with T =
// offsets[N], offsets[0] = 0 and no offset below the one before it. The strides between batch
// elements and shape.length are then not read.
//
// Nor do results depend, to the bit, on the other sequences of a batch, padded or packed, with one
// exception: where batch x heads is 1 or 2 and offsets are not given, a sequence of more than 256
// positions is dealt out to the threads in parts, and its sums are added in another order.
#ifndef LINNET_KERNELS_CAUSAL_LINEAR_H_
#define LINNET_KERNELS_CAUSAL_LINEAR_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

enum class FeatureMap {
  kIdentity,  // phi(x) = x: the caller has applied its own
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

// Floats of scratch a slot needs, for forward and for backward. The batch x heads problems are dealt
// out to the slots (where sequences differ in length, by their tokens), and the slots to
// parallel_for.
size_t CausalLinearScratch(const CausalLinearShape& shape);

// Floats that the forward keeps for the backward: the denominators, one a row and head, and the
// state at the beginning of each segment of the sequence, of which there are 256 at most, so that
// they do not grow with it: what the backward starts from. packed: for sequences that lie one after
// the other, and shape.length is T; room is then for a state every 256 positions, whatever they are
// cut into.
size_t CausalLinearKept(const CausalLinearShape& shape, bool packed = false);

template <typename T>
struct CausalLinearForwardArgsOf {
  Strided<const T> q, k;  // [N, L, H, D]
  Strided<const T> v;     // [N, L, H, M]
  Strided<T> out;         // [N, L, H, M]
  // Optional, [N]: keys at positions >= lengths[n] count for nothing (in numerator and normaliser),
  // whatever they and their values hold.
  const int64_t* lengths = nullptr;
  // Optional, [N + 1]: the sequences lie one after the other (see the top).
  const int64_t* offsets = nullptr;
  // Optional: CausalLinearKept() floats, written, for the backward to read.
  float* kept = nullptr;
  // Optional, [N, H, D, M] and [N, H, D], dense: the state before the first position, replaced by
  // the state after the last one. z may be null where normalize is false, and is not changed there.
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
  Strided<const T> out, grad_out;     // [N, L, H, M]; out only where normalize is true
  const float* kept = nullptr;        // the forward's
  const int64_t* lengths = nullptr;   // the forward's
  const int64_t* offsets = nullptr;   // the forward's
  Strided<T> grad_q, grad_k, grad_v;  // written, all of them
  // All optional and dense, [N, H, D, M] and [N, H, D]; those of z only where normalize is true.
  const float* s = nullptr;  // the state that the forward began with; null: zero
  const float* z = nullptr;
  const float* grad_s = nullptr;  // gradient of the state that it left behind; null: zero
  const float* grad_z = nullptr;
  float* grad_s0 = nullptr;  // written: gradient of the state that it began with
  float* grad_z0 = nullptr;
};
using CausalLinearBackwardArgs = CausalLinearBackwardArgsOf<float>;
using CausalLinearBackwardArgsBf16 = CausalLinearBackwardArgsOf<BFloat16>;

// Gradients of sum(out * grad_out) + sum(s * grad_s) + sum(z * grad_z), s and z being the state
// after the last position: equations 13-15, with the normaliser's and the feature map's derivatives
// folded in. The sums from the front begin with the forward's first state, those from the back with
// the gradient of its last one. The states are recomputed, so nothing grows with the sequence but
// the inputs, out and the denominators.
void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgs& args, Scratch scratch,
                          ParallelFor parallel_for);
void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgsBf16& args, Scratch scratch,
                          ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_H_
