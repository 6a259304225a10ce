#include "linnet/kernels/scan.h"

#include <cassert>

#include "linnet/kernels/deal_heads.h"
#include "linnet/kernels/scan_kept.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/scan.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/scan-inl.h"
#include "linnet/kernels/scan_backward-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(ScanForwardBody);
HWY_EXPORT(ScanBackwardBody);
HWY_EXPORT(ScanStepBody);

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
  return ScanBackwardPieces(ScanSizes(shape, options), nullptr).needed;
}

void ScanBackward(const ScanShape& shape, const ScanOptions& options, const ScanBackwardArgs& args,
                  Scratch scratch, ParallelFor parallel_for) {
  DealHeads({shape.batch, shape.heads, args.offsets}, ScanBackwardScratch(shape, options), scratch,
            parallel_for, [&](float* slot, size_t n, size_t h) {
              HWY_DYNAMIC_DISPATCH(ScanBackwardBody)(shape, options, args, slot, n, h);
            });
}

size_t ScanStepScratch(const ScanShape& shape) { return 2 * RoundUp(shape.dim, 16); }

void ScanStep(const ScanShape& shape, const ScanOptions& options, const ScanStepArgs& args) {
  HWY_DYNAMIC_DISPATCH(ScanStepBody)(shape, options, args);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
