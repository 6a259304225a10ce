#include "linnet/kernels/linear_attention.h"

#include <algorithm>
#include <cassert>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/linear_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/linear_attention-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(LinearKeysForwardF32);
HWY_EXPORT(LinearKeysForwardBf16);
HWY_EXPORT(LinearQueriesForwardF32);
HWY_EXPORT(LinearQueriesForwardBf16);
HWY_EXPORT(LinearQueriesBackwardF32);
HWY_EXPORT(LinearQueriesBackwardBf16);
HWY_EXPORT(LinearKeysBackwardF32);
HWY_EXPORT(LinearKeysBackwardBf16);

namespace {

constexpr size_t kMaxBlock = HWY_NAMESPACE::kLinearBlock;  // the same for all targets
constexpr size_t Pad16(size_t n) { return (n + 15) / 16 * 16; }

// Floats of Share::sums.
size_t SumsSize(const LinearAttentionShape& shape) {
  return Pad16(shape.dim) * (Pad16(shape.value_dim) + 1);
}

// Floats of scratch for one head. The backward needs the most: two blocks of rows of width D and
// two of width M, two states and a z sum, plus a cache line for alignment.
size_t SlotSize(const LinearAttentionShape& shape) {
  const size_t dp = Pad16(shape.dim), mp = Pad16(shape.value_dim);
  return 2 * kMaxBlock * (dp + mp) + 2 * dp * mp + dp + 16;
}

// Number of parts into which sequences are split. Sequences are split only if there are so few
// heads (one or two) that threads would be idle. The number depends on the shape alone, not on the
// threads, because splitting changes the order of the sums.
size_t Parts(const LinearAttentionShape& shape) {
  if (shape.batch * shape.heads > 2) return 1;
  return std::clamp<size_t>(std::max(shape.queries, shape.keys) / 256, 1, 8);
}

using Pass = FunctionRef<void(float* slot, size_t n, size_t h, Share share)>;

// Runs `sums` over the positions 0 .. first - 1, adds up the sums of the parts, then runs `rest`
// over the positions 0 .. second - 1.
void Deal(const LinearAttentionShape& shape, Scratch scratch, ParallelFor parallel_for,
          size_t first, size_t second, Pass sums, Pass rest) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  const size_t slot_size = LinearAttentionScratch(shape), sums_size = SumsSize(shape);
  const size_t problems = shape.batch * shape.heads, parts = Parts(shape);
  const size_t tasks = problems * parts;
  const auto deal = [&](FunctionRef<void(float* slot, size_t problem, size_t part)> task) {
    parallel_for(scratch.slots, [&](size_t begin, size_t end) {
      for (size_t slot = begin; slot < end; ++slot) {
        const size_t last = tasks * (slot + 1) / scratch.slots;
        for (size_t t = tasks * slot / scratch.slots; t < last; ++t) {
          task(scratch.data + slot * slot_size, t / parts, t % parts);
        }
      }
    });
  };
  const auto head = [&](Pass pass, float* slot, size_t problem, Share share) {
    pass(slot, problem / shape.heads, problem % shape.heads, share);
  };
  if (parts == 1) {
    deal([&](float* slot, size_t problem, size_t) {
      float* const own = slot + SlotSize(shape);
      head(sums, slot, problem, {0, first, own, true});
      head(rest, slot, problem, {0, second, own, true});
    });
    return;
  }
  float* const all = scratch.data + SlotSize(shape);  // in the first slot's scratch
  const auto at = [&](size_t problem, size_t part) {
    return all + (problem * parts + part) * sums_size;
  };
  deal([&](float* slot, size_t problem, size_t part) {
    head(sums, slot, problem,
         {first * part / parts, first * (part + 1) / parts, at(problem, part), part == 0});
  });
  for (size_t problem = 0; problem < problems; ++problem) {
    for (size_t part = 1; part < parts; ++part) {
      for (size_t i = 0; i < sums_size; ++i) at(problem, 0)[i] += at(problem, part)[i];
    }
  }
  deal([&](float* slot, size_t problem, size_t part) {
    head(rest, slot, problem,
         {second * part / parts, second * (part + 1) / parts, at(problem, 0), part == 0});
  });
}

}  // namespace

size_t LinearAttentionScratch(const LinearAttentionShape& shape) {
  const size_t parts = Parts(shape), shared = parts == 1 ? 1 : shape.batch * shape.heads * parts;
  return SlotSize(shape) + shared * SumsSize(shape);
}

size_t LinearAttentionKept(const LinearAttentionShape& shape) {
  return shape.batch * shape.heads * (SumsSize(shape) + shape.queries);
}

void LinearAttentionForward(const LinearAttentionShape& shape,
                            const LinearAttentionOptions& options,
                            const LinearAttentionForwardArgs& args, Scratch scratch,
                            ParallelFor parallel_for) {
  Deal(
      shape, scratch, parallel_for, shape.keys, shape.queries,
      [&](float* slot, size_t n, size_t h, Share share) {
        HWY_DYNAMIC_DISPATCH(LinearKeysForwardF32)(shape, options, args, slot, n, h, share);
      },
      [&](float* slot, size_t n, size_t h, Share share) {
        HWY_DYNAMIC_DISPATCH(LinearQueriesForwardF32)(shape, options, args, slot, n, h, share);
      });
}

void LinearAttentionForward(const LinearAttentionShape& shape,
                            const LinearAttentionOptions& options,
                            const LinearAttentionForwardArgsBf16& args, Scratch scratch,
                            ParallelFor parallel_for) {
  Deal(
      shape, scratch, parallel_for, shape.keys, shape.queries,
      [&](float* slot, size_t n, size_t h, Share share) {
        HWY_DYNAMIC_DISPATCH(LinearKeysForwardBf16)(shape, options, args, slot, n, h, share);
      },
      [&](float* slot, size_t n, size_t h, Share share) {
        HWY_DYNAMIC_DISPATCH(LinearQueriesForwardBf16)(shape, options, args, slot, n, h, share);
      });
}

void LinearAttentionBackward(const LinearAttentionShape& shape,
                             const LinearAttentionOptions& options,
                             const LinearAttentionBackwardArgs& args, Scratch scratch,
                             ParallelFor parallel_for) {
  assert(args.kept != nullptr || shape.batch * shape.heads == 0);
  Deal(
      shape, scratch, parallel_for, shape.queries, shape.keys,
      [&](float* slot, size_t n, size_t h, Share share) {
        HWY_DYNAMIC_DISPATCH(LinearQueriesBackwardF32)(shape, options, args, slot, n, h, share);
      },
      [&](float* slot, size_t n, size_t h, Share share) {
        HWY_DYNAMIC_DISPATCH(LinearKeysBackwardF32)(shape, options, args, slot, n, h, share);
      });
}

void LinearAttentionBackward(const LinearAttentionShape& shape,
                             const LinearAttentionOptions& options,
                             const LinearAttentionBackwardArgsBf16& args, Scratch scratch,
                             ParallelFor parallel_for) {
  assert(args.kept != nullptr || shape.batch * shape.heads == 0);
  Deal(
      shape, scratch, parallel_for, shape.queries, shape.keys,
      [&](float* slot, size_t n, size_t h, Share share) {
        HWY_DYNAMIC_DISPATCH(LinearQueriesBackwardBf16)(shape, options, args, slot, n, h, share);
      },
      [&](float* slot, size_t n, size_t h, Share share) {
        HWY_DYNAMIC_DISPATCH(LinearKeysBackwardBf16)(shape, options, args, slot, n, h, share);
      });
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
