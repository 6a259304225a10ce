// Reformer's attention (Kitaev, Kaiser and Levskaya 2020) as differentiable libtorch operations: as
// published, over kernels/lsh_attention.h, and as the reference library has it. Queries and keys are
// one: k = q / |q|. A round hashes them into buckets, sorts the positions by bucket, cuts the sorted
// sequence into chunks, and lets each position see those of its own chunk and of the one before it;
// chunk 0 has none before it.
//
//   LshOptions options{.buckets = 64, .chunk = 32, .causal = true};
//   torch::Tensor planes = torch::randn({rounds, D, options.buckets / 2});
//   torch::Tensor out = ops::LshAttention(q, v, lengths, planes, options);
#ifndef LINNET_OPS_LSH_ATTENTION_H_
#define LINNET_OPS_LSH_ATTENTION_H_

#include <torch/types.h>

namespace linnet::ops {

struct LshOptions {
  int64_t buckets = 64;  // 1, or 2 x the planes
  int64_t chunk = 32;
  bool causal = false;
};

// Buckets of q [N, L, H, D]: argmax of [q R; -q R] for each round's planes R [D, buckets / 2]; planes
// [rounds, D, buckets / 2] -> int64 [rounds, N, H, L]. All zero where there is one bucket.
torch::Tensor LshBuckets(const torch::Tensor& q, const torch::Tensor& planes, int64_t buckets);

// As published. q [N, L, H, D], v [N, L, H, M], planes as above -> [N, L, H, M]. In a round, position
// i sees the keys j != i of its own bucket within the two chunks (not the later ones, where causal);
// itself only where it sees nothing else. Rounds are combined by what they have seen,
//
//   out_i = sum_r exp(lse_r,i - lse_i) out_r,i,   lse_i = logsumexp_r lse_r,i,
//
// each score lowered by the logarithm of how many rounds show the same key to i, so that a key counts
// once however often it is found. Positions at lengths[n] and behind (int64 [N], or undefined) are
// sorted to the end, seen by none, and get zeros. Any L and strides. In fp32 on the CPU the fused
// kernel, which copies nothing for the rounds; elsewhere its plain twin. planes take no gradient. Can
// be differentiated once. Throws InputError on shapes that do not fit.
torch::Tensor LshAttention(const torch::Tensor& q, const torch::Tensor& v,
                           const torch::Tensor& lengths, const torch::Tensor& planes,
                           const LshOptions& options);

// The order that a round sorts positions into: by bucket, and within one by position; buckets
// [rounds, N, H, L] -> int64 of the same shape, the position at each place.
torch::Tensor LshOrder(const torch::Tensor& buckets);

// The reference library's variant: buckets only sort, a position sees everything in the two chunks,
// rounds are averaged. `order` is LshOrder()'s; `self_last` hides a position from itself where it
// sees another. Any L, and `lengths` as above.
torch::Tensor SimpleLshAttention(const torch::Tensor& q, const torch::Tensor& v,
                                 const torch::Tensor& lengths, const torch::Tensor& order,
                                 const LshOptions& options, bool self_last = false);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LSH_ATTENTION_H_
