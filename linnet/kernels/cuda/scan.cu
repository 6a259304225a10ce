#include "linnet/kernels/cuda/scan.h"

#include "linnet/kernels/cuda/channel_scan_tile.h"
#include "linnet/kernels/cuda/launch.cuh"
#include "linnet/kernels/cuda/scan_plan.h"
#include "linnet/kernels/cuda/scan_tile.h"
#include "linnet/kernels/cuda/tile_device.cuh"

namespace linnet::kernels::cuda {
namespace {

template <class Sizes>
__global__ void __launch_bounds__(Sizes::kThreads, 384 / Sizes::kThreads)
    ScanSweepKernel(const __grid_constant__ ScanTileArgs args) {
  DeviceTile tile;
  ScanSweepTile<Sizes>(tile, args);
}

template <bool kDelta>
__global__ void ScanScalarsKernel(const __grid_constant__ ScanTileArgs args) {
  DeviceTile tile;
  ScanScalarsTile<kDelta>(tile, args);
}

__global__ void __launch_bounds__(kChannelThreads)
    ChannelScanForwardKernel(ChannelScanShape shape, ChannelScanArgs args) {
  DeviceTile tile;
  ChannelScanForwardTile(tile, shape, args);
}
__global__ void __launch_bounds__(kChannelThreads)
    ChannelScanBackwardKernel(ChannelScanShape shape, ChannelScanBackwardArgs args) {
  DeviceTile tile;
  ChannelScanBackwardTile(tile, shape, args);
}

cudaStream_t On(Stream stream) { return static_cast<cudaStream_t>(stream); }

class StreamMachine {
 public:
  explicit StreamMachine(Stream stream) : stream_(On(stream)) {}

  template <class Sizes>
  void Run(unsigned blocks_x, unsigned blocks_y, const ScanTileArgs& args) {
    Launch("scan", ScanSweepKernel<Sizes>, dim3(blocks_x, blocks_y), Sizes::kThreads, Sizes::kBytes,
           stream_, args);
  }
  template <bool kDelta>
  void RunScalars(unsigned blocks, unsigned threads, const ScanTileArgs& args) {
    Launch("gradients of a scan", ScanScalarsKernel<kDelta>, dim3(blocks), threads, 0, stream_,
           args);
  }

 private:
  cudaStream_t stream_;
};

dim3 ChannelBlocks(const ChannelScanShape& shape) {
  return dim3(static_cast<unsigned>(shape.batch),
              static_cast<unsigned>((shape.channels + kChannelThreads - 1) / kChannelThreads));
}

}  // namespace

void ScanForward(const ScanPlan& plan, const ScanForwardArgs& args, Stream stream) {
  StreamMachine machine(stream);
  RunScanForward(machine, plan, args);
}

void ScanBackward(const ScanPlan& plan, const ScanBackwardArgs& args, float* scratch,
                  Stream stream) {
  StreamMachine machine(stream);
  RunScanBackward(machine, plan, args, scratch);
}

void ChannelScanForward(const ChannelScanShape& shape, const ChannelScanArgs& args, Stream stream) {
  Launch("scan by channel", ChannelScanForwardKernel, ChannelBlocks(shape), kChannelThreads, 0,
         On(stream), shape, args);
}

void ChannelScanBackward(const ChannelScanShape& shape, const ChannelScanBackwardArgs& args,
                         Stream stream) {
  Launch("gradients of a scan by channel", ChannelScanBackwardKernel, ChannelBlocks(shape),
         kChannelThreads, 0, On(stream), shape, args);
}

}  // namespace linnet::kernels::cuda

// Input of scripts/cuda-report, one kernel a line: kernel | threads of a block | bytes of dynamic
// shared memory | default. The last field is optional: the script fails if a kernel with this field
// does not fit or spills registers.
// clang-format off
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 0, true, 32>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kAdd, true, 32>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kAdd, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 0, true, 64>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kAdd, true, 64>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kAdd, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 0, true, 128>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kAdd, true, 128>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kAdd, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 0, true, 32>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kAdd, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kAdd, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 0, true, 64>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kAdd, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kAdd, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 0, true, 128>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kAdd, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kAdd, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 0, true, 32>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kAdd, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kAdd, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 0, true, 64>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kAdd, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kAdd, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 0, true, 128>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kAdd, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kAdd, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 0, true, 32>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kAdd, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kAdd, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 0, true, 64>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kAdd, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kAdd, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 0, true, 128>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kAdd, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kAdd, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 1, true, 32>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kDelta, true, 32>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kDelta, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 1, true, 64>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kDelta, true, 64>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kDelta, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 1, true, 128>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kDelta, true, 128>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kDelta, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 1, true, 32>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kDelta, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kDelta, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 1, true, 64>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kDelta, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kDelta, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 1, true, 128>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kDelta, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kDelta, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 1, true, 32>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kDelta, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kDelta, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 1, true, 64>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kDelta, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kDelta, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 1, true, 128>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kDelta, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kDelta, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 1, true, 32>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kDelta, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kDelta, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 1, true, 64>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kDelta, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kDelta, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 1, true, 128>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kDelta, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kDelta, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 2, true, 32>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kTwoSided, true, 32>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kTwoSided, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 2, true, 64>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kTwoSided, true, 64>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kTwoSided, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 2, true, 128>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kTwoSided, true, 128>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kTwoSided, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 2, true, 32>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kTwoSided, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kTwoSided, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 2, true, 64>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kTwoSided, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kTwoSided, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 2, true, 128>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kTwoSided, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kTwoSided, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 2, true, 32>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kTwoSided, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kTwoSided, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 2, true, 64>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kTwoSided, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kTwoSided, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 2, true, 128>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kTwoSided, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kTwoSided, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 2, true, 32>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kTwoSided, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kTwoSided, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 2, true, 64>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kTwoSided, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kTwoSided, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 2, true, 128>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kTwoSided, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kTwoSided, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 3, true, 32>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kRwkv7, true, 32>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kRwkv7, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 3, true, 64>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kRwkv7, true, 64>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kRwkv7, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<0, 3, true, 128>> | ScanSweepSizes<ScanPass::kForward, ScanWrite::kRwkv7, true, 128>::kThreads | ScanSweepSizes<ScanPass::kForward, ScanWrite::kRwkv7, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 3, true, 32>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kRwkv7, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kRwkv7, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 3, true, 64>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kRwkv7, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kRwkv7, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<1, 3, true, 128>> | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kRwkv7, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradWritten, ScanWrite::kRwkv7, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 3, true, 32>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kRwkv7, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kRwkv7, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 3, true, 64>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kRwkv7, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kRwkv7, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<2, 3, true, 128>> | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kRwkv7, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradRead, ScanWrite::kRwkv7, true, 128>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 3, true, 32>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kRwkv7, true, 32>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kRwkv7, true, 32>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 3, true, 64>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kRwkv7, true, 64>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kRwkv7, true, 64>::kBytes | default
// cuda-report: ScanSweepKernel<ScanSweepSizes<3, 3, true, 128>> | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kRwkv7, true, 128>::kThreads | ScanSweepSizes<ScanPass::kGradKeys, ScanWrite::kRwkv7, true, 128>::kBytes | default
// cuda-report: ScanScalarsKernel<true> | 128 | 0 | default
// cuda-report: ChannelScanForwardKernel | kChannelThreads | 0 | default
// cuda-report: ChannelScanBackwardKernel | kChannelThreads | 0 | default
