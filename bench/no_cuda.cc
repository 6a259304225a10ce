// The benchmarks of kernels on a GPU, in a build without CUDA.
#include "bench/causal_linear.h"
#include "bench/scan.h"
#include "linnet/error.h"
#include "linnet/runtime/cuda/cuda_engine.h"

namespace linnet::bench {

void RunCausalLinearOnGpu(const CausalLinearBench&) {
  throw InputError("--device cuda: ", kNoCuda);
}

void RunScanOnGpu(const ScanBench&) { throw InputError("--device cuda: ", kNoCuda); }

}  // namespace linnet::bench
