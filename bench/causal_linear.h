// Shared parts of `linnet bench causal-linear` on the CPU and on a GPU: options, the forms that are
// timed, and the check against the reference.
#ifndef BENCH_CAUSAL_LINEAR_H_
#define BENCH_CAUSAL_LINEAR_H_

#include <cstddef>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "linnet/kernels/causal_linear.h"

namespace linnet::bench {

struct CausalLinearBench : BenchOptions {
  size_t batch = 0, heads = 8, dim = 32, value_dim = 0;  // batch 0: by device; value_dim 0: dim
  size_t min_n = 512, max_n = 65536;
  size_t segments = 0;  // on a GPU: concurrent parts of a sequence; 0: automatic
  std::string layout = "head", precision = "f32", device = "cpu";
};

// Two forms are timed: the product alone, and the product fused with feature map and normalizer.
struct CausalLinearForm {
  const char* name;
  kernels::CausalLinearOptions options;
};
inline constexpr CausalLinearForm kCausalLinearForms[] = {
    {"bare", {.feature_map = kernels::FeatureMap::kIdentity, .normalize = false}},
    {"fused", {}},
};

// Inputs and results of one head, row-major: q, k and their gradients [length, dim], all others
// [length, value_dim].
struct CausalLinearHead {
  std::vector<double> q, k, v, grad_out, out, grad_q, grad_k, grad_v;
};

// Compares all rows of the output and some rows of the gradients with the reference. Throws
// RuntimeError unless they agree.
void CheckCausalLinear(const kernels::CausalLinearShape& shape, const CausalLinearForm& form,
                       bool bf16, const std::vector<CausalLinearHead>& heads);

// Operations, two per multiply-add. Per position and head, the forward pass takes 2 D M
// multiply-adds (D = dim, M = value_dim), to update the state and to read it; forward and backward
// together, with `backward`, take 7 D M (eqs. 13-15).
inline double CausalLinearFlops(const kernels::CausalLinearShape& shape, bool backward) {
  return (backward ? 14.0 : 4.0) * static_cast<double>(shape.dim * shape.value_dim) *
         static_cast<double>(shape.batch * shape.length * shape.heads);
}

// Runs the benchmark on a GPU (causal_linear_cuda.cc). Throws InputError in a build without CUDA.
void RunCausalLinearOnGpu(const CausalLinearBench& options);

}  // namespace linnet::bench

#endif  // BENCH_CAUSAL_LINEAR_H_
