// Exact softmax attention, forward and backward, without the [queries, keys] matrix of scores: keys
// are processed in blocks, and only one number per query is kept besides the results.
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
// For each batch element and head, query i = 0 .. L-1 sees the keys j < lengths[n] and, if
// `causal`, only those with j <= i + offset: `offset` keys precede the first query, as when a
// sequence is processed in chunks over its cache of keys. With a `window`, query i sees only the
// last `window` of these keys, and the work per query is O(window). With sums over the keys that i
// sees:
//
//   p_ij  = exp(scale q_i . k_j) / sum_j exp(scale q_i . k_j)
//   out_i = sum_j p_ij v_j          [M], equation 2 of Katharopoulos et al. (2020)
//
// If a query sees no key, its result is 0. Keys and values after the last key that any query sees
// are not read: they may hold anything, NaN too. Keys and values before the first window must be
// finite. A NaN in a key or value that a query sees makes the query's result NaN, and an infinity
// may do so. Either may also affect some queries just before the first query that sees it, or just
// after the last one.
//
// Everything is fp32; the exponential has a relative error of about 2e-7. Results do not depend,
// bit for bit, on the number of slots or threads. A query's result does not depend on the other
// queries of the call, except as above. The double-precision reference is softmax_attention_ref.h.
#ifndef LINNET_KERNELS_SOFTMAX_ATTENTION_H_
#define LINNET_KERNELS_SOFTMAX_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

// In order: N, L, S, H, D, M. L or S may be 0; D, M >= 1.
struct SoftmaxAttentionShape {
  size_t batch = 0, queries = 0, keys = 0, heads = 0, dim = 0, value_dim = 0;
  // Number of consecutive heads that share keys and values: head h reads head h / readers of k, v.
  size_t readers = 1;
};

struct SoftmaxAttentionOptions {
  float scale = 1;  // usually 1 / sqrt(D)
  bool causal = false;
  size_t offset = 0;  // keys before the first query; read only if `causal`
  size_t window = 0;  // maximum number of keys (the latest) that a query sees; 0: all; read only
                      // if `causal`
};

// Floats of scratch per slot on the active instruction set, enough for forward and backward. The
// size grows with D and M, and by at most about 700 kB with L. It does not depend on N, S or H.
size_t SoftmaxAttentionScratch(const SoftmaxAttentionShape& shape);

struct SoftmaxAttentionForwardArgs {
  Strided<const float> q;  // [N, L, H, D]
  Strided<const float> k;  // [N, S, H / readers, D]
  Strided<const float> v;  // [N, S, H / readers, M]
  Strided<float> out;      // [N, L, H, M]
  // Optional, [N]: number of keys of each sequence, clamped to 0 .. S.
  const int64_t* lengths = nullptr;
  // Optional, [N, H, L], dense: log2(sum_j exp(scale q_i . k_j)) for the backward; -inf if i sees
  // no key. The base is 2, as in the kernel's exponentials: if one key outweighs all others,
  // log2_sum is exactly that key's base-2 score, and the backward's p_ij is 1 however large the
  // score is.
  float* log2_sum = nullptr;
};

// Runs in parallel over N x H x blocks of queries.
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
  // All are written; 0 for queries that see no key and keys that no query sees. grad_k and grad_v
  // have H heads: the caller gets the gradient of shared keys and values by adding over the heads
  // that read them.
  Strided<float> grad_q, grad_k, grad_v;
};

// Gradients of sum(out * grad_out), with the p_ij recomputed:
//
//   ds_ij  = p_ij (v_j . grad_out_i - delta_i)
//   grad_q_i = scale sum_j ds_ij k_j,  grad_k_j = scale sum_i ds_ij q_i,
//   grad_v_j = sum_i p_ij grad_out_i
//
// Runs one sweep, in parallel over N x H, if that keeps most slots busy. Otherwise runs two sweeps,
// over blocks of keys (grad_k, grad_v) and over blocks of queries (grad_q), which add in the same
// order and give the same bits. The relative error of p_ij equals the absolute error of an fp32
// score, so p_ij loses digits if scores are in the thousands.
void SoftmaxAttentionBackward(const SoftmaxAttentionShape& shape,
                              const SoftmaxAttentionOptions& options,
                              const SoftmaxAttentionBackwardArgs& args, Scratch scratch,
                              ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SOFTMAX_ATTENTION_H_
