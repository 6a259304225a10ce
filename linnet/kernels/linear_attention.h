// Non-causal linear attention, forward and backward: every query attends to every key (equations
// 4-6 of Katharopoulos et al. 2020). Memory is linear in the lengths: no array has size queries x
// keys or queries x dim x value_dim.
//
//   LinearAttentionShape shape{.batch = 2, .queries = 90, .keys = 120, .heads = 8, .dim = 32,
//                              .value_dim = 32};
//   std::vector<float> scratch(LinearAttentionScratch(shape) * slots);
//   LinearAttentionForward(shape, {},
//                          {.q = RowMajor(q, shape.queries, shape.heads, shape.dim), ...},
//                          {scratch.data(), slots}, parallel_for);
//
// With phi the feature map, per batch element and head:
//
//   s = sum_j phi(k_j) v_j^T    [F, M]        z = sum_j phi(k_j)    [F]
//   out_i = phi(q_i) s / (phi(q_i) . z + eps)     (eq. 5)
//
// out_i = 0 if the denominator's magnitude is below FLT_MIN. Without `normalize`, there is no
// denominator: out_i = phi(q_i) s.
//
// F = D, because the feature maps here keep the size. For another feature map, the caller computes
// phi(q) and phi(k), sets D = F and passes kIdentity.
//
// Tensors are fp32 or bf16, all sums fp32. Results do not depend, bit for bit, on the number of
// slots or threads, nor on the other sequences of a batch. Exception: if batch x heads is 1 or 2,
// sequences of 512 or more positions are divided into parts, so their sums are added in another
// order than in a larger batch. The double-precision reference is linear_attention_ref.h.
#ifndef LINNET_KERNELS_LINEAR_ATTENTION_H_
#define LINNET_KERNELS_LINEAR_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

struct LinearAttentionShape {
  size_t batch = 0, queries = 0, keys = 0, heads = 0, dim = 0, value_dim = 0;  // N, L, S, H, D, M
};

// Feature map, normalize and eps, as for causal linear attention.
using LinearAttentionOptions = CausalLinearOptions;

// Floats of scratch for each slot, for forward and backward.
size_t LinearAttentionScratch(const LinearAttentionShape& shape);
// Floats that the forward keeps for the backward: s and z of each head, and a denominator for each
// query and head.
size_t LinearAttentionKept(const LinearAttentionShape& shape);

template <typename T>
struct LinearAttentionForwardArgsOf {
  Strided<const T> q;  // [N, L, H, D]
  Strided<const T> k;  // [N, S, H, D]
  Strided<const T> v;  // [N, S, H, M]
  Strided<T> out;      // [N, L, H, M]
  // Optional, [N]: keys at positions >= lengths[n] are masked out, even if they or their values
  // hold NaN.
  const int64_t* lengths = nullptr;
  // Optional: LinearAttentionKept() floats, written for the backward.
  float* kept = nullptr;
};
using LinearAttentionForwardArgs = LinearAttentionForwardArgsOf<float>;
using LinearAttentionForwardArgsBf16 = LinearAttentionForwardArgsOf<BFloat16>;

void LinearAttentionForward(const LinearAttentionShape& shape,
                            const LinearAttentionOptions& options,
                            const LinearAttentionForwardArgs& args, Scratch scratch,
                            ParallelFor parallel_for);
void LinearAttentionForward(const LinearAttentionShape& shape,
                            const LinearAttentionOptions& options,
                            const LinearAttentionForwardArgsBf16& args, Scratch scratch,
                            ParallelFor parallel_for);

template <typename T>
struct LinearAttentionBackwardArgsOf {
  Strided<const T> q, k, v;           // the forward's inputs
  Strided<const T> out, grad_out;     // [N, L, H, M]; out is read only if normalize
  const float* kept = nullptr;        // the forward's
  const int64_t* lengths = nullptr;   // the forward's
  Strided<T> grad_q, grad_k, grad_v;  // all are written
};
using LinearAttentionBackwardArgs = LinearAttentionBackwardArgsOf<float>;
using LinearAttentionBackwardArgsBf16 = LinearAttentionBackwardArgsOf<BFloat16>;

// Gradients of sum(out * grad_out). With g_i = grad_out_i / den_i and c_i = -(g_i . out_i):
//
//   grad phi(q)_i = s g_i + c_i z
//   grad phi(k)_j = (sum_i phi(q_i) g_i^T) v_j + sum_i c_i phi(q_i)
//   grad v_j = (sum_i phi(q_i) g_i^T)^T phi(k_j)
void LinearAttentionBackward(const LinearAttentionShape& shape,
                             const LinearAttentionOptions& options,
                             const LinearAttentionBackwardArgs& args, Scratch scratch,
                             ParallelFor parallel_for);
void LinearAttentionBackward(const LinearAttentionShape& shape,
                             const LinearAttentionOptions& options,
                             const LinearAttentionBackwardArgsBf16& args, Scratch scratch,
                             ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_ATTENTION_H_
