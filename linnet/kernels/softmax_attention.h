// Exact softmax attention, forward and backward, without the L x S matrix: keys pass in blocks, and
// beside the results only a number per query is kept.
//
//   SoftmaxAttentionShape shape{.batch = 2, .queries = 783, .keys = 783, .heads = 8, .dim = 32,
//                               .value_dim = 32};
//   SoftmaxAttentionOptions options{.scale = 1 / std::sqrt(32.0f), .causal = true};
//   std::vector<float> scratch(SoftmaxAttentionScratch(shape) * slots);
//   SoftmaxAttentionForward(shape, options,
//                           {.q = RowMajor(q, shape.queries, shape.heads, shape.dim), ...,
//                            .log2_sum = log2_sum.data()},
//                           {scratch.data(), slots}, parallel_for);
//
// Per batch element and head, query i = 0 .. L-1 sees the keys j < lengths[n], and of them, where
// `causal`, those with j <= i + offset: offset keys came before the first query, as they do where a
// sequence passes in pieces over a cache of its keys. With the sums over what it sees:
//
//   p_ij  = exp(scale q_i . k_j) / sum_j exp(scale q_i . k_j)
//   out_i = sum_j p_ij v_j                                      [M]   (eq. 2)
//
// A query that sees no key gives 0. Keys and values that no query sees are not looked at: they may
// hold anything, NaN too. A NaN that is seen makes NaN, and an infinity may, also of some queries just before the
// first one that sees it.
//
// Everything is fp32, the exponential within some 2e-7 of itself. Results do not depend, to the bit,
// on how many slots or threads are used, nor (these apart) a query's on the other queries of the call.
// The plain twin in double precision is softmax_attention_ref.h.
#ifndef LINNET_KERNELS_SOFTMAX_ATTENTION_H_
#define LINNET_KERNELS_SOFTMAX_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

// N, L, S, H, D, M. L or S may be 0; D, M >= 1.
struct SoftmaxAttentionShape {
  size_t batch = 0, queries = 0, keys = 0, heads = 0, dim = 0, value_dim = 0;
};

struct SoftmaxAttentionOptions {
  float scale = 1;  // usually 1 / sqrt(D)
  bool causal = false;
  size_t offset = 0;  // keys before the first query; read where `causal`
};

// Floats of scratch a slot needs on the active instruction set, for forward and for backward: with D
// and M, and up to some 700 kB; not with N, H, L or S beyond that.
size_t SoftmaxAttentionScratch(const SoftmaxAttentionShape& shape);

struct SoftmaxAttentionForwardArgs {
  Strided<const float> q;  // [N, L, H, D]
  Strided<const float> k;  // [N, S, H, D]
  Strided<const float> v;  // [N, S, H, M]
  Strided<float> out;      // [N, L, H, M]
  // Optional, [N]: keys a sequence has; what is below 0 counts as 0, what is beyond S as S.
  const int64_t* lengths = nullptr;
  // Optional, [N, H, L], dense: log2(sum_j exp(scale q_i . k_j)), which the backward needs; -inf
  // where no key is seen. To base 2, as the kernel computes its exponentials: where one key outweighs
  // all others this is its score, and the backward's p_ij is then 1, whatever the score's size.
  float* log2_sum = nullptr;
};

// Parallel over N x H x blocks of queries.
void SoftmaxAttentionForward(const SoftmaxAttentionShape& shape,
                             const SoftmaxAttentionOptions& options,
                             const SoftmaxAttentionForwardArgs& args, Scratch scratch,
                             ParallelFor parallel_for);

struct SoftmaxAttentionBackwardArgs {
  Strided<const float> q, k, v;        // the forward's inputs
  Strided<const float> out, grad_out;  // [N, L, H, M]
  const int64_t* lengths = nullptr;    // the forward's
  const float* log2_sum = nullptr;     // the forward's
  float* delta = nullptr;              // [N, H, L], written: out_i . grad_out_i
  // Written, all of them; 0 for what sees nothing or is not seen.
  Strided<float> grad_q, grad_k, grad_v;
};

// Gradients of sum(out * grad_out), the p_ij computed anew:
//
//   ds_ij  = p_ij (v_j . grad_out_i - delta_i)
//   grad_q_i = scale sum_j ds_ij k_j,  grad_k_j = scale sum_i ds_ij q_i,
//   grad_v_j = sum_i p_ij grad_out_i
//
// Parallel over N x H in one sweep where these occupy the slots; else over blocks of keys (grad_k,
// grad_v) and blocks of queries (grad_q) in two, which add in the same order and give the same bits.
// The relative error of p_ij is that of a score in fp32: scores in the thousands cost digits.
void SoftmaxAttentionBackward(const SoftmaxAttentionShape& shape,
                              const SoftmaxAttentionOptions& options,
                              const SoftmaxAttentionBackwardArgs& args, Scratch scratch,
                              ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SOFTMAX_ATTENTION_H_
