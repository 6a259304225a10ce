#include "linnet/kernels/causal_linear.h"

#include <cassert>

#include "linnet/kernels/causal_linear_kept.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/causal_linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/causal_linear-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(ForwardHead);
HWY_EXPORT(ForwardHeadBf16);
HWY_EXPORT(BackwardHead);
HWY_EXPORT(BackwardHeadBf16);
HWY_EXPORT(StepHead);

namespace {

constexpr size_t kMaxBlock = 32;

// The first of a slot's problems: where sequences differ in length, the first one that has at least
// the slot's share of all tokens in front of it.
size_t FirstProblem(const CausalLinearShape& shape, const int64_t* offsets, size_t slot,
                    size_t slots) {
  const size_t problems = shape.batch * shape.heads;
  if (!offsets || slot == 0 || slot == slots) return problems * slot / slots;
  const size_t share = static_cast<size_t>(offsets[shape.batch]) * shape.heads * slot / slots;
  // The last sequence that begins before the share is full; its heads are of one length.
  size_t n = shape.batch;
  while (n > 0 && static_cast<size_t>(offsets[n]) * shape.heads >= share) --n;
  const size_t before = static_cast<size_t>(offsets[n]) * shape.heads;
  if (before >= share) return n * shape.heads;
  const size_t length = static_cast<size_t>(offsets[n + 1] - offsets[n]);
  return n * shape.heads + (share - before + length - 1) / length;
}

// Deals the batch x heads problems to the slots, in runs: each slot works with its own scratch.
void ForHeads(const CausalLinearShape& shape, const int64_t* offsets, Scratch scratch,
              ParallelFor parallel_for, FunctionRef<void(float* slot, size_t n, size_t h)> body) {
  const size_t slots = scratch.slots, slot_size = CausalLinearScratch(shape);
  parallel_for(slots, [&](size_t begin, size_t end) {
    for (size_t slot = begin; slot < end; ++slot) {
      const size_t last = FirstProblem(shape, offsets, slot + 1, slots);
      for (size_t p = FirstProblem(shape, offsets, slot, slots); p < last; ++p) {
        body(scratch.data + slot * slot_size, p / shape.heads, p % shape.heads);
      }
    }
  });
}

}  // namespace

size_t CausalLinearScratch(const CausalLinearShape& shape) {
  const size_t dp = PadTo16(shape.dim), mp = PadTo16(shape.value_dim);
  // The backward's: a segment's rows of each input, a block's of two gradients, three states, two
  // sums; and a line to align by.
  return (2 * kKeptRows + kMaxBlock) * (dp + mp) + 3 * dp * mp + 2 * dp + 16;
}

size_t CausalLinearKept(const CausalLinearShape& shape, bool packed) {
  const Kept kept(shape, packed ? shape.length : shape.batch * shape.length, packed);
  return kept.states * kept.state_size + kept.rows;
}

void CausalLinearForward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                         const CausalLinearForwardArgs& args, Scratch scratch,
                         ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  ForHeads(shape, args.offsets, scratch, parallel_for, [&](float* slot, size_t n, size_t h) {
    HWY_DYNAMIC_DISPATCH(ForwardHead)(shape, options, args, slot, n, h);
  });
}

void CausalLinearForward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                         const CausalLinearForwardArgsBf16& args, Scratch scratch,
                         ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  ForHeads(shape, args.offsets, scratch, parallel_for, [&](float* slot, size_t n, size_t h) {
    HWY_DYNAMIC_DISPATCH(ForwardHeadBf16)(shape, options, args, slot, n, h);
  });
}

void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgs& args, Scratch scratch,
                          ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  assert(args.kept != nullptr);
  ForHeads(shape, args.offsets, scratch, parallel_for, [&](float* slot, size_t n, size_t h) {
    HWY_DYNAMIC_DISPATCH(BackwardHead)(shape, options, args, slot, n, h);
  });
}

void CausalLinearBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgsBf16& args, Scratch scratch,
                          ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  assert(args.kept != nullptr);
  ForHeads(shape, args.offsets, scratch, parallel_for, [&](float* slot, size_t n, size_t h) {
    HWY_DYNAMIC_DISPATCH(BackwardHeadBf16)(shape, options, args, slot, n, h);
  });
}

void CausalLinearStep(size_t dim, size_t value_dim, const CausalLinearOptions& options,
                      const float* q, const float* k, const float* v, float* s, float* z,
                      float* out) {
  HWY_DYNAMIC_DISPATCH(StepHead)(dim, value_dim, options, q, k, v, s, z, out);
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
