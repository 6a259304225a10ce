#include "linnet/kernels/cuda/causal_linear.h"

#include "linnet/kernels/cuda/causal_linear_plan.h"
#include "linnet/kernels/cuda/causal_product_tile.h"
#include "linnet/kernels/cuda/launch.cuh"
#include "linnet/kernels/cuda/tile_device.cuh"

namespace linnet::kernels::cuda {
namespace {

template <int kWidth, typename T>
__global__ void __launch_bounds__(128)
    CausalForwardKernel(const __grid_constant__ CausalProductArgs<T> args) {
  DeviceTile tile;
  CausalForwardTile<kWidth>(tile, args);
}

template <int kWidth, typename T>
__global__ void __launch_bounds__(128)
    CausalBackwardKernel(const __grid_constant__ CausalProductArgs<T> args, Product product) {
  DeviceTile tile;
  CausalBackwardTile<kWidth>(tile, args, product);
}

__global__ void SegmentScanKernel(float* sums, size_t floats, unsigned segments, bool reverse) {
  DeviceTile tile;
  SegmentScanTile(tile, sums, floats, segments, reverse);
}

template <typename T>
__global__ void DeltaKernel(const __grid_constant__ CausalProductArgs<T> args, float* delta) {
  DeviceTile tile;
  DeltaTile(tile, args, delta);
}

// One of the four products.
template <int kWidth, bool kGradient, typename T>
void Run(const CausalLinearPlan& plan, CausalProductArgs<T> args, Product product, float* sums,
         cudaStream_t stream) {
  using Sizes = ProductSizes<kWidth, sizeof(T) / 2, kGradient>;
  const auto places = static_cast<unsigned>(plan.shape.batch * plan.shape.heads);
  const dim3 blocks(places, Sizes::kSlices, plan.segments);
  const auto run = [&] {
    if (product == Product::kForward) {
      Launch("causal linear attention", CausalForwardKernel<kWidth, T>, blocks, Sizes::kThreads,
             Sizes::kBytes, stream, args);
    } else {
      Launch("gradients of causal linear attention", CausalBackwardKernel<kWidth, T>, blocks,
             Sizes::kThreads, Sizes::kBytes, stream, args, product);
    }
  };
  if (plan.segments > 1) {
    args.segment_sums = sums;
    args.sums_only = true;
    run();
    const size_t floats = static_cast<size_t>(places) * Sizes::kSlices * Sizes::kSumFloats;
    const bool reverse = product == Product::kGradK || product == Product::kGradV;
    Launch("sums of segments", SegmentScanKernel, dim3(static_cast<unsigned>((floats + 255) / 256)),
           256, 0, stream, sums, floats, plan.segments, reverse);
    args.sums_only = false;
  }
  run();
}

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
                         float* scratch, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const CausalLinearScratchParts parts = ScratchPartsOf(plan);
  CausalProductArgs<T> product = ProductArgs(plan, args);
  // Other blocks than those that write the final state read the initial one.
  const auto keep = [&](const float* from, float* to, size_t floats) -> const float* {
    if (from == nullptr) return nullptr;
    Check(cudaMemcpyAsync(to, from, floats * sizeof(float), cudaMemcpyDeviceToDevice, stream),
          "copy of a state");
    return to;
  };
  const size_t places = plan.shape.batch * plan.shape.heads;
  const size_t s_floats = places * plan.shape.dim * plan.shape.value_dim;
  product.s = keep(args.s, scratch + parts.state, s_floats);
  product.z = keep(args.z, scratch + parts.state + s_floats, places * plan.shape.dim);
  WithProductWidth(ProductWidth(plan.shape), [&]<int kWidth>() {
    Run<kWidth, false>(plan, product, Product::kForward, scratch + parts.sums, stream);
  });
}

template <typename T>
void CausalLinearBackward(const CausalLinearPlan& plan, const CausalLinearBackwardArgsOf<T>& args,
                          float* scratch, Stream stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const CausalLinearScratchParts parts = ScratchPartsOf(plan);
  CausalProductArgs<T> product = ProductArgs(plan, args);
  const auto places = static_cast<unsigned>(plan.shape.batch * plan.shape.heads);
  if (plan.options.normalize) {
    float* delta = scratch + parts.delta;
    constexpr unsigned kThreads = 256;
    const auto rows =
        static_cast<unsigned>((plan.shape.length + kThreads / 4 - 1) / (kThreads / 4));
    Launch("products of results and gradients", DeltaKernel<T>, dim3(places, rows), kThreads, 0,
           stream, product, delta);
    product.delta = delta;
  }
  float* sums = scratch + parts.sums;
  WithProductWidth(ProductWidth(plan.shape), [&]<int kWidth>() {
    Run<kWidth, true>(plan, product, Product::kGradQ, sums, stream);
    Run<kWidth, true>(plan, product, Product::kGradK, sums, stream);
    Run<kWidth, false>(plan, product, Product::kGradV, sums, stream);
  });
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
