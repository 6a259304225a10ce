#include "linnet/kernels/cuda/causal_linear.h"

#include "linnet/kernels/cuda/causal_linear_plan.h"
#include "linnet/kernels/cuda/causal_product_tile.h"
#include "linnet/kernels/cuda/launch.cuh"
#include "linnet/kernels/cuda/tile_device.cuh"

namespace linnet::kernels::cuda {
namespace {

template <class Sizes, typename T>
__global__ void __launch_bounds__(Sizes::kThreads)
    CausalProductKernel(const __grid_constant__ CausalProductArgs<T> args, Product product) {
  DeviceTile tile;
  CausalProductTile<Sizes>(tile, args, product);
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
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy of a state");
  }
  void Zero(void* to, size_t bytes) {
    Check(cudaMemsetAsync(to, 0, bytes, stream_), "clearing the flags of blocks");
  }
  template <class Sizes, typename T>
  void Run(unsigned blocks, const CausalProductArgs<T>& args, Product product) {
    Launch("causal linear attention", CausalProductKernel<Sizes, T>, dim3(blocks), Sizes::kThreads,
           Sizes::kBytes, stream_, args, product);
  }
  template <typename T>
  void RunDelta(const std::array<unsigned, 3>& blocks, unsigned threads,
                const CausalProductArgs<T>& args, float* to) {
    Launch("products of results and gradients", DeltaKernel<T>,
           dim3(blocks[0], blocks[1], blocks[2]), threads, 0, stream_, args, to);
  }

 private:
  cudaStream_t stream_;
};

}  // namespace

bool SupportsCausalLinear(const CausalLinearShape& shape) {
  const auto fits = [](size_t n) { return n > 0 && n <= 128 && n % 8 == 0; };
  return fits(shape.dim) && fits(shape.value_dim);
}

CausalLinearPlan PlanCausalLinear(const CausalLinearShape& shape,
                                  const CausalLinearOptions& options, int processors, bool packed,
                                  unsigned segments) {
  CausalLinearPlan plan{.shape = shape, .options = options, .packed = packed};
  const size_t chunks = (shape.length + kChunk - 1) / kChunk;
  if (!packed) {
    // A pass over the keys and values costs half of what it speeds up, so it has to fill a GPU that
    // is half empty.
    constexpr size_t kLeastChunks = 4;
    const size_t blocks = std::max<size_t>(1, shape.batch * shape.heads);
    size_t wanted = segments;
    if (segments == 0) {
      wanted = 2 * blocks > static_cast<size_t>(processors)
                   ? 1
                   : 2 * static_cast<size_t>(processors) / blocks;
      wanted = std::min(wanted, chunks / kLeastChunks);
    }
    wanted = std::clamp<size_t>(wanted, 1, std::max<size_t>(1, chunks));
    plan.segment_chunks = static_cast<unsigned>((chunks + wanted - 1) / wanted);
    plan.segments =
        plan.segment_chunks == 0
            ? 1
            : static_cast<unsigned>((chunks + plan.segment_chunks - 1) / plan.segment_chunks);
  }
  plan.kept = ProductRows(shape, packed);
  plan.scratch = ScratchPartsOf(plan).floats;
  return plan;
}

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
