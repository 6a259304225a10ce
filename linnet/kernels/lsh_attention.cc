#include "linnet/kernels/lsh_attention.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/lsh_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/cache_control.h"
#include "linnet/base/aligned.h"
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

// Divides pieces of work among the slots. If there are enough heads to occupy the slots, a piece is
// all the work of one head; otherwise each stage, such as the sort, has several pieces per head.
class Heads {
 public:
  Heads(const LshAttentionShape& shape, const LshAttentionOptions& options, Scratch scratch,
        ParallelFor parallel_for)
      : heads_(shape.heads),
        problems_(shape.batch * shape.heads),
        scratch_(scratch),
        slot_size_(LshAttentionScratch(shape, options)),
        parallel_for_(parallel_for) {}

  // Whether slots are idle for at most a fifth of the time if each head is one piece.
  bool OccupySlots() const {
    return Blocks(problems_, scratch_.slots) * scratch_.slots * 4 <= problems_ * 5;
  }

  // Calls body(slot's scratch, n, h, piece) for each of `pieces` pieces of each head, on all slots.
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
  size_t heads_, problems_;  // problems_: heads of all sequences
  Scratch scratch_;
  size_t slot_size_;  // in floats
  ParallelFor parallel_for_;
};

// Copies of one head's rows in contiguous memory of the slot. In a tensor [N, L, H, dim], these
// rows are so far apart that they all fall into few sets of the cache and evict each other, but
// each round reads them again, in another order.
class DenseRows {
 public:
  explicit DenseRows(float* memory) : next_(NextCacheLine(memory)) {}

  // Floats for the rows of q, v, grad_out, grad_q and grad_v. The forward needs less: q, v and out.
  static size_t Needed(const LshAttentionShape& shape) {
    return shape.length * (2 * Stride(shape.dim) + 3 * Stride(shape.value_dim)) + 16;
  }

  // Returns x itself if its rows are close together. Otherwise returns rows in the slot's memory
  // for use in place of x's, and if T is const (an input), copies the first `rows` rows of x there.
  template <typename T>
  Strided<T> Of(const Strided<T>& x, size_t n, size_t h, size_t length, size_t rows, size_t width) {
    if (IsDense(x, width)) return x;
    const Strided<float> dense{next_, 0, static_cast<ptrdiff_t>(Stride(width)), 0};
    next_ += length * Stride(width);
    if constexpr (std::is_const_v<T>) Copy(x, n, h, rows, width, dense);
    return {dense.data, dense.batch, dense.time, dense.head};
  }
  // Copies the rows written through Of(x) back to x.
  static void Finish(const Strided<float>& dense, size_t n, size_t h, size_t length, size_t width,
                     const Strided<float>& x) {
    if (!IsDense(x, width)) Copy(dense, n, h, length, width, x);
  }

 private:
  static size_t Stride(size_t width) { return (width + 15) / 16 * 16; }
  template <typename T>
  static bool IsDense(const Strided<T>& x, size_t width) {
    return x.time >= 0 && static_cast<size_t>(x.time) < 2 * width;
  }
  template <typename T>
  static void Copy(const Strided<T>& from, size_t n, size_t h, size_t rows, size_t width,
                   const Strided<float>& to) {
    // How many rows ahead to prefetch. Often only four rows share a page, and hardware prefetchers
    // do not cross pages.
    constexpr size_t kAhead = 16;
    for (size_t i = 0; i < rows; ++i) {
      const size_t next = std::min(i + kAhead, rows - 1);
      for (size_t c = 0; c < width; c += 16) {
        hwy::Prefetch(from.At(n, next, h) + c);
        hwy::Prefetch(to.At(n, next, h) + c);
      }
      std::memcpy(to.At(n, i, h), from.At(n, i, h), width * sizeof(float));
    }
  }

  float* next_;
};

// Divides the positions of a sequence, or the places of its sorted order, into blocks of `size`.
// Block i begins at First(i) and has Size(i) positions or places.
struct BlocksOf {
  size_t length, size;
  size_t count() const { return Blocks(length, size); }
  size_t First(size_t i) const { return i * size; }
  size_t Size(size_t i) const { return std::min(size, length - i * size); }
};

}  // namespace

