// Implements device.h, graph.h, products.h, decode.h, few.h and scan.h on the CPU. Tile programs
// run on the executor (tile_executor.h), matrix products are plain loops, and device memory is host
// memory. Tests link this file in place of the kernels.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "linnet/kernels/cuda/channel_scan_tile.h"
#include "linnet/kernels/cuda/decode.h"
#include "linnet/kernels/cuda/few.h"
#include "linnet/kernels/cuda/few_sizes.h"
#include "linnet/kernels/cuda/few_tile.h"
#include "linnet/kernels/cuda/graph.h"
#include "linnet/kernels/cuda/linear_step_tile.h"
#include "linnet/kernels/cuda/products.h"
#include "linnet/kernels/cuda/rows_tile.h"
#include "linnet/kernels/cuda/sample_tile.h"
#include "linnet/kernels/cuda/scan_plan.h"
#include "linnet/kernels/cuda/tile_executor.h"

namespace linnet::kernels::cuda {
namespace {

using Work = std::vector<std::function<void()>>;
Work* captured = nullptr;  // not null while a graph records work instead of running it

void Submit(std::function<void()> work) {
  if (captured != nullptr) {
    captured->push_back(std::move(work));
  } else {
    work();
  }
}

template <class Program>
void Run(unsigned x, unsigned y, unsigned threads, size_t shared, Program program) {
  Submit([=] {
    RunTiles({.blocks = {x, y, 1}, .threads = threads, .shared_bytes = shared},
             [&](ExecutorTile& tile) { program(tile); });
  });
}

// Runs the programs of scan_plan.h.
struct ScanMachine {
  template <class Sizes>
  void Run(unsigned x, unsigned y, const ScanTileArgs& args) {
    cuda::Run(x, y, Sizes::kThreads, Sizes::kBytes,
              [=](auto& tile) { ScanSweepTile<Sizes>(tile, args); });
  }
  template <bool kDelta>
  void RunScalars(unsigned x, unsigned threads, const ScanTileArgs& args) {
    cuda::Run(x, 1, threads, 0, [=](auto& tile) { ScanScalarsTile<kDelta>(tile, args); });
  }
};

unsigned Blocks(size_t items, unsigned each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

constexpr unsigned kRows = kRowThreads / kWarp;  // one row per warp

template <typename T>
void Multiply(const ProductShape& shape, const T* x, const T* weight, const T* bias, T* y) {
  for (size_t n = 0; n < shape.rows; ++n) {
    for (size_t r = 0; r < shape.out; ++r) {
      float sum = ToFloat(bias[r]);
      for (size_t c = 0; c < shape.in; ++c) {
        sum += ToFloat(x[n * shape.in + c]) * ToFloat(weight[r * shape.in + c]);
      }
      StoreAs(y, n * shape.out + r, shape.relu ? std::max(sum, 0.0f) : sum);
    }
  }
}

}  // namespace

Device Device::Open() {
  Device device;
  device.name = "executor";
  device.memory = device.free = size_t{1} << 32;
  return device;
}

DeviceMemory::DeviceMemory(size_t bytes)
    : data_(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), bytes_(bytes) {
  std::memset(data_, 0xff, bytes);  // NaN: programs must not rely on memory they have not written
}
DeviceMemory::~DeviceMemory() { std::free(data_); }
void CopyToDevice(void* to, const void* from, size_t bytes, Stream) {
  std::memcpy(to, from, bytes);
}
void CopyToHost(void* to, const void* from, size_t bytes, Stream) { std::memcpy(to, from, bytes); }
void CopyOnDevice(void* to, const void* from, size_t bytes, Stream) {
  std::memcpy(to, from, bytes);
}
void SetBytes(void* to, int value, size_t bytes, Stream) { std::memset(to, value, bytes); }
void Synchronize(Stream) {}
double SecondsOf(FunctionRef<void()> body, Stream, int runs) {
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < runs; ++i) body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / runs;
}

OwnStream::OwnStream() = default;
OwnStream::~OwnStream() = default;

Graph::~Graph() { delete static_cast<Work*>(executable_); }
void Graph::Capture(Stream, FunctionRef<void()> body) {
  auto work = std::make_unique<Work>();
  captured = work.get();
  try {
    body();
  } catch (...) {
    captured = nullptr;
    throw;
  }
  captured = nullptr;
  delete static_cast<Work*>(std::exchange(executable_, work.release()));
}
void Graph::Run(Stream) const {
  for (const auto& work : *static_cast<Work*>(executable_)) work();
}

struct Products::Impl {
  std::vector<ProductShape> plans;
};
Products::Products() : impl_(std::make_unique<Impl>()) {}
Products::~Products() = default;
int Products::Plan(const ProductShape& shape) {
  impl_->plans.push_back(shape);
  return static_cast<int>(impl_->plans.size()) - 1;
}
void Products::Run(int plan, const void* x, const void* weight, const void* bias, void* y, Stream) {
  const ProductShape shape = impl_->plans[static_cast<size_t>(plan)];
  Submit([=] {
    const auto as = [&]<typename T>(T*) {
      Multiply(shape, static_cast<const T*>(x), static_cast<const T*>(weight),
               static_cast<const T*>(bias), static_cast<T*>(y));
    };
    shape.type == ProductType::kF32 ? as(static_cast<float*>(nullptr))
                                    : as(static_cast<BFloat16*>(nullptr));
  });
}

template <typename T>
void StartEmbed(const EmbedArgs& args, Stream) {
  Run(Blocks(args.batch, kRows), 1, kRowThreads, 0, [=](auto& tile) { EmbedTile<T>(tile, args); });
}
template <typename T>
void StartNorm(const NormArgs& args, Stream) {
  Run(Blocks(args.batch, kRows), 1, kRowThreads, 0,
      [=](auto& tile) { NormTile<T, 8>(tile, args); });
}
template <typename T>
void StartGelu(size_t n, void* x, Stream) {
  Run(Blocks(n, 4 * kRowThreads), 1, kRowThreads, 0,
      [=](auto& tile) { GeluTile(tile, n, static_cast<T*>(x)); });
}
template <typename T>
void StartLinearStep(const DecodeStepArgs& args, Stream) {
  Run(args.batch * args.heads, 1, kWarp,
      LinearStepShared<T>(PaddedWidth(args.dim), PaddedWidth(args.value_dim)), [=](auto& tile) {
        switch (PaddedWidth(args.dim) / kStepPad) {
          case 1:
            return LinearStepTile<T, 1>(tile, args);
          case 2:
            return LinearStepTile<T, 2>(tile, args);
          case 3:
            return LinearStepTile<T, 3>(tile, args);
          default:
            return LinearStepTile<T, 4>(tile, args);
        }
      });
}
void StartSample(const SampleArgs& args, Stream) {
  Run(args.batch, 1, kWarp, 8 * args.mixtures, [=](auto& tile) { SampleTile(tile, args); });
}

template <typename T>
void StartFewAttend(const FewAttendArgs<T>& args, Stream) {
  const unsigned f = args.step.dim, m = args.step.value_dim;
  Run(args.step.heads, args.input.batch, kFewThreads,
      FewAttendShared<T>(f, m, PaddedWidth(f), args.input.d_model), [=](auto& tile) {
        const auto wait = [] {};
        switch (PaddedWidth(f) / kStepPad) {
          case 1:
            return FewAttendTile<T, 1>(tile, args, wait);
          case 2:
            return FewAttendTile<T, 2>(tile, args, wait);
          case 3:
            return FewAttendTile<T, 3>(tile, args, wait);
          default:
            return FewAttendTile<T, 4>(tile, args, wait);
        }
      });
}
template <typename T>
void StartFewFeedForward(const FewFeedForwardArgs<T>& args, Stream) {
  Run(Blocks(args.d_ff, args.slice), args.input.batch, kFewThreads,
      FewFeedForwardShared<T>(args.slice, args.input.d_model),
      [=](auto& tile) { FewFeedForwardTile<T>(tile, args, [] {}); });
}
template <typename T>
void StartFewHead(const FewHeadArgs<T>& args, Stream) {
  Run(1, args.input.batch, kFewThreads, FewHeadShared(args.outputs, args.input.d_model),
      [=](auto& tile) { FewHeadTile<T>(tile, args, [] {}); });
}

void ScanForward(const ScanPlan& plan, const ScanForwardArgs& args, Stream) {
  ScanMachine machine;
  RunScanForward(machine, plan, args);
}
void ScanBackward(const ScanPlan& plan, const ScanBackwardArgs& args, float* scratch, Stream) {
  ScanMachine machine;
  RunScanBackward(machine, plan, args, scratch);
}
void ChannelScanForward(const ChannelScanShape& shape, const ChannelScanArgs& args, Stream) {
  Run(static_cast<unsigned>(shape.batch), Blocks(shape.channels, kChannelThreads), kChannelThreads,
      0, [=](auto& tile) { ChannelScanForwardTile(tile, shape, args); });
}
void ChannelScanBackward(const ChannelScanShape& shape, const ChannelScanBackwardArgs& args,
                         Stream) {
  Run(static_cast<unsigned>(shape.batch), Blocks(shape.channels, kChannelThreads), kChannelThreads,
      0, [=](auto& tile) { ChannelScanBackwardTile(tile, shape, args); });
}

template void StartEmbed<float>(const EmbedArgs&, Stream);
template void StartEmbed<BFloat16>(const EmbedArgs&, Stream);
template void StartNorm<float>(const NormArgs&, Stream);
template void StartNorm<BFloat16>(const NormArgs&, Stream);
template void StartGelu<float>(size_t, void*, Stream);
template void StartGelu<BFloat16>(size_t, void*, Stream);
template void StartLinearStep<float>(const DecodeStepArgs&, Stream);
template void StartLinearStep<BFloat16>(const DecodeStepArgs&, Stream);
template void StartFewAttend<float>(const FewAttendArgs<float>&, Stream);
template void StartFewAttend<BFloat16>(const FewAttendArgs<BFloat16>&, Stream);
template void StartFewFeedForward<float>(const FewFeedForwardArgs<float>&, Stream);
template void StartFewFeedForward<BFloat16>(const FewFeedForwardArgs<BFloat16>&, Stream);
template void StartFewHead<float>(const FewHeadArgs<float>&, Stream);
template void StartFewHead<BFloat16>(const FewHeadArgs<BFloat16>&, Stream);

}  // namespace linnet::kernels::cuda
