#include "linnet/kernels/depthwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/depthwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/depthwise-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(DepthwiseForwardRange);
HWY_EXPORT(DepthwiseBackwardRange);
HWY_EXPORT(DepthwiseRowBody);

namespace {

constexpr size_t kPiece = 16;  // channels; one cache line of floats

// Calls body(begin, end) for ranges of channels that start at a multiple of kPiece.
template <class Body>
void ForChannels(size_t channels, ParallelFor parallel_for, Body body) {
  const size_t pieces = (channels + kPiece - 1) / kPiece;
  parallel_for(pieces, [&](size_t begin, size_t end) {
    body(begin * kPiece, std::min(channels, end * kPiece));
  });
}

}  // namespace

void DepthwiseForward(const DepthwiseShape& shape, const DepthwiseForwardArgs& args,
                      ParallelFor parallel_for) {
  ForChannels(shape.channels, parallel_for, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(DepthwiseForwardRange)(shape, args, begin, end);
  });
}

void DepthwiseBackward(const DepthwiseShape& shape, const DepthwiseBackwardArgs& args,
                       ParallelFor parallel_for) {
  ForChannels(shape.channels, parallel_for, [&](size_t begin, size_t end) {
    HWY_DYNAMIC_DISPATCH(DepthwiseBackwardRange)(shape, args, begin, end);
  });
}

void DepthwiseRow(const DepthwiseRowArgs& args) { HWY_DYNAMIC_DISPATCH(DepthwiseRowBody)(args); }

}  // namespace linnet::kernels
#endif  // HWY_ONCE
