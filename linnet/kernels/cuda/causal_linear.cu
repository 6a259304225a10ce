#include "linnet/kernels/cuda/causal_linear.h"

#include "linnet/kernels/cuda/causal_linear_plan.h"
#include "linnet/kernels/cuda/causal_product_tile.h"
#include "linnet/kernels/cuda/launch.cuh"
#include "linnet/kernels/cuda/tile_device.cuh"

namespace linnet::kernels::cuda {
namespace {

template <class Sizes, typename T>
__global__ void __launch_bounds__(Sizes::kThreads, 1)
    CausalProductKernel(const __grid_constant__ CausalProductArgs<T> args) {
  DeviceTile tile;
  CausalProductTile<Sizes>(tile, args);
}

template <typename T>
__global__ void DeltaKernel(const __grid_constant__ CausalProductArgs<T> args, float* delta) {
  DeviceTile tile;
  DeltaTile(tile, args, delta);
}

class StreamMachine {
 public:
  explicit StreamMachine(Stream stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  void Copy(void* to, const void* from, size_t bytes) {
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying a state");
  }
  void Zero(void* to, size_t bytes) {
    Check(cudaMemsetAsync(to, 0, bytes, stream_), "clearing the flags of blocks");
  }
  template <class Sizes, typename T>
  void Run(unsigned blocks, const CausalProductArgs<T>& args) {
    Launch("causal linear attention", CausalProductKernel<Sizes, T>, dim3(blocks), Sizes::kThreads,
           Sizes::kBytes, stream_, args);
  }
  template <typename T>
  void RunDelta(const std::array<unsigned, 3>& blocks, unsigned threads,
                const CausalProductArgs<T>& args, float* to) {
    Launch("dot products of outputs and gradients", DeltaKernel<T>,
           dim3(blocks[0], blocks[1], blocks[2]), threads, 0, stream_, args, to);
  }

 private:
  cudaStream_t stream_;
};

}  // namespace

template <typename T>
void CausalLinearForward(const CausalLinearPlan& plan, const CausalLinearForwardArgsOf<T>& args,
                         float* scratch, Stream stream) {
  StreamMachine machine(stream);
  RunForward(machine, plan, args, scratch);
}

template <typename T>
void CausalLinearBackward(const CausalLinearPlan& plan, const CausalLinearBackwardArgsOf<T>& args,
                          float* scratch, Stream stream) {
  StreamMachine machine(stream);
  RunBackward(machine, plan, args, scratch);
}

template void CausalLinearForward(const CausalLinearPlan&, const CausalLinearForwardArgsOf<float>&,
                                  float*, Stream);
template void CausalLinearForward(const CausalLinearPlan&,
                                  const CausalLinearForwardArgsOf<BFloat16>&, float*, Stream);
template void CausalLinearBackward(const CausalLinearPlan&,
                                   const CausalLinearBackwardArgsOf<float>&, float*, Stream);
template void CausalLinearBackward(const CausalLinearPlan&,
                                   const CausalLinearBackwardArgsOf<BFloat16>&, float*, Stream);

}  // namespace linnet::kernels::cuda

// Input of scripts/cuda-report, one kernel a line: kernel | threads of a block | bytes of dynamic
// shared memory | default. The last field is optional: the script fails if a kernel with this field
// does not fit or spills registers.
// clang-format off
// cuda-report: CausalProductKernel<ProductSizes<16, 1, 0>, BFloat16> | ProductSizes<16, 1, Product::kForward>::kThreads | ProductSizes<16, 1, Product::kForward>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<16, 2, 0>, float> | ProductSizes<16, 2, Product::kForward>::kThreads | ProductSizes<16, 2, Product::kForward>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<16, 1, 1>, BFloat16> | ProductSizes<16, 1, Product::kGradQ>::kThreads | ProductSizes<16, 1, Product::kGradQ>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<16, 2, 1>, float> | ProductSizes<16, 2, Product::kGradQ>::kThreads | ProductSizes<16, 2, Product::kGradQ>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<16, 1, 2>, BFloat16> | ProductSizes<16, 1, Product::kGradK>::kThreads | ProductSizes<16, 1, Product::kGradK>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<16, 2, 2>, float> | ProductSizes<16, 2, Product::kGradK>::kThreads | ProductSizes<16, 2, Product::kGradK>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<16, 1, 3>, BFloat16> | ProductSizes<16, 1, Product::kGradV>::kThreads | ProductSizes<16, 1, Product::kGradV>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<16, 2, 3>, float> | ProductSizes<16, 2, Product::kGradV>::kThreads | ProductSizes<16, 2, Product::kGradV>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<32, 1, 0>, BFloat16> | ProductSizes<32, 1, Product::kForward>::kThreads | ProductSizes<32, 1, Product::kForward>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<32, 2, 0>, float> | ProductSizes<32, 2, Product::kForward>::kThreads | ProductSizes<32, 2, Product::kForward>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<32, 1, 1>, BFloat16> | ProductSizes<32, 1, Product::kGradQ>::kThreads | ProductSizes<32, 1, Product::kGradQ>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<32, 2, 1>, float> | ProductSizes<32, 2, Product::kGradQ>::kThreads | ProductSizes<32, 2, Product::kGradQ>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<32, 1, 2>, BFloat16> | ProductSizes<32, 1, Product::kGradK>::kThreads | ProductSizes<32, 1, Product::kGradK>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<32, 2, 2>, float> | ProductSizes<32, 2, Product::kGradK>::kThreads | ProductSizes<32, 2, Product::kGradK>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<32, 1, 3>, BFloat16> | ProductSizes<32, 1, Product::kGradV>::kThreads | ProductSizes<32, 1, Product::kGradV>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<32, 2, 3>, float> | ProductSizes<32, 2, Product::kGradV>::kThreads | ProductSizes<32, 2, Product::kGradV>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<64, 1, 0>, BFloat16> | ProductSizes<64, 1, Product::kForward>::kThreads | ProductSizes<64, 1, Product::kForward>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<64, 2, 0>, float> | ProductSizes<64, 2, Product::kForward>::kThreads | ProductSizes<64, 2, Product::kForward>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<64, 1, 1>, BFloat16> | ProductSizes<64, 1, Product::kGradQ>::kThreads | ProductSizes<64, 1, Product::kGradQ>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<64, 2, 1>, float> | ProductSizes<64, 2, Product::kGradQ>::kThreads | ProductSizes<64, 2, Product::kGradQ>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<64, 1, 2>, BFloat16> | ProductSizes<64, 1, Product::kGradK>::kThreads | ProductSizes<64, 1, Product::kGradK>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<64, 2, 2>, float> | ProductSizes<64, 2, Product::kGradK>::kThreads | ProductSizes<64, 2, Product::kGradK>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<64, 1, 3>, BFloat16> | ProductSizes<64, 1, Product::kGradV>::kThreads | ProductSizes<64, 1, Product::kGradV>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<64, 2, 3>, float> | ProductSizes<64, 2, Product::kGradV>::kThreads | ProductSizes<64, 2, Product::kGradV>::kBytes | default
// cuda-report: CausalProductKernel<ProductSizes<128, 1, 0>, BFloat16> | ProductSizes<128, 1, Product::kForward>::kThreads | ProductSizes<128, 1, Product::kForward>::kBytes
// cuda-report: CausalProductKernel<ProductSizes<128, 2, 0>, float> | ProductSizes<128, 2, Product::kForward>::kThreads | ProductSizes<128, 2, Product::kForward>::kBytes
// cuda-report: CausalProductKernel<ProductSizes<128, 1, 1>, BFloat16> | ProductSizes<128, 1, Product::kGradQ>::kThreads | ProductSizes<128, 1, Product::kGradQ>::kBytes
// cuda-report: CausalProductKernel<ProductSizes<128, 2, 1>, float> | ProductSizes<128, 2, Product::kGradQ>::kThreads | ProductSizes<128, 2, Product::kGradQ>::kBytes
// cuda-report: CausalProductKernel<ProductSizes<128, 1, 2>, BFloat16> | ProductSizes<128, 1, Product::kGradK>::kThreads | ProductSizes<128, 1, Product::kGradK>::kBytes
// cuda-report: CausalProductKernel<ProductSizes<128, 2, 2>, float> | ProductSizes<128, 2, Product::kGradK>::kThreads | ProductSizes<128, 2, Product::kGradK>::kBytes
// cuda-report: CausalProductKernel<ProductSizes<128, 1, 3>, BFloat16> | ProductSizes<128, 1, Product::kGradV>::kThreads | ProductSizes<128, 1, Product::kGradV>::kBytes
// cuda-report: CausalProductKernel<ProductSizes<128, 2, 3>, float> | ProductSizes<128, 2, Product::kGradV>::kThreads | ProductSizes<128, 2, Product::kGradV>::kBytes
// cuda-report: DeltaKernel<BFloat16> | 256 | 0 | default
// cuda-report: DeltaKernel<float> | 256 | 0 | default
