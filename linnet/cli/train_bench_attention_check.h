// Attention and its gradients against plain sums in double precision, at sampled rows: what `linnet
// bench attention` holds a result against before it is reported.
//
//   const double off = SoftmaxError(problem, result);     // relative; 1e-6 or so where all is well
#ifndef LINNET_CLI_TRAIN_BENCH_ATTENTION_CHECK_H_
#define LINNET_CLI_TRAIN_BENCH_ATTENTION_CHECK_H_

#include <torch/types.h>

#include <cstdint>

namespace linnet::cli {

// fp32, [B, N, H, D].
struct AttentionProblem {
  torch::Tensor q, k, v, grad_out;
  bool causal = true;
};
struct AttentionResult {
  torch::Tensor out, grad_q, grad_k, grad_v;  // without grad_k where the keys are the queries
};

// The largest difference of each tensor over its own largest magnitude, and the largest of these,
// of the first head of the first sequence and the last of the last; NaN where there is one.
// Softmax: all rows of out, gradients of some. Linear attention: the same; without `causal`, all.
double SoftmaxError(const AttentionProblem& problem, const AttentionResult& result);
double LinearError(const AttentionProblem& problem, const AttentionResult& result);

// Reformer's, as published: softmax over the union of what the rounds show; some rows of all.
struct LshRounds {
  torch::Tensor planes;  // [rounds, D, buckets / 2]
  int64_t buckets = 64, chunk = 32;
};
// Before it is computed: draws anew what lies so near between two buckets, in the heads that are
// checked, that rounding would decide.
void SeparateBuckets(const AttentionProblem& problem, const LshRounds& rounds);
double LshError(const AttentionProblem& problem, const AttentionResult& result,
                const LshRounds& rounds);

}  // namespace linnet::cli

#endif  // LINNET_CLI_TRAIN_BENCH_ATTENTION_CHECK_H_
