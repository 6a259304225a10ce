#include "linnet/kernels/scan.h"

#include <algorithm>
#include <cassert>

#include "linnet/kernels/deal_heads.h"
#include "linnet/kernels/scan_kept.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/scan.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/scan-inl.h"
#include "linnet/kernels/scan_add_backward-inl.h"
#include "linnet/kernels/scan_backward-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(ScanForwardBody);
HWY_EXPORT(ScanBackwardBody);
HWY_EXPORT(ScanAddBackwardBody);
HWY_EXPORT(ScanStepBody);
HWY_EXPORT(ChannelScanForwardBody);
HWY_EXPORT(ChannelScanBackwardBody);

size_t ScanForwardScratch(const ScanShape& shape, const ScanOptions& options) {
  return ScanForwardPieces(ScanSizes(shape, options), nullptr).needed;
}

size_t ScanKept(const ScanShape& shape, const ScanOptions& options, bool packed) {
  const size_t tokens = packed ? shape.length : shape.batch * shape.length;
  const ScanLayout layout(shape, options, tokens, packed);
  return layout.states * layout.state_size + layout.rows;
}

void ScanForward(const ScanShape& shape, const ScanOptions& options, const ScanForwardArgs& args,
                 Scratch scratch, ParallelFor parallel_for) {
  assert(!options.normalize || options.write == ScanWrite::kAdd);
  DealHeads({shape.batch, shape.heads, args.offsets}, ScanForwardScratch(shape, options), scratch,
            parallel_for, [&](float* slot, size_t n, size_t h) {
              HWY_DYNAMIC_DISPATCH(ScanForwardBody)(shape, options, args, slot, n, h);
            });
}

size_t ScanBackwardScratch(const ScanShape& shape, const ScanOptions& options) {
  const ScanSizes sizes(shape, options);
  return Solves(options) ? ScanBackwardPieces(sizes, nullptr).needed
                         : ScanAddBackwardPieces(sizes, nullptr).needed;
}

void ScanBackward(const ScanShape& shape, const ScanOptions& options, const ScanBackwardArgs& args,
                  Scratch scratch, ParallelFor parallel_for) {
  DealHeads({shape.batch, shape.heads, args.offsets}, ScanBackwardScratch(shape, options), scratch,
            parallel_for, [&](float* slot, size_t n, size_t h) {
              if (Solves(options)) {
                HWY_DYNAMIC_DISPATCH(ScanBackwardBody)(shape, options, args, slot, n, h);
              } else {
                HWY_DYNAMIC_DISPATCH(ScanAddBackwardBody)(shape, options, args, slot, n, h);
              }
            });
}

size_t ScanStepScratch(const ScanShape& shape) { return 2 * RoundUp(shape.dim, 16); }

void ScanStep(const ScanShape& shape, const ScanOptions& options, const ScanStepArgs& args) {
  HWY_DYNAMIC_DISPATCH(ScanStepBody)(shape, options, args);
}

namespace {

// Calls body(n, first channel, end) for each run of up to 16 adjacent channels of each sequence.
void ForChannels(const ChannelScanShape& shape, ParallelFor parallel_for,
                 FunctionRef<void(size_t n, size_t begin, size_t end)> body) {
  constexpr size_t kRun = 16;
  const size_t runs = (shape.channels + kRun - 1) / kRun;
  parallel_for(shape.batch * runs, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t channel = i % runs * kRun;
      body(i / runs, channel, std::min(channel + kRun, shape.channels));
    }
  });
}

}  // namespace

void ChannelScanForward(const ChannelScanShape& shape, const ChannelScanArgs& args,
                        ParallelFor parallel_for) {
  ForChannels(shape, parallel_for, [&](size_t n, size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(ChannelScanForwardBody)(shape, args, n, begin, end);
  });
}

void ChannelScanBackward(const ChannelScanShape& shape, const ChannelScanBackwardArgs& args,
                         ParallelFor parallel_for) {
  ForChannels(shape, parallel_for, [&](size_t n, size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(ChannelScanBackwardBody)(shape, args, n, begin, end);
  });
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
