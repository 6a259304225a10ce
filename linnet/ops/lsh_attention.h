// Reformer's LSH attention (Kitaev, Kaiser and Levskaya 2020) as differentiable libtorch
// operations: as published, over kernels/lsh_attention.h, and as in fast-transformers. Queries and
// keys are shared: k = q / |q|. A round hashes them into buckets, sorts the positions by bucket,
// cuts the sorted sequence into chunks, and lets each position attend to its own chunk and the one
// before it; chunk 0 has none before it.
//
//   LshOptions options{.buckets = 64, .chunk = 32, .causal = true};
//   torch::Tensor planes = torch::randn({rounds, D, options.buckets / 2});
//   torch::Tensor out = ops::LshAttention(q, v, lengths, planes, options);
#ifndef LINNET_OPS_LSH_ATTENTION_H_
#define LINNET_OPS_LSH_ATTENTION_H_

#include <torch/types.h>

namespace linnet::ops {

struct LshOptions {
  int64_t buckets = 64;  // 1, or twice the number of planes
  int64_t chunk = 32;    // positions per chunk
  bool causal = false;
};

// Buckets of q [N, L, H, D]: argmax of [q R; -q R] for each round's planes R [D, buckets / 2];
// planes [rounds, D, buckets / 2] -> int64 [rounds, N, H, L]. All zero if there is one bucket.
torch::Tensor LshBuckets(const torch::Tensor& q, const torch::Tensor& planes, int64_t buckets);

// LSH attention as published. q [N, L, H, D], v [N, L, H, M], planes as above -> [N, L, H, M]. In a
// round, position i attends to the keys j != i of its own bucket within the two chunks (only j < i
// if causal); to itself only if there is no other key. Rounds are combined by their normalizers:
// with lse_r,i the logsumexp of the scores of position i in round r,
//
//   out_i = sum_r exp(lse_r,i - lse_i) out_r,i,   lse_i = logsumexp_r lse_r,i,
//
// with each score lowered by the log of the number of rounds in which i attends to the same key, so
// that a key counts once however often it is found. Positions from lengths[n] on (int64 [N], or
// undefined) are sorted to the end, are masked as keys, and have outputs of 0. Any L and strides.
// Runs the fused kernel in fp32 on the CPU, which makes no copies of q and v per round; elsewhere
// the plain form. planes get no gradient. The fused form is differentiable once. Throws InputError
// on shapes that do not match.
torch::Tensor LshAttention(const torch::Tensor& q, const torch::Tensor& v,
                           const torch::Tensor& lengths, const torch::Tensor& planes,
                           const LshOptions& options);

// A round's sorted order: by bucket, then by position. buckets [rounds, N, H, L] -> int64 of the
// same shape, the position at each place.
torch::Tensor LshOrder(const torch::Tensor& buckets);

// The variant of fast-transformers: buckets only sort, a position attends to all keys of the two
// chunks, and rounds are averaged. `order` is the result of LshOrder(). With `self_last`, a
// position attends to itself only if there is no other key. Any L; `lengths` as above.
torch::Tensor SimpleLshAttention(const torch::Tensor& q, const torch::Tensor& v,
                                 const torch::Tensor& lengths, const torch::Tensor& order,
                                 const LshOptions& options, bool self_last = false);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LSH_ATTENTION_H_
