// Layout of a scan's scratch and of the buffer `kept` (private to scan.cc and its Highway bodies).
#ifndef LINNET_KERNELS_SCAN_KEPT_H_
#define LINNET_KERNELS_SCAN_KEPT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "linnet/base/aligned.h"
#include "linnet/kernels/scan.h"

namespace linnet::kernels {

// Maximum number of positions in a block: kScanSolveBlock, the size of the triangular system, if
// values are solved; otherwise kScanBlock.
inline constexpr size_t kScanBlock = 32, kScanSolveBlock = 16;
// The forward keeps the state at every position that is a multiple of this.
inline constexpr size_t kScanSegment = 256;

// Whether values are solved: they depend on the state, so the values of a block form a triangular
// system (see scan_block-inl.h).
inline bool Solves(const ScanOptions& options) { return options.write != ScanWrite::kAdd; }
// Whether a position writes the given k v^T of the inputs, alone or beside a solved value.
inline bool Gives(const ScanOptions& options) {
  return options.write == ScanWrite::kAdd || options.write == ScanWrite::kRwkv7;
}

// Sizes of a head. With `normalize`, z is stored as one more column of the state; each position
// writes the value 1 to this column.
struct ScanSizes {
  size_t dim, value_dim;
  size_t columns;  // of the state, including z
  size_t dp, mp;   // dim and columns, padded

  ScanSizes(const ScanShape& shape, const ScanOptions& options)
      : dim(shape.dim),
        value_dim(shape.value_dim),
        columns(value_dim + options.normalize),
        dp(RoundUp(dim, 16)),
        mp(RoundUp(columns, 16)) {}
};

// Layout of `kept`: dense states [states, D, columns], then denominators [rows].
struct ScanLayout {
  size_t states, state_size, rows;

  // tokens: total over all sequences.
  ScanLayout(const ScanShape& shape, const ScanOptions& options, size_t tokens, bool packed)
      : states(shape.heads *
               (packed ? tokens / kScanSegment + shape.batch : shape.batch * Of(shape.length))),
        state_size(shape.dim * ScanSizes(shape, options).columns),
        rows(options.normalize ? tokens * shape.heads : 0) {}

  // Number of states kept for one head of a sequence.
  static size_t Of(size_t length) { return (length + kScanSegment - 1) / kScanSegment; }
  // Number of states reserved per head for the sequences before n. A sequence has at most
  // length / kScanSegment + 1 segments.
  static size_t First(const ScanShape& shape, const int64_t* offsets, size_t n) {
    if (!offsets) return n * Of(shape.length);
    return static_cast<size_t>(offsets[n]) / kScanSegment + n;
  }
};

// Hands out consecutive pieces of a slot's scratch, each aligned to a cache line. With null
// scratch, Take() returns null and only counts the floats.
class ScanPieces {
 public:
  explicit ScanPieces(float* scratch) : begin_(NextCacheLine(scratch)) {}
  float* Take(size_t n) {
    const size_t at = taken_;
    taken_ += RoundUp(n, 16);
    return begin_ ? begin_ + at : nullptr;
  }
  // Size of scratch, in floats, that holds everything taken, at any alignment of the scratch.
  size_t Needed() const { return taken_ + 16; }

 private:
  float* begin_;
  size_t taken_ = 0;
};

// Working memory of a block of positions.
struct ScanBlockPieces {
  float *q, *a;          // rows that read the state, for out and for solved values [kScanBlock, dp]
  float *keys, *values;  // rows that write to the state, [kScanBlock, dp] and [kScanBlock, mp]; if
                         // there are both given and solved rows, these alternate
  float *read, *write;   // decay factors of the rows that read and that write [kScanBlock, dp]
  float* decay;          // decay factors of the whole block [dp]
  float* sums;           // sums of logarithms of decay [dp]
  float* ones;           // [kScanBlock]
  float* panels;         // two transposed sets of keys [dp, kScanSolveBlock]
  float* products;       // matrices [8, kScanSolveBlock, kScanSolveBlock]