size_t LshAttentionScratch(const LshAttentionShape& shape, const LshAttentionOptions& options) {
  return HWY_DYNAMIC_DISPATCH(LshScratch)(shape, options) + DenseRows::Needed(shape);
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
  using Args = LshAttentionForwardArgs;
  const auto hash = [&](const Args& own, float* slot, size_t n, size_t h, size_t i) {
    HWY_DYNAMIC_DISPATCH(LshHash)
    (shape, options, own, slot, n, h, blocks.First(i), blocks.Size(i));
  };
  const auto sort = [&](const Args& own, float* slot, size_t n, size_t h, size_t round) {
    HWY_DYNAMIC_DISPATCH(LshSort)(shape, options, own, slot, n, h, round);
  };
  const auto attend = [&](const Args& own, float* slot, size_t n, size_t h, size_t round,
                          size_t i) {
    HWY_DYNAMIC_DISPATCH(LshForwardBlock)
    (shape, options, own, slot, n, h, round, blocks.First(i), blocks.Size(i));
  };
  if (heads.OccupySlots()) {
    const size_t length = shape.length, dim = shape.dim, value_dim = shape.value_dim;
    heads.ForPieces(1, [&](float* slot, size_t n, size_t h, size_t) {
      DenseRows rows(slot + HWY_DYNAMIC_DISPATCH(LshScratch)(shape, options));
      const size_t valid = LshValid(shape, args.lengths, n);
      Args own = args;
      own.q = rows.Of(args.q, n, h, length, valid, dim);
      own.v = rows.Of(args.v, n, h, length, valid, value_dim);
      own.out = rows.Of(args.out, n, h, length, valid, value_dim);
      for (size_t i = 0; i < blocks.count(); ++i) hash(own, slot, n, h, i);
      for (size_t round = 0; round < shape.rounds; ++round) {
        sort(own, slot, n, h, round);
        for (size_t i = 0; i < blocks.count(); ++i) attend(own, slot, n, h, round, i);
      }
      DenseRows::Finish(own.out, n, h, length, value_dim, args.out);
    });
    return;
  }
  heads.ForPieces(blocks.count(),
                  [&](float* slot, size_t n, size_t h, size_t i) { hash(args, slot, n, h, i); });
  heads.ForPieces(shape.rounds, [&](float* slot, size_t n, size_t h, size_t round) {
    sort(args, slot, n, h, round);
  });
  for (size_t round = 0; round < shape.rounds; ++round) {
    heads.ForPieces(blocks.count(), [&](float* slot, size_t n, size_t h, size_t i) {
      attend(args, slot, n, h, round, i);
    });
  }
}

void LshAttentionBackward(const LshAttentionShape& shape, const LshAttentionOptions& options,
                          const LshAttentionBackwardArgs& args, Scratch scratch,
                          ParallelFor parallel_for) {
  assert(scratch.data != nullptr && scratch.slots > 0);
  const Heads heads(shape, options, scratch, parallel_for);
  const BlocksOf blocks{shape.length, LshBlock(options, kLshBackwardQueries)};
  using Args = LshAttentionBackwardArgs;
  const auto begin = [&](const Args& own, size_t n, size_t h, size_t i) {
    HWY_DYNAMIC_DISPATCH(LshBackwardBegin)
    (shape, own, n, h, blocks.First(i), blocks.Size(i));
  };
  const auto add = [&](const Args& own, float* slot, size_t n, size_t h, size_t round, size_t i) {
    HWY_DYNAMIC_DISPATCH(LshBackwardBlock)
    (shape, options, own, slot, n, h, round, blocks.First(i), blocks.Size(i));
  };
  // If chunks are small enough (`apart`), a block consists of whole chunks. It then writes only to
  // its own rows and to rows of the block before it, so no two even blocks write to the same rows,
  // and no two odd blocks do.
  const bool apart = options.chunk <= kLshBackwardQueries;
  const auto pairs = [&](size_t odd) { return (blocks.count() + 1 - odd) / 2; };
  if (!apart || heads.OccupySlots()) {
    const size_t length = shape.length, dim = shape.dim, value_dim = shape.value_dim;
    heads.ForPieces(1, [&](float* slot, size_t n, size_t h, size_t) {
      DenseRows rows(slot + HWY_DYNAMIC_DISPATCH(LshScratch)(shape, options));
      const size_t valid = LshValid(shape, args.lengths, n);
      Args own = args;
      own.q = rows.Of(args.q, n, h, length, valid, dim);
      own.v = rows.Of(args.v, n, h, length, valid, value_dim);
      own.grad_out = rows.Of(args.grad_out, n, h, length, valid, value_dim);
      own.grad_q = rows.Of(args.grad_q, n, h, length, valid, dim);
      own.grad_v = rows.Of(args.grad_v, n, h, length, valid, value_dim);
      for (size_t i = 0; i < blocks.count(); ++i) begin(own, n, h, i);
      for (size_t round = 0; round < shape.rounds; ++round) {
        for (const size_t odd : {0, 1}) {
          for (size_t i = 0; i < pairs(odd); ++i) add(own, slot, n, h, round, 2 * i + odd);
        }
      }
      DenseRows::Finish(own.grad_q, n, h, length, dim, args.grad_q);
      DenseRows::Finish(own.grad_v, n, h, length, value_dim, args.grad_v);
    });
    return;
  }
  heads.ForPieces(blocks.count(),
                  [&](float*, size_t n, size_t h, size_t i) { begin(args, n, h, i); });
  for (size_t round = 0; round < shape.rounds; ++round) {
    for (const size_t odd : {0, 1}) {
      heads.ForPieces(pairs(odd), [&](float* slot, size_t n, size_t h, size_t i) {
        add(args, slot, n, h, round, 2 * i + odd);
      });
    }
  }
}

}  // namespace linnet::kernels
#endif  // HWY_ONCE
