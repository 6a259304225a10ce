#include "linnet/kernels/cuda/training_rows.h"

#include "linnet/kernels/cuda/launch.cuh"
#include "linnet/kernels/cuda/tile_device.cuh"
#include "linnet/kernels/cuda/training_rows_tile.h"

// Input of scripts/cuda-report, one kernel a line: kernel | threads of a block | bytes of dynamic
// shared memory | default. The last field is optional: the script fails if a kernel with this field
// does not fit or spills registers.
// cuda-report: AddNormKernel<2u> | kRowThreads | 0 | default
// cuda-report: AddNormGradKernel<2u> | kSumThreads | 4 * 128 * kSumWarps | default
// cuda-report: ColumnSumsKernel<BFloat16> | kSumThreads | 4 * 128 * kSumWarps | default
// cuda-report: SumPartialKernel | kPartialThreads | 4 * kPartialThreads | default
namespace linnet::kernels::cuda {
namespace {

constexpr size_t kSharedBytes = sizeof(float) * 128 * kSumWarps;

template <unsigned kParts>
__global__ void __launch_bounds__(kRowThreads) AddNormKernel(AddNormArgs args) {
  DeviceTile tile;
  AddNormTile<kParts>(tile, args);
}

template <unsigned kParts>
__global__ void __launch_bounds__(kSumThreads)
    AddNormGradKernel(AddNormGradArgs args, unsigned blocks) {
  DeviceTile tile;
  AddNormGradTile<kParts>(tile, args, blocks);
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    ColumnSumsKernel(ColumnSumsArgs<T> args, unsigned blocks) {
  DeviceTile tile;
  ColumnSumsTile(tile, args, blocks);
}

__global__ void __launch_bounds__(kPartialThreads)
    SumPartialKernel(unsigned count, unsigned width, const float* partial, float* sums) {
  DeviceTile tile;
  SumPartialTile(tile, count, width, partial, sums);
}

cudaStream_t On(Stream stream) { return static_cast<cudaStream_t>(stream); }

void SumPartial(unsigned count, unsigned width, const float* partial, float* sums, Stream stream) {
  Launch("sums of rows", SumPartialKernel, (width + kWarp - 1) / kWarp, kPartialThreads,
         sizeof(float) * kPartialThreads, On(stream), count, width, partial, sums);
}

unsigned ColumnParts(unsigned width) { return (width + 127) / 128; }

}  // namespace

void StartAddNorm(const AddNormArgs& args, Stream stream) {
  constexpr unsigned kWarps = kRowThreads / kWarp;
  const auto launch = [&](auto kernel) {
    Launch("add and norm", kernel, (args.rows + kWarps - 1) / kWarps, kRowThreads, 0, On(stream),
           args);
  };
  if (args.width <= 128) return launch(AddNormKernel<1>);
  if (args.width <= 256) return launch(AddNormKernel<2>);
  launch(AddNormKernel<4>);
}

size_t AddNormGradPartial(unsigned rows, unsigned width) {
  return size_t{SumBlocks(rows, 1)} * 3 * width;
}

void StartAddNormGrad(const AddNormGradArgs& args, Stream stream) {
  const unsigned blocks = SumBlocks(args.rows, 1);
  const auto launch = [&](auto kernel) {
    Launch("gradient of a norm", kernel, blocks, kSumThreads, kSharedBytes, On(stream), args,
           blocks);
  };
  if (args.width <= 128) {
    launch(AddNormGradKernel<1>);
  } else if (args.width <= 256) {
    launch(AddNormGradKernel<2>);
  } else {
    launch(AddNormGradKernel<4>);
  }
  SumPartial(blocks, 3 * args.width, args.partial, args.sums, stream);
}

size_t ColumnSumsPartial(unsigned rows, unsigned width) {
  return size_t{SumBlocks(rows, ColumnParts(width))} * width;
}

template <typename T>
void StartColumnSums(const ColumnSumsArgs<T>& args, Stream stream) {
  const unsigned parts = ColumnParts(args.width), blocks = SumBlocks(args.rows, parts);
  Launch("sums of rows", ColumnSumsKernel<T>, dim3(blocks, parts), kSumThreads, kSharedBytes,
         On(stream), args, blocks);
  SumPartial(blocks, args.width, args.partial, args.sums, stream);
}

template void StartColumnSums<float>(const ColumnSumsArgs<float>&, Stream);
template void StartColumnSums<BFloat16>(const ColumnSumsArgs<BFloat16>&, Stream);

}  // namespace linnet::kernels::cuda
