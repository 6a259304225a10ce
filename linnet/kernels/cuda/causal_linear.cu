#include "linnet/kernels/cuda/causal_linear.h"

#include "linnet/kernels/cuda/causal_linear_plan.h"
#include "linnet/kernels/cuda/causal_product_tile.h"
#include "linnet/kernels/cuda/launch.cuh"
#include "linnet/kernels/cuda/tile_device.cuh"

namespace linnet::kernels::cuda {
namespace {

template <class Sizes, typename T>
__global__ void __launch_bounds__(Sizes::kThreads)
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
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy of a state");
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
  if (!packed) {
    // Sums of segments cost half of what they speed up, so they have to fill a GPU that is half
    // empty.
    constexpr size_t kLeast = 512;  // positions
    const size_t blocks = std::max<size_t>(1, shape.batch * shape.heads);
    size_t wanted = segments;
    if (segments == 0) {
      wanted = 2 * blocks > static_cast<size_t>(processors)
                   ? 1
                   : 2 * static_cast<size_t>(processors) / blocks;
      wanted = std::min(wanted, shape.length / kLeast);
    }
    const size_t units = (shape.length + kMostChunk - 1) / kMostChunk;
    wanted = std::clamp<size_t>(wanted, 1, std::max<size_t>(1, units));
    const size_t each = std::max<size_t>(1, (units + wanted - 1) / wanted);
    plan.segment_length = static_cast<unsigned>(each * kMostChunk);
    plan.segments = std::max(1u, static_cast<unsigned>((units + each - 1) / each));
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