  ScanBlockPieces(const ScanSizes& size, ScanPieces& pieces)
      : q(pieces.Take(kScanBlock * size.dp)),
        a(pieces.Take(kScanBlock * size.dp)),
        keys(pieces.Take(kScanBlock * size.dp)),
        values(pieces.Take(kScanBlock * size.mp)),
        read(pieces.Take(kScanBlock * size.dp)),
        write(pieces.Take(kScanBlock * size.dp)),
        decay(pieces.Take(size.dp)),
        sums(pieces.Take(size.dp)),
        ones(pieces.Take(kScanBlock)),
        panels(pieces.Take(2 * size.dp * kScanSolveBlock)),
        products(pieces.Take(8 * kScanSolveBlock * kScanSolveBlock)) {}
};

struct ScanForwardPieces {
  ScanBlockPieces block;
  float* out;    // [kScanBlock, mp]
  float* s;      // strips [dp, mp]
  float* dense;  // [D, columns]
  size_t needed;

  ScanForwardPieces(const ScanSizes& size, float* scratch)
      : ScanForwardPieces(size, ScanPieces(scratch)) {}

 private:
  ScanForwardPieces(const ScanSizes& size, ScanPieces pieces)
      : block(size, pieces),
        out(pieces.Take(kScanBlock * size.mp)),
        s(pieces.Take(size.dp * size.mp)),
        dense(pieces.Take(size.dim * size.columns)),
        needed(pieces.Needed()) {}
};

// The buffers of the backward of kAdd, which writes keys and values unchanged.
struct ScanAddBackwardPieces {
  ScanBlockPieces block;
  float *go, *dv, *dq, *dk;      // rows of a block: gradients of out, v, q and k
  float* front;                  // strips [mp, dp]: the transposed state
  float *behind_md, *behind_dm;  // strips [mp, dp] and [dp, mp]: the gradient of the state
  float* dense;                  // [D, columns]
  float* products;               // [kScanSegment, dp]: q * dq
  float* decay_sums;             // [dp]
  size_t needed;

  ScanAddBackwardPieces(const ScanSizes& size, float* scratch)
      : ScanAddBackwardPieces(size, ScanPieces(scratch)) {}

 private:
  ScanAddBackwardPieces(const ScanSizes& size, ScanPieces pieces) : block(size, pieces) {
    for (float** x : {&go, &dv}) *x = pieces.Take(kScanBlock * size.mp);
    for (float** x : {&dq, &dk}) *x = pieces.Take(kScanBlock * size.dp);
    for (float** x : {&front, &behind_md, &behind_dm}) *x = pieces.Take(size.dp * size.mp);
    dense = pieces.Take(size.dim * size.columns);
    products = pieces.Take(kScanSegment * size.dp);
    decay_sums = pieces.Take(size.dp);
    needed = pieces.Needed();
  }
};

struct ScanBackwardPieces {
  ScanBlockPieces block;
  // Gradients of a block, kScanSolveBlock rows each: of out, solved values and given values, and of
  // the rows q, a, given keys and solved keys.
  float *go, *dy, *dv, *dq, *da, *dk, *db;
  float* values_t;   // two transposed sets of values [mp, kScanSolveBlock]
  float *s, *g;      // a state and the gradient of a state [dp, mp]
  float *s_t, *g_t;  // the same, transposed [mp, dp]
  float* start_t;    // a block's first state, transposed and scaled
  float* solved;     // [kScanSegment, mp], and the rows that a transpose may read beyond them
  // States at the start of each cell (kScanSolveBlock positions) of a segment, and after each block
  // of a cell.
  float *cells, *blocks;
  size_t needed;

  ScanBackwardPieces(const ScanSizes& size, float* scratch)
      : ScanBackwardPieces(size, ScanPieces(scratch)) {}

 private:
  ScanBackwardPieces(const ScanSizes& size, ScanPieces pieces) : block(size, pieces) {
    constexpr size_t kRows = kScanSolveBlock;
    for (float** x : {&go, &dy, &dv}) *x = pieces.Take(kRows * size.mp);
    for (float** x : {&dq, &da, &dk, &db}) *x = pieces.Take(kRows * size.dp);
    values_t = pieces.Take(2 * size.mp * kRows);
    for (float** x : {&s, &g, &s_t, &g_t, &start_t}) *x = pieces.Take(size.dp * size.mp);
    solved = pieces.Take((kScanSegment + kScanSolveBlock - 1) * size.mp);
    cells = pieces.Take(kScanSegment / kRows * size.dp * size.mp);
    blocks = pieces.Take(kRows * size.dp * size.mp);
    needed = pieces.Needed();
  }
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_SCAN_KEPT_H_
