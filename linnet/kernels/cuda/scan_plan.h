// The launches of scan.h (private to kernels/cuda), on any Machine that runs tile programs
// (tile.h): scan.cu has one for a stream, on_executor.cc one for the CPU. A Machine has these
// members:
//
//   Run<Sizes>(blocks_x, blocks_y, args)      launches ScanSweepTile
//   RunScalars<kDelta>(blocks, threads, args) launches ScanScalarsTile
#ifndef LINNET_KERNELS_CUDA_SCAN_PLAN_H_
#define LINNET_KERNELS_CUDA_SCAN_PLAN_H_

#include "linnet/kernels/cuda/scan.h"
#include "linnet/kernels/cuda/scan_tile.h"

namespace linnet::kernels::cuda {

inline size_t ScanRows(const ScanPlan& plan) {
  return (plan.packed ? 1 : plan.shape.batch) * plan.shape.length * plan.shape.heads;
}
// Floats of `kept`: what positions write, except with kAdd, and the state before the first one.
inline size_t ScanWrittenFloats(const ScanPlan& plan) {
  return plan.options.write == ScanWrite::kAdd ? 0 : ScanRows(plan) * plan.shape.value_dim;
}

inline ScanTileArgs ScanArgs(const ScanPlan& plan, const ScanTensors<const float>& in,
                             float* kept) {
  const ScanShape& shape = plan.shape;
  ScanTileArgs to;
  to.batch = static_cast<unsigned>(shape.batch), to.heads = static_cast<unsigned>(shape.heads);
  to.group = static_cast<unsigned>(shape.group), to.length = static_cast<unsigned>(shape.length);
  to.dim = static_cast<unsigned>(shape.dim);
  to.value_dim = static_cast<unsigned>(shape.value_dim);
  to.head_decay = plan.options.decay == ScanDecay::kHead;
  to.scale = plan.options.scale;
  to.in = in;
  to.written = RowMajor(kept, shape.length, shape.heads, shape.value_dim);
  to.first_s = kept == nullptr ? nullptr : kept + ScanWrittenFloats(plan);
  return to;
}

template <ScanPass kPass, class Machine>
void RunSweep(Machine& machine, const ScanPlan& plan, const ScanTileArgs& args) {
  constexpr bool kColumns = kPass == ScanPass::kForward || kPass == ScanPass::kGradWritten;
  const unsigned elements = kColumns ? args.dim : args.value_dim;
  const unsigned lines = kColumns ? args.value_dim : args.dim;
  const auto run = [&]<ScanWrite kWrite, bool kKeyDecay, int kWidth>() {
    using Sizes = ScanSweepSizes<kPass, kWrite, kKeyDecay, kWidth>;
    machine.template Run<Sizes>(args.batch * args.heads,
                                (lines + Sizes::kBlockLines - 1) / Sizes::kBlockLines, args);
  };
  const auto with_width = [&]<ScanWrite kWrite, bool kKeyDecay>() {
    if (elements <= 32) return run.template operator()<kWrite, kKeyDecay, 32>();
    if (elements <= 64) return run.template operator()<kWrite, kKeyDecay, 64>();
    return run.template operator()<kWrite, kKeyDecay, 128>();
  };
  const auto with_decay = [&]<ScanWrite kWrite>() {
    if (plan.options.decay == ScanDecay::kKey)
      return with_width.template operator()<kWrite, true>();
    return with_width.template operator()<kWrite, false>();
  };
  switch (plan.options.write) {
    case ScanWrite::kAdd:
      return with_decay.template operator()<ScanWrite::kAdd>();
    case ScanWrite::kDelta:
      return with_decay.template operator()<ScanWrite::kDelta>();
    case ScanWrite::kTwoSided:
      return with_decay.template operator()<ScanWrite::kTwoSided>();
    case ScanWrite::kRwkv7:
      return with_decay.template operator()<ScanWrite::kRwkv7>();
  }
}

template <class Machine>
void RunScanForward(Machine& machine, const ScanPlan& plan, const ScanForwardArgs& from) {
  ScanTileArgs args = ScanArgs(plan, from.in, from.kept);
  args.lengths = from.lengths, args.offsets = from.offsets;
  args.out = from.out, args.s = from.s;
  RunSweep<ScanPass::kForward>(machine, plan, args);
}

template <class Machine>
void RunScanBackward(Machine& machine, const ScanPlan& plan, const ScanBackwardArgs& from,
                     float* scratch) {
  const ScanShape& shape = plan.shape;
  // The sweeps only read what the forward has kept.
  ScanTileArgs args = ScanArgs(plan, from.in, const_cast<float*>(from.kept));
  args.lengths = from.lengths, args.offsets = from.offsets;
  args.grad_out = from.grad_out, args.grad = from.grad;
  args.grad_s = from.grad_s, args.grad_s0 = from.grad_s0;
  const auto rows = [&](size_t width) {
    float* data = scratch;
    scratch += ScanRows(plan) * width;
    return RowMajor(data, shape.length, shape.heads, width);
  };
  args.final_dots = scratch;
  scratch += (shape.batch * shape.heads * shape.dim + 3) / 4 * 4;
  if (plan.options.write != ScanWrite::kAdd) {
    args.grad_written = rows(shape.value_dim), args.erased = rows(shape.dim);
  }
  if (args.head_decay) args.channels = rows(shape.dim);
  RunSweep<ScanPass::kGradWritten>(machine, plan, args);
  RunSweep<ScanPass::kGradRead>(machine, plan, args);
  RunSweep<ScanPass::kGradKeys>(machine, plan, args);
  const bool delta = plan.options.write == ScanWrite::kDelta;
  if (!delta && !args.head_decay) return;
  constexpr unsigned kThreads = 128, kEach = kThreads / kWarp;
  const auto blocks = static_cast<unsigned>((ScanRows(plan) + kEach - 1) / kEach);
  if (delta) {
    machine.template RunScalars<true>(blocks, kThreads, args);
  } else {
    machine.template RunScalars<false>(blocks, kThreads, args);
  }
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_SCAN_PLAN_H_
