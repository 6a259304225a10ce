// Reformer's LSH attention (Kitaev, Kaiser and Levskaya 2020) as differentiable libtorch
// operations. LshAttention() computes the published form, over kernels/lsh_attention.h;
// SimpleLshAttention() computes the form of fast-transformers. The keys are the normalized queries:
// k = q / |q|. Each round of hashing puts the positions into buckets, sorts them by bucket, cuts
// the sorted sequence into chunks, and lets each position attend to its own chunk and the previous
// chunk; chunk 0 has no previous chunk.
//
//   LshOptions options{.buckets = 64, .chunk = 32, .causal = true};
//   torch::Tensor planes = torch::randn({rounds, D, options.buckets / 2});
//   torch::Tensor out = ops::LshAttention(q, v, lengths, planes, options);
#ifndef LINNET_OPS_LSH_ATTENTION_H_
#define LINNET_OPS_LSH_ATTENTION_H_

#include <torch/types.h>

namespace linnet::ops {

struct LshOptions {
  int64_t buckets = 64;  // 1, or twice the number of hash planes of a round
  int64_t chunk = 32;    // positions per chunk
  bool causal = false;
};

// The bucket of each query: q [N, L, H, D], planes [rounds, D, buckets / 2] ->
// int64 [rounds, N, H, L]. It is the argmax of [q R; -q R] for the round's planes R
// [D, buckets / 2], or 0 if there is only one bucket.
torch::Tensor LshBuckets(const torch::Tensor& q, const torch::Tensor& planes, int64_t buckets);

// LSH attention as published. q [N, L, H, D], v [N, L, H, M], planes as above -> [N, L, H, M]. In a
// round, position i attends to the keys j != i (only j < i if causal) that are in its own bucket
// and in its own or the previous chunk. It attends to itself only if no round has such a key.
// Each round is weighted by its share of the softmax's denominator. In round r, let lse_r,i be the
// logsumexp of the scores of position i, and out_r,i its output:
//
//   out_i = sum_r exp(lse_r,i - lse_i) out_r,i,   lse_i = logsumexp_r lse_r,i
//
// The score of a key is lowered by the log of the number of rounds in which i attends to the key,
// so that the key counts once even if i attends to it in several rounds. `lengths` is int64 [N] or
// undefined: positions from lengths[n] on are sorted to the end and masked as keys, and their
// outputs are 0. Any L and strides. In fp32 on the CPU, runs the fused kernel, which does not copy
// q and v for each round and has first derivatives only; elsewhere the plain form (unfused libtorch
// operations). `planes` get no gradient. Throws InputError on shapes, types or devices that do
// not match.
torch::Tensor LshAttention(const torch::Tensor& q, const torch::Tensor& v,
                           const torch::Tensor& lengths, const torch::Tensor& planes,
                           const LshOptions& options);

// The positions in sorted order, by bucket and then by position: buckets [rounds, N, H, L] -> int64
// of the same shape.
torch::Tensor LshOrder(const torch::Tensor& buckets);

// The variant of fast-transformers: buckets only determine the order, a position attends to all
// keys of its own and the previous chunk, and the rounds' outputs are averaged. `order` is the
// result of LshOrder(). With `self_last`, a position attends to itself only in rounds in which it
// has no other key. Positions from lengths[n] on are masked as keys, and their outputs are 0. Any
// L.
torch::Tensor SimpleLshAttention(const torch::Tensor& q, const torch::Tensor& v,
                                 const torch::Tensor& lengths, const torch::Tensor& order,
                                 const LshOptions& options, bool self_last = false);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LSH_ATTENTION_H_
