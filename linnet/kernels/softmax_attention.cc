#include "linnet/kernels/softmax_attention.h"

#include <algorithm>
#include <cassert>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/softmax_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/softmax_attention-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(AttentionScratch);
HWY_EXPORT(AttentionForwardBlock);
HWY_EXPORT(AttentionDelta);
HWY_EXPORT(AttentionBackwardKeys);
HWY_EXPORT(AttentionBackwardQueries);

namespace {

// Deals tasks to the slots in alternating order (0 .. n-1, n-1 .. 0, ...), because with a causal
// mask the cost of a head's tasks rises from the first to the last.
void ForTasks(size_t count, Scratch scratch, size_t slot_size, ParallelFor parallel_for,
              FunctionRef<void(float* slot, size_t task)> body) {
  const size_t slots = scratch.slots;
  parallel_for(slots, [&](size_t begin, size_t end) {
    for (size_t slot = begin; slot < end; ++slot) {
      for (size_t round = 0; round * slots < count; ++round) {
        const size_t task = round * slots + (round % 2 == 0 ? slot : slots - 1 - slot);
        if (task < count) body(scratch.data + slot * slot_size, task);
      }
    }
  });
}

constexpr size_t Blocks(size_t n, size_t size) { return (n + size - 1) / size; }

// Queries per task, the same for all tasks: if possible, few enough that each slot has several
// tasks.
size_t QueryBlock(const SoftmaxAttentionShape& shape, size_t problems, size_t slots) {
  const size_t several = Blocks(shape.queries * problems, 4 * slots);
  const size_t most = std::clamp(several, kLeastQueries, MaxForwardQueries(shape));
  const size_t blocks = std::max<size_t>(Blocks(shape.queries, most), 1);
  constexpr size_t kTiles = 12;  // a multiple of every target's tile rows
  return std::max<size_t>(Blocks(Blocks(shape.queries, blocks), kTiles), 1) * kTiles;
}

}  // namespace

size_t SoftmaxAttentionScratch(const SoftmaxAttentionShape& shape) {
  return HWY_DYNAMIC_DISPATCH(AttentionScratch)(shape);
}

void SoftmaxAttentionForward(const SoftmaxAttentionShape& shape,
                             const SoftmaxAttentionOptions& options,
                             const SoftmaxAttentionForwardArgs& args, Scratch scratch,
                             ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  const size_t problems = shape.batch * shape.heads;
  const size_t rows = QueryBlock(shape, problems, scratch.slots);
  const size_t blocks = Blocks(shape.queries, rows);
  ForTasks(problems * blocks, scratch, SoftmaxAttentionScratch(shape), parallel_for,
           [&](float* slot, size_t task) {
             const size_t problem = task / blocks, first = task % blocks * rows;
             HWY_DYNAMIC_DISPATCH(AttentionForwardBlock)
             (shape, options, args, slot, problem / shape.heads, problem % shape.heads, first,
              std::min(rows, shape.queries - first));
           });
}

void SoftmaxAttentionBackward(const SoftmaxAttentionShape& shape,
                              const SoftmaxAttentionOptions& options,
                              const SoftmaxAttentionBackwardArgs& args, Scratch scratch,
                              ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  assert((args.log2_sum != nullptr && args.delta != nullptr) || shape.batch * shape.queries == 0);
  const size_t problems = shape.batch * shape.heads, slots = scratch.slots;
  const size_t slot_size = SoftmaxAttentionScratch(shape);
  const size_t query_blocks = Blocks(shape.queries, kBackwardQueries);
  ForTasks(problems * query_blocks, scratch, slot_size, parallel_for, [&](float*, size_t task) {
    const size_t problem = task / query_blocks, first = task % query_blocks * kBackwardQueries;
    HWY_DYNAMIC_DISPATCH(AttentionDelta)
    (shape, args, problem / shape.heads, problem % shape.heads, first,
     std::min(kBackwardQueries, shape.queries - first));
  });

  // One sweep computes five matrix products. Two sweeps compute seven, because both need the scores
  // and v . grad_out. One sweep is used unless idle slots make it slower than two sweeps.
  if (Blocks(problems, slots) * slots * 5 <= problems * 7) {
    ForTasks(problems, scratch, slot_size, parallel_for, [&](float* slot, size_t problem) {
      HWY_DYNAMIC_DISPATCH(AttentionBackwardKeys)
      (shape, options, args, slot, problem / shape.heads, problem % shape.heads, 0, shape.keys,
       /*with_queries=*/true);
    });
    return;
  }
  const size_t key_blocks = Blocks(shape.keys, kKeyBlock), tasks = key_blocks + query_blocks;
  ForTasks(problems * tasks, scratch, slot_size, parallel_for, [&](float* slot, size_t task) {
    const size_t problem = task / tasks, n = problem / shape.heads, h = problem % shape.heads;
    const size_t block = task % tasks;
    if (block < key_blocks) {
      const size_t first = block * kKeyBlock;
      HWY_DYNAMIC_DISPATCH(AttentionBackwardKeys)
      (shape, options, args, slot, n, h, first, std::min(kKeyBlock, shape.keys - first),
       /*with_queries=*/false);
    } else {
      const size_t first = (block - key_blocks) * kBackwardQueries;
      HWY_DYNAMIC_DISPATCH(AttentionBackwardQueries)
      (shape, options, args, slot, n, h, first, std::min(kBackwardQueries, shape.queries - first));
    }
  });
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
