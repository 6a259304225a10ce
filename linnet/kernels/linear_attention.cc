#include "linnet/kernels/linear_attention.h"

#include <cassert>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/linear_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/linear_attention-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(LinearForwardHead);
HWY_EXPORT(LinearForwardHeadBf16);
HWY_EXPORT(LinearBackwardHead);
HWY_EXPORT(LinearBackwardHeadBf16);

namespace {

constexpr size_t kMaxBlock = 64;
constexpr size_t Pad16(size_t n) { return (n + 15) / 16 * 16; }

void ForHeads(const LinearAttentionShape& shape, Scratch scratch, ParallelFor parallel_for,
              FunctionRef<void(float* slot, size_t n, size_t h)> body) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  const size_t slot_size = LinearAttentionScratch(shape), heads = shape.batch * shape.heads;
  parallel_for(scratch.slots, [&](size_t begin, size_t end) {
    for (size_t slot = begin; slot < end; ++slot) {
      for (size_t p = heads * slot / scratch.slots; p < heads * (slot + 1) / scratch.slots; ++p) {
        body(scratch.data + slot * slot_size, p / shape.heads, p % shape.heads);
      }
    }
  });
}

}  // namespace

size_t LinearAttentionScratch(const LinearAttentionShape& shape) {
  const size_t dp = Pad16(shape.dim), mp = Pad16(shape.value_dim);
  // The backward's: two blocks of each width, three states, a sum; and a line to align by.
  return 2 * kMaxBlock * (dp + mp) + 3 * dp * mp + dp + 16;
}

size_t LinearAttentionKept(const LinearAttentionShape& shape) {
  return shape.batch * shape.heads *
         (Pad16(shape.dim) * (Pad16(shape.value_dim) + 1) + shape.queries);
}

void LinearAttentionForward(const LinearAttentionShape& shape,
                            const LinearAttentionOptions& options,
                            const LinearAttentionForwardArgs& args, Scratch scratch,
                            ParallelFor parallel_for) {
  ForHeads(shape, scratch, parallel_for, [&](float* slot, size_t n, size_t h) {
    HWY_DYNAMIC_DISPATCH(LinearForwardHead)(shape, options, args, slot, n, h);
  });
}

void LinearAttentionForward(const LinearAttentionShape& shape,
                            const LinearAttentionOptions& options,
                            const LinearAttentionForwardArgsBf16& args, Scratch scratch,
                            ParallelFor parallel_for) {
  ForHeads(shape, scratch, parallel_for, [&](float* slot, size_t n, size_t h) {
    HWY_DYNAMIC_DISPATCH(LinearForwardHeadBf16)(shape, options, args, slot, n, h);
  });
}

void LinearAttentionBackward(const LinearAttentionShape& shape,
                             const LinearAttentionOptions& options,
                             const LinearAttentionBackwardArgs& args, Scratch scratch,
                             ParallelFor parallel_for) {
  assert(args.kept != nullptr);
  ForHeads(shape, scratch, parallel_for, [&](float* slot, size_t n, size_t h) {
    HWY_DYNAMIC_DISPATCH(LinearBackwardHead)(shape, options, args, slot, n, h);
  });
}

void LinearAttentionBackward(const LinearAttentionShape& shape,
                             const LinearAttentionOptions& options,
                             const LinearAttentionBackwardArgsBf16& args, Scratch scratch,
                             ParallelFor parallel_for) {
  assert(args.kept != nullptr);
  ForHeads(shape, scratch, parallel_for, [&](float* slot, size_t n, size_t h) {
    HWY_DYNAMIC_DISPATCH(LinearBackwardHeadBf16)(shape, options, args, slot, n, h);
  });
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
