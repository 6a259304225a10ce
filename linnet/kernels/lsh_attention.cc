#include "linnet/kernels/lsh_attention.h"

#include <algorithm>
#include <cassert>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/lsh_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/lsh_attention-inl.h"

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(LshScratch);
HWY_EXPORT(LshHash);
HWY_EXPORT(LshSort);
HWY_EXPORT(LshForwardBlock);
HWY_EXPORT(LshBackwardBegin);
HWY_EXPORT(LshBackwardBlock);

namespace {

constexpr size_t Blocks(size_t n, size_t size) { return (n + size - 1) / size; }

// A head's pieces one after the other or, where heads do not occupy the slots, each kind of all
// heads' pieces at once.
class Heads {
 public:
  Heads(const LshAttentionShape& shape, const LshAttentionOptions& options, Scratch scratch,
        ParallelFor parallel_for)
      : heads_(shape.heads),
        problems_(shape.batch * shape.heads),
        scratch_(scratch),
        slot_size_(LshAttentionScratch(shape, options)),
        parallel_for_(parallel_for) {}

  // Whether the heads leave less than a fifth of the slots idle.
  bool OccupySlots() const {
    return Blocks(problems_, scratch_.slots) * scratch_.slots * 4 <= problems_ * 5;
  }

  // body(slot's scratch, n, h, piece) for each of `pieces` pieces of each head, on all slots.
  using Body = FunctionRef<void(float* slot, size_t n, size_t h, size_t piece)>;
  void ForPieces(size_t pieces, Body body) const {
    const size_t slots = scratch_.slots, tasks = problems_ * pieces;
    parallel_for_(slots, [&](size_t begin, size_t end) {
      for (size_t slot = begin; slot < end; ++slot) {
        for (size_t task = tasks * slot / slots; task < tasks * (slot + 1) / slots; ++task) {
          const size_t head = task / pieces;
          body(scratch_.data + slot * slot_size_, head / heads_, head % heads_, task % pieces);
        }
      }
    });
  }

 private:
  size_t heads_, problems_;
  Scratch scratch_;
  size_t slot_size_;
  ParallelFor parallel_for_;
};

// The blocks of a sequence.
struct BlocksOf {
  size_t length, size;
  size_t count() const { return Blocks(length, size); }
  size_t First(size_t i) const { return i * size; }
  size_t Size(size_t i) const { return std::min(size, length - i * size); }
};

}  // namespace

size_t LshAttentionScratch(const LshAttentionShape& shape, const LshAttentionOptions& options) {
  return HWY_DYNAMIC_DISPATCH(LshScratch)(shape, options);
}

size_t LshAttentionPlaces(const LshAttentionShape& shape) {
  return 2 * shape.batch * shape.heads * shape.length * shape.rounds;
}

size_t LshAttentionSums(const LshAttentionShape& shape) {
  return 3 * shape.batch * shape.heads * shape.length;
}

void LshAttentionForward(const LshAttentionShape& shape, const LshAttentionOptions& options,
                         const LshAttentionForwardArgs& args, Scratch scratch,
                         ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  const Heads heads(shape, options, scratch, parallel_for);
  const BlocksOf blocks{shape.length, LshBlock(options, kLshForwardQueries)};
  const auto hash = [&](float* slot, size_t n, size_t h, size_t i) {
    HWY_DYNAMIC_DISPATCH(LshHash)
    (shape, options, args, slot, n, h, blocks.First(i), blocks.Size(i));
  };
  const auto sort = [&](float* slot, size_t n, size_t h, size_t round) {
    HWY_DYNAMIC_DISPATCH(LshSort)(shape, options, args, slot, n, h, round);
  };
  const auto attend = [&](float* slot, size_t n, size_t h, size_t round, size_t i) {
    HWY_DYNAMIC_DISPATCH(LshForwardBlock)
    (shape, options, args, slot, n, h, round, blocks.First(i), blocks.Size(i));
  };
  if (heads.OccupySlots()) {
    heads.ForPieces(1, [&](float* slot, size_t n, size_t h, size_t) {
      for (size_t i = 0; i < blocks.count(); ++i) hash(slot, n, h, i);
      for (size_t round = 0; round < shape.rounds; ++round) {
        sort(slot, n, h, round);
        for (size_t i = 0; i < blocks.count(); ++i) attend(slot, n, h, round, i);
      }
    });
    return;
  }
  heads.ForPieces(blocks.count(), hash);
  heads.ForPieces(shape.rounds, sort);
  for (size_t round = 0; round < shape.rounds; ++round) {
    heads.ForPieces(blocks.count(), [&](float* slot, size_t n, size_t h, size_t i) {
      attend(slot, n, h, round, i);
    });
  }
}

void LshAttentionBackward(const LshAttentionShape& shape, const LshAttentionOptions& options,
                          const LshAttentionBackwardArgs& args, Scratch scratch,
                          ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  const Heads heads(shape, options, scratch, parallel_for);
  const BlocksOf blocks{shape.length, LshBlock(options, kLshBackwardQueries)};
  const auto begin = [&](float*, size_t n, size_t h, size_t i) {
    HWY_DYNAMIC_DISPATCH(LshBackwardBegin)
    (shape, args, n, h, blocks.First(i), blocks.Size(i));
  };
  const auto add = [&](float* slot, size_t n, size_t h, size_t round, size_t i) {
    HWY_DYNAMIC_DISPATCH(LshBackwardBlock)
    (shape, options, args, slot, n, h, round, blocks.First(i), blocks.Size(i));
  };
  // A block of whole chunks adds to its own rows and to those of the block before it: so those with
  // an even number write to different rows, and those with an odd one.
  const bool apart = options.chunk <= kLshBackwardQueries;
  const auto pairs = [&](size_t odd) { return (blocks.count() + 1 - odd) / 2; };
  if (!apart || heads.OccupySlots()) {
    heads.ForPieces(1, [&](float* slot, size_t n, size_t h, size_t) {
      for (size_t i = 0; i < blocks.count(); ++i) begin(slot, n, h, i);
      for (size_t round = 0; round < shape.rounds; ++round) {
        for (const size_t odd : {0, 1}) {
          for (size_t i = 0; i < pairs(odd); ++i) add(slot, n, h, round, 2 * i + odd);
        }
      }
    });
    return;
  }
  heads.ForPieces(blocks.count(), begin);
  for (size_t round = 0; round < shape.rounds; ++round) {
    for (const size_t odd : {0, 1}) {
      heads.ForPieces(pairs(odd), [&](float* slot, size_t n, size_t h, size_t i) {
        add(slot, n, h, round, 2 * i + odd);
      });
    }
  }
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
