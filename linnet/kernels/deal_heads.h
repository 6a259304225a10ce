// Divides the work of an attention kernel among the slots of its Scratch (strided.h). The work
// consists of problems: one problem is one head of one sequence. Private to the kernels.
//
//   DealHeads({shape.batch, shape.heads, args.offsets}, slot_size, scratch, parallel_for,
//             [&](float* slot, size_t n, size_t h) { ... });
#ifndef LINNET_KERNELS_DEAL_HEADS_H_
#define LINNET_KERNELS_DEAL_HEADS_H_

#include <cstddef>
#include <cstdint>

#include "linnet/base/function_ref.h"
#include "linnet/base/parallel.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels {

struct HeadProblems {
  size_t batch, heads;
  const int64_t* offsets;  // of packed sequences, or null

  // Index of the first problem of `slot`, one of `slots` slots. Packed sequences differ in length,
  // so they are divided by tokens: the result is the smallest index such that the problems before
  // it hold at least the fraction slot / slots of all tokens.
  size_t First(size_t slot, size_t slots) const {
    if (!offsets || slot == 0 || slot == slots) return batch * heads * slot / slots;
    // The slots before this one should hold this many tokens, counted once for each head.
    const size_t share = static_cast<size_t>(offsets[batch]) * heads * slot / slots;
    // Finds the last sequence n such that the sequences before n hold fewer tokens than the share.
    // The rest of the share is a number of heads of n, which all have the same length.
    size_t n = batch;
    while (n > 0 && static_cast<size_t>(offsets[n]) * heads >= share) --n;
    const size_t before = static_cast<size_t>(offsets[n]) * heads;
    if (before >= share) return n * heads;
    const size_t length = static_cast<size_t>(offsets[n + 1] - offsets[n]);
    return n * heads + (share - before + length - 1) / length;
  }
};

// Calls body(slot, n, h) once for each head h of each sequence n. Each slot handles a contiguous
// range of problems. The argument `slot` points to the slot's scratch, slot_size floats.
inline void DealHeads(const HeadProblems& problems, size_t slot_size, Scratch scratch,
                      ParallelFor parallel_for,
                      FunctionRef<void(float* slot, size_t n, size_t h)> body) {
  parallel_for(scratch.slots, [&](size_t begin, size_t end) {
    for (size_t slot = begin; slot < end; ++slot) {
      const size_t last = problems.First(slot + 1, scratch.slots);
      for (size_t p = problems.First(slot, scratch.slots); p < last; ++p) {
        body(scratch.data + slot * slot_size, p / problems.heads, p % problems.heads);
      }
    }
  });
}

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_DEAL_HEADS_H_
