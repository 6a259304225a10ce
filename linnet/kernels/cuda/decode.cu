#include "linnet/kernels/cuda/decode.h"

#include "linnet/kernels/cuda/launch.cuh"
#include "linnet/kernels/cuda/linear_step_tile.h"
#include "linnet/kernels/cuda/rows_tile.h"
#include "linnet/kernels/cuda/sample_tile.h"
#include "linnet/kernels/cuda/tile_device.cuh"

// Input of scripts/cuda-report, one kernel a line: kernel | threads of a block | bytes of dynamic
// shared memory | default. The last field is optional: the script fails if a kernel with this field
// does not fit or spills registers.
// cuda-report: EmbedKernel<BFloat16> | kRowThreads | 0 | default
// cuda-report: NormKernel<BFloat16, 2u> | kRowThreads | 0 | default
// cuda-report: LinearStepKernel<BFloat16, 1u> | 128 | 4 * LinearStepShared<BFloat16>(32, 32) | default
// cuda-report: LinearStepKernel<float, 1u> | 128 | 4 * LinearStepShared<float>(32, 32) | default
// cuda-report: SampleKernel | kSampleThreads | 4 * 10 * 8 | default
namespace linnet::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kRowThreads) EmbedKernel(EmbedArgs args) {
  DeviceTile tile;
  EmbedTile<T>(tile, args);
}

// kParts: parts of 128 columns that a row has. The number of blocks that a multiprocessor must run
// at once limits the registers per thread; a row of more parts needs more registers.
template <typename T, unsigned kParts>
__global__ void __launch_bounds__(kRowThreads, kParts <= 2   ? 9
                                               : kParts == 4 ? 7
                                                             : 4) NormKernel(NormArgs args) {
  DeviceTile tile;
  NormTile<T, kParts>(tile, args);
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads) GeluKernel(size_t n, T* x) {
  DeviceTile tile;
  GeluTile(tile, n, x);
}

// Threads of a block of the linear step. Each warp steps one head of one sequence.
constexpr unsigned kStepThreads = 128;

// Minimum number of blocks of the linear step that a multiprocessor runs at once, so that many
// loads are in flight. This number limits the registers per thread. In bf16, 7 blocks leave 72
// registers per thread on Hopper; on other GPUs, 72 registers would spill, so 4 blocks leave 128.
// In fp32, 5 blocks leave 96. With heads of more than 32 features, 3 blocks leave 168.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
constexpr unsigned kNarrowStepBlocks = 4;
#else
constexpr unsigned kNarrowStepBlocks = 7;
#endif
template <typename T, unsigned kFeatureBlocks>
constexpr unsigned kStepBlocks = kFeatureBlocks > 1 ? 3
                                 : sizeof(T) == 2   ? kNarrowStepBlocks
                                                    : 5;

template <typename T, unsigned kFeatureBlocks>
__global__ void __launch_bounds__(kStepThreads, kStepBlocks<T, kFeatureBlocks>)
    LinearStepKernel(DecodeStepArgs args) {
  DeviceTile tile;
  LinearStepTile<T, kFeatureBlocks>(tile, args);
}

__global__ void __launch_bounds__(kSampleThreads) SampleKernel(SampleArgs args) {
  DeviceTile tile;
  SampleTile(tile, args);
}

unsigned Blocks(size_t items, unsigned per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}
cudaStream_t On(Stream stream) { return static_cast<cudaStream_t>(stream); }

template <typename T, unsigned kParts>
void LaunchNorm(const NormArgs& args, Stream stream) {
  Launch("layer norm", NormKernel<T, kParts>,
         Blocks(args.batch, kNormRows<kParts> * kRowThreads / kWarp), kRowThreads, 0, On(stream),
         args);
}

template <typename T, unsigned kFeatureBlocks>
void LaunchLinearStep(const DecodeStepArgs& args, Stream stream) {
  const unsigned padded = kFeatureBlocks * kStepPad, values = PaddedWidth(args.value_dim);
  const unsigned each = LinearStepShared<T>(padded, values);
  constexpr unsigned kWarps = kStepThreads / kWarp;
  Launch("linear step", LinearStepKernel<T, kFeatureBlocks>,
         Blocks(size_t{args.batch} * args.heads, kWarps), kStepThreads, kWarps * each, On(stream),
         args);
}

}  // namespace

template <typename T>
void StartEmbed(const EmbedArgs& args, Stream stream) {
  Launch("embedding", EmbedKernel<T>, Blocks(args.batch, kRowThreads / kWarp), kRowThreads, 0,
         On(stream), args);
}

template <typename T>
void StartNorm(const NormArgs& args, Stream stream) {
  if (args.d_model <= 128) {
    LaunchNorm<T, 1>(args, stream);
  } else if (args.d_model <= 256) {
    LaunchNorm<T, 2>(args, stream);
  } else if (args.d_model <= 512) {
    LaunchNorm<T, 4>(args, stream);
  } else {
    LaunchNorm<T, 8>(args, stream);
  }
}

template <typename T>
void StartGelu(size_t n, void* x, Stream stream) {
  Launch("gelu", GeluKernel<T>, Blocks(n, 4 * kRowThreads), kRowThreads, 0, On(stream), n,
         static_cast<T*>(x));
}

template <typename T>
void StartLinearStep(const DecodeStepArgs& args, Stream stream) {
  if (args.dim <= kStepPad) {
    LaunchLinearStep<T, 1>(args, stream);
  } else if (args.dim <= 2 * kStepPad) {
    LaunchLinearStep<T, 2>(args, stream);
  } else if (args.dim <= 3 * kStepPad) {
    LaunchLinearStep<T, 3>(args, stream);
  } else {
    LaunchLinearStep<T, 4>(args, stream);
  }
}

void StartSample(const SampleArgs& args, Stream stream) {
  const unsigned warps = kSampleThreads / kWarp;
  Launch("sampling", SampleKernel, Blocks(args.batch, warps), kSampleThreads,
         warps * args.mixtures * sizeof(double), On(stream), args);
}

template void StartEmbed<float>(const EmbedArgs&, Stream);
template void StartEmbed<BFloat16>(const EmbedArgs&, Stream);
template void StartNorm<float>(const NormArgs&, Stream);
template void StartNorm<BFloat16>(const NormArgs&, Stream);
template void StartGelu<float>(size_t, void*, Stream);
template void StartGelu<BFloat16>(size_t, void*, Stream);
template void StartLinearStep<float>(const DecodeStepArgs&, Stream);
template void StartLinearStep<BFloat16>(const DecodeStepArgs&, Stream);

}  // namespace linnet::kernels::cuda
