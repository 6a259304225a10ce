// Verifies attention and its gradients against a double-precision reference. `linnet bench
// attention` does so before it reports a time.
//
//   const double off = SoftmaxError(problem, result);     // relative; about 1e-6 if correct
#ifndef BENCH_TORCH_ATTENTION_CHECK_H_
#define BENCH_TORCH_ATTENTION_CHECK_H_

#include <torch/types.h>

#include <cstdint>

namespace linnet::bench {

// All tensors are fp32, [batch, positions, heads, dim].
struct AttentionProblem {
  torch::Tensor q, k, v, grad_out;
  bool causal = true;
};
struct AttentionResult {
  torch::Tensor out, grad_q, grad_k, grad_v;  // no grad_k if the queries are also the keys
};

// The relative error (max |difference| / max |expected|) of the worst tensor. Two heads are
// compared: the first of the first sequence and the last of the last sequence (beyond 16,384
// positions only the latter, except for LinearError()). NaN if any value is NaN. The outputs are
// compared at all positions, the gradients at sampled positions; without `causal`, LinearError()
// compares the gradients at all positions, too.
double SoftmaxError(const AttentionProblem& problem, const AttentionResult& result);
double Polynomial2Error(const AttentionProblem& problem, const AttentionResult& result);
double LinearError(const AttentionProblem& problem, const AttentionResult& result);

// The hashing of Reformer attention.
struct LshRounds {
  torch::Tensor planes;              // random directions, [rounds, dim, buckets / 2]
  int64_t buckets = 64, chunk = 32;  // chunk: in positions
};
// In the heads that LshError() checks, redraws each query that lies so close to a bucket boundary
// that rounding would decide its bucket. Call it before the computation.
void SeparateBuckets(const AttentionProblem& problem, const LshRounds& rounds);
// As SoftmaxError(), for Reformer attention as published: a softmax over the union of the keys that
// are visible in any round. Outputs and gradients are compared at sampled positions.
double LshError(const AttentionProblem& problem, const AttentionResult& result,
                const LshRounds& rounds);

}  // namespace linnet::bench

#endif  // BENCH_TORCH_ATTENTION_CHECK_H_
