// Reformer's LSH attention as published (Kitaev, Kaiser and Levskaya 2020): hashing, sorting and
// attention within chunks, forward and backward, without a copy of the inputs for each round.
//
//   LshAttentionShape shape{.batch = 2, .length = 783, .heads = 8, .dim = 32, .value_dim = 32,
//                           .rounds = 4};
//   LshAttentionOptions options{.buckets = 64, .chunk = 32, .causal = true};
//   std::vector<float> scratch(LshAttentionScratch(shape, options) * slots);
//   std::vector<int32_t> places(LshAttentionPlaces(shape));
//   std::vector<float> sums(LshAttentionSums(shape));
//   LshAttentionForward(shape, options,
//                       {.q = RowMajor(q, shape.length, shape.heads, shape.dim), ...,
//                        .planes = planes, .places = places.data(), .sums = sums.data()},
//                       {scratch.data(), slots}, parallel_for);
//
// Keys are normalized queries: k = q / max(|q|, 1e-12). Each round r has random hyperplanes R_r
// [D, buckets / 2]. For each batch element n and head, over the positions i < lengths[n]:
//
//   x_r(i)      = [q_i R_r; -q_i R_r]                        [buckets]
//   bucket_r(i) = index of the first maximum of x_r(i)       (0 if buckets = 1)
//   place_r(i)  = rank of i in a stable sort by bucket;  chunk_r(i) = place_r(i) / chunk
//   i sees j in round r if bucket_r(i) = bucket_r(j), chunk_r(i) - chunk_r(j) is 0 or 1, i != j,
//                       and, if causal, j <= i
//   S(i)   = the set of all j that i sees in at least one round
//   p_ij   = exp(q_i . k_j / sqrt(D)) / sum_{j in S(i)} exp(q_i . k_j / sqrt(D))
//   out_i  = sum_{j in S(i)} p_ij v_j               [M];  v_i if S(i) is empty
//
// This equals the published sum over rounds. In the published form, each round is weighted by its
// share of the softmax denominator, and each score is lowered by the log of the number of rounds in
// which i sees j. This kernel instead counts a pair (i, j) in full in the first round in which i
// sees j, and skips it in later rounds.
//
// Inputs at positions from lengths[n] on are not read; outputs at these positions are zeros. A NaN
// or infinity at a position before lengths[n] may also cause NaNs at positions that do not see it.
//
// In sorted order, a position sees a run of consecutive places, except its own: the places of its
// bucket in its own chunk and in the chunk before; if causal, only those before its own place.
// Products are computed for these runs only.
//
// Everything is fp32. Results do not depend, bit for bit, on the number of slots or threads. The
// double-precision reference is lsh_attention_ref.h.
#ifndef LINNET_KERNELS_LSH_ATTENTION_H_
#define LINNET_KERNELS_LSH_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/parallel.h"
#include "linnet/kernels/causal_linear.h"

namespace linnet::kernels {

// N, L, H, D, M and R, in this order. L < 2^30; D, M and R are at least 1.
struct LshAttentionShape {
  size_t batch = 0, length = 0, heads = 0, dim = 0, value_dim = 0, rounds = 1;
};

struct LshAttentionOptions {
  size_t buckets = 64;  // 1, or even; 2^24 at most
  size_t chunk = 32;    // >= 1
  bool causal = false;
};

// Floats of scratch for each slot, enough for forward and backward on the active instruction set.
// This holds copies of one head's rows of q, v, grad_out, grad_q and grad_v (made if these rows are
// far apart) and buffers whose size depends only on D, M, R and the number of buckets.
size_t LshAttentionScratch(const LshAttentionShape& shape, const LshAttentionOptions& options);

// Sizes of the buffers LshAttentionForwardArgs::places (2 N H R L integers) and ::sums (3 N H L
// floats), which the forward writes and the backward reads.
size_t LshAttentionPlaces(const LshAttentionShape& shape);
size_t LshAttentionSums(const LshAttentionShape& shape);

struct LshAttentionForwardArgs {
  Strided<const float> q;         // [N, L, H, D]
  Strided<const float> v;         // [N, L, H, M]
  Strided<float> out;             // [N, L, H, M]
  const float* planes = nullptr;  // [R, D, buckets / 2], dense; not read if buckets = 1
  // Optional, [N]: number of positions of each sequence, clamped to 0 .. L.
  const int64_t* lengths = nullptr;
  // Written: the position at each place, [N, H, R, L], then each position's code,
  // 2 bucket_r(i) + chunk_r(i), [N, H, L, R].
  int32_t* places = nullptr;
  float* sums = nullptr;  // written: LshAttentionSums() floats for the backward
};

// Runs in parallel over the N x H heads if there are enough to occupy the slots; otherwise over
// blocks of positions, one round after the other.
void LshAttentionForward(const LshAttentionShape& shape, const LshAttentionOptions& options,
                         const LshAttentionForwardArgs& args, Scratch scratch,
                         ParallelFor parallel_for);

struct LshAttentionBackwardArgs {
  Strided<const float> q, v;           // the forward's inputs
  Strided<const float> out, grad_out;  // [N, L, H, M]
  const int64_t* lengths = nullptr;    // the forward's
  const int32_t* places = nullptr;     // the forward's
  const float* sums = nullptr;         // the forward's
  float* delta = nullptr;              // [N, H, L], written: out_i . grad_out_i
  Strided<float> grad_q, grad_v;       // written
};

// Gradients of sum(out * grad_out). The p_ij are recomputed; the sets S(i) are treated as
// constants.
//
//   ds_ij    = p_ij (v_j . grad_out_i - delta_i) / sqrt(D)
//   grad_v_j = sum_i p_ij grad_out_i             (p_ii = 1 if S(i) is empty)
//   grad_q_i = sum_j ds_ij k_j + (g_i - k_i (k_i . g_i)) / |q_i|,   g_j = sum_i ds_ij q_i
//
// If |q_i| < 1e-12, g_i / 1e-12 replaces the second term of grad_q_i. Runs in parallel like the
// forward if chunk <= 96, otherwise only over the N x H heads.
void LshAttentionBackward(const LshAttentionShape& shape, const LshAttentionOptions& options,
                          const LshAttentionBackwardArgs& args, Scratch scratch,
                          ParallelFor parallel_for);

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LSH_ATTENTION_H_
