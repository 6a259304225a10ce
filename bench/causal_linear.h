// Code that `linnet bench causal-linear` shares between the CPU and a GPU: the options, the timed
// forms of the operation, and the check against the reference.
#ifndef BENCH_CAUSAL_LINEAR_H_
#define BENCH_CAUSAL_LINEAR_H_

#include <cstddef>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "linnet/kernels/causal_linear.h"

namespace linnet::bench {

struct CausalLinearBench : BenchOptions {
  // batch = 0 means 1, or 16 on a GPU; value_dim = 0 means dim.
  size_t batch = 0, heads = 8, dim = 32, value_dim = 0;
  size_t min_n = 512, max_n = 65536;
  size_t segments = 0;  // on a GPU: concurrent parts of a sequence; 0: automatic
  std::string layout = "head", precision = "f32", device = "cpu";
};

// A form of the operation. Two are timed: "bare", the product alone, and "fused", the product with
// feature map and denominator.
struct CausalLinearForm {
  const char* name;
  kernels::CausalLinearOptions options;
};
inline constexpr CausalLinearForm kCausalLinearForms[] = {
    {"bare", {.feature_map = kernels::FeatureMap::kIdentity, .normalize = false}},
    {"fused", {}},
};

// Inputs and results of one head, row-major. q, k, grad_q and grad_k are [length, dim], all others
// [length, value_dim].
struct CausalLinearHead {
  std::vector<double> q, k, v, grad_out, out, grad_q, grad_k, grad_v;
};

// For each head, compares all rows of the output and some rows of the gradients with the reference.
// Throws RuntimeError if a relative error exceeds 1e-4 (bf16: 0.02).
void CheckCausalLinear(const kernels::CausalLinearShape& shape, const CausalLinearForm& form,
                       bool bf16, const std::vector<CausalLinearHead>& heads);

// Operations of the forward pass or, with `backward`, of forward and backward together; a
// multiply-add counts as two. With D = dim and M = value_dim, the forward pass takes 2 D M
// multiply-adds per position and head: D M to update the state, D M to read it. Both passes
// together take 7 D M (equations 13 to 15 of Katharopoulos et al. 2020).
inline double CausalLinearFlops(const kernels::CausalLinearShape& shape, bool backward) {
  return (backward ? 14.0 : 4.0) * static_cast<double>(shape.dim * shape.value_dim) *
         static_cast<double>(shape.batch * shape.length * shape.heads);
}

// Runs the benchmark on a GPU (causal_linear_cuda.cc). Throws InputError in a build without CUDA.
void RunCausalLinearOnGpu(const CausalLinearBench& options);

}  // namespace linnet::bench

#endif  // BENCH_CAUSAL_LINEAR_H_
