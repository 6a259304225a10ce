// linnet bench causal-linear --device cuda, in a build without it.
#include "linnet/base/error.h"
#include "linnet/cli/bench_causal_linear.h"
#include "linnet/runtime/cuda/cuda_engine.h"

namespace linnet::cli {

void RunCausalLinearOnGpu(const CausalLinearBench&) {
  throw InputError("--device cuda: ", kNoCuda);
}

}  // namespace linnet::cli
