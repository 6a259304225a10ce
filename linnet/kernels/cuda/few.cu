#include "linnet/kernels/cuda/few.h"

#include "linnet/kernels/cuda/few_sizes.h"
#include "linnet/kernels/cuda/few_tile.h"
#include "linnet/kernels/cuda/launch.cuh"
#include "linnet/kernels/cuda/tile_device.cuh"

// Input of scripts/cuda-report, one kernel a line: kernel | threads of a block | bytes of dynamic
// shared memory | default. The last field is optional: the script fails if a kernel with this field
// does not fit or spills registers.
// cuda-report: FewAttendKernel<BFloat16, 1u> | kFewThreads | FewAttendShared<BFloat16>(32, 32, 32, 256) | default
// cuda-report: FewFeedForwardKernel<BFloat16> | kFewThreads | FewFeedForwardShared<BFloat16>(64, 256) | default
// cuda-report: FewHeadKernel<BFloat16> | kFewThreads | FewHeadShared(30, 256) | default
namespace linnet::kernels::cuda {
namespace {

// Waits until the previous kernel has ended, then lets the next kernel begin.
struct WaitForPrevious {
  __device__ __forceinline__ void operator()() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  }
};

template <typename T, unsigned kFeatureBlocks>
__global__ void __launch_bounds__(kFewThreads, 1) FewAttendKernel(FewAttendArgs<T> args) {
  DeviceTile tile;
  FewAttendTile<T, kFeatureBlocks>(tile, args, WaitForPrevious());
}
template <typename T>
__global__ void __launch_bounds__(kFewThreads, 1) FewFeedForwardKernel(FewFeedForwardArgs<T> args) {
  DeviceTile tile;
  FewFeedForwardTile<T>(tile, args, WaitForPrevious());
}
template <typename T>
__global__ void __launch_bounds__(kFewThreads, 1) FewHeadKernel(FewHeadArgs<T> args) {
  DeviceTile tile;
  FewHeadTile<T>(tile, args, WaitForPrevious());
}

// Whether a kernel may begin before the previous one ends (sm_90 and later).
bool Overlaps() {
  static const bool overlaps = [] {
    int device = 0, major = 0;
    Check(cudaGetDevice(&device), "choosing a GPU");
    Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "reading the GPU's properties");
    return major >= 9;
  }();
  return overlaps;
}

template <typename Args>
void LaunchFew(const char* name, void (*kernel)(Args), dim3 blocks, unsigned shared, Stream stream,
               const Args& args) {
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared)),
        name);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = dim3(kFewThreads);
  config.dynamicSmemBytes = shared, config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap, config.numAttrs = Overlaps() ? 1 : 0;
  Check(cudaLaunchKernelEx(&config, kernel, args), name);
}

}  // namespace

template <typename T>
void StartFewAttend(const FewAttendArgs<T>& args, Stream stream) {
  const DecodeStepArgs& step = args.step;
  const unsigned padded = PaddedWidth(step.dim);
  const auto kernel = padded == kStepPad       ? FewAttendKernel<T, 1>
                      : padded == 2 * kStepPad ? FewAttendKernel<T, 2>
                      : padded == 3 * kStepPad ? FewAttendKernel<T, 3>
                                               : FewAttendKernel<T, 4>;
  LaunchFew("attention for few sequences", kernel, dim3(step.heads, args.input.batch),
            FewAttendShared<T>(step.dim, step.value_dim, padded, args.input.d_model), stream, args);
}

template <typename T>
void StartFewFeedForward(const FewFeedForwardArgs<T>& args, Stream stream) {
  LaunchFew("feed-forward for few sequences", FewFeedForwardKernel<T>,
            dim3((args.d_ff + args.slice - 1) / args.slice, args.input.batch),
            FewFeedForwardShared<T>(args.slice, args.input.d_model), stream, args);
}

template <typename T>
void StartFewHead(const FewHeadArgs<T>& args, Stream stream) {
  LaunchFew("head for few sequences", FewHeadKernel<T>, dim3(1, args.input.batch),
            FewHeadShared(args.outputs, args.input.d_model), stream, args);
}

template void StartFewAttend<float>(const FewAttendArgs<float>&, Stream);
template void StartFewAttend<BFloat16>(const FewAttendArgs<BFloat16>&, Stream);
template void StartFewFeedForward<float>(const FewFeedForwardArgs<float>&, Stream);
template void StartFewFeedForward<BFloat16>(const FewFeedForwardArgs<BFloat16>&, Stream);
template void StartFewHead<float>(const FewHeadArgs<float>&, Stream);
template void StartFewHead<BFloat16>(const FewHeadArgs<BFloat16>&, Stream);

}  // namespace linnet::kernels::cuda
