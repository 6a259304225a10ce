// The tile program of causal linear attention (tile.h), for the forward and for each of the three
// gradients. All four are the same product, over the positions in order or in reverse:
//
//   out_i = sum_j (a_i . b_j) c_j,   j up to i (in reverse: j from i on)
//
//   forward   a = phi(q)  b = phi(k)        c = [v, 1]        the last column is the denominator
//   grad_q    a = [g, d]  b = [v, 1]        c = phi(k)        times phi'(q) / den
//   grad_k    a = [v, 1]  b = [g, d]        c = phi(q) / den  times phi'(k); in reverse
//   grad_v    a = phi(k)  b = phi(q) / den  c = g             in reverse
//
// where g = grad_out, den is the denominator, and d = -g . out is den times the derivative of the
// loss with respect to den. g and d are not divided by den before they are multiplied: g . v + d is
// a small difference of large numbers, which the rounding of g / den and d / den would spoil. With
// elu + 1, phi'(x) = min(phi(x), 1), so phi' is computed from phi(x).
//
// A block computes one sequence and head, and at most kSlice of the columns of c, in chunks of
// kChunk positions. Terms j from the same chunk come from the masked square matrix of a_i . b_j.
// Terms from earlier chunks come from their sum t = sum_j b_j c_j^T, which stays in registers in
// fp32.
//
// If that gives too few blocks to fill a GPU, a sequence is divided into segments, one per block. A
// block first adds up its own segment. Next, it reads the sum of all earlier segments, which the
// block of the previous segment has written, adds its own sum, and writes the result for the next
// block. Then it computes as above. Blocks take their segments in order when they start, so a block
// waits only for blocks that have started. A segment is read twice, the second time from the L2
// cache.
//
// Products are of bf16, with sums in fp32. fp32 inputs are split into a leading and a trailing bf16
// part (kSplit = 2), and products of two trailing parts are left out: 16 bits of mantissa remain.
//
// One warp computes 16 rows of a chunk. Between two barriers it reads the chunk's rows and the sums
// of earlier chunks, both in bf16 from shared memory, and writes its tiles of the new sums to a
// second buffer in shared memory. Meanwhile, copies of later chunks are under way.
#ifndef LINNET_KERNELS_CUDA_CAUSAL_PRODUCT_TILE_H_
#define LINNET_KERNELS_CUDA_CAUSAL_PRODUCT_TILE_H_

#include <cstddef>
#include <cstdint>

#include "linnet/kernels/cuda/sequence_tile.h"
#include "linnet/kernels/cuda/tile.h"
#include "linnet/kernels/strided.h"

namespace linnet::kernels::cuda {

enum class Product : uint8_t { kForward, kGradQ, kGradK, kGradV };

// Arguments of all four products. T: float or BFloat16. Pointers are to device memory, rows are
// aligned to 16 bytes.
template <typename T>
struct CausalProductArgs {
  unsigned batch = 0, heads = 0, length = 0;
  unsigned dim = 0, value_dim = 0;  // multiples of 8, at most kWidth
  bool elu = true, normalize = true;
  float eps = 0;
  const int64_t* lengths = nullptr;  // as in kernels/causal_linear.h
  const int64_t* offsets = nullptr;
  Strided<const T> q, k, v, grad_out;
  Strided<T> out, grad_q, grad_k, grad_v;
  // inverse: 1 / den, written by the forward unless null, and read by the gradients. delta: d. Both
  // are indexed by FirstRowOf() + position.
  float* inverse = nullptr;
  const float* delta = nullptr;
  // States: s [N, H, D, M] and z [N, H, D]. A null input means zeros; a null output is not
  // computed.
  const float *s = nullptr, *z = nullptr;  // initial state
  float *final_s = nullptr, *final_z = nullptr;
  const float *grad_s = nullptr, *grad_z = nullptr;
  float *grad_s0 = nullptr, *grad_z0 = nullptr;
  // segments: number of segments that a sequence is divided into, each computed by its own blocks.
  // segment_length: positions per segment, a multiple of kMostChunk.
  unsigned segments = 1, segment_length = 0;
  // If there are several segments: receives the sums up to the end of each segment, in the order in
  // which the threads of a block hold them.
  float* segment_sums = nullptr;
  // started: number of blocks that have started. written: one flag per block, set once the block
  // has written its sums. Both are zero at the launch.
  unsigned* started = nullptr;
  unsigned* written = nullptr;
};

inline constexpr unsigned kMostChunk = 128;

// Index in `inverse` and `delta` of position 0 of a sequence and head: a multiple of 4.
template <typename T>
LINNET_TILE size_t FirstRowOf(const CausalProductArgs<T>& args, unsigned n, unsigned h) {
  const size_t heads = args.heads;
  if (args.offsets == nullptr) {
    return (n * heads + h) * ((args.length + 3) / 4 * 4);
  }
  const size_t total = (args.length + 3) / 4 * 4 + 4 * static_cast<size_t>(args.batch);
  return h * total + (static_cast<size_t>(args.offsets[n]) + 3) / 4 * 4 +
         4 * static_cast<size_t>(n);
}

// Sizes of a product, in threads, elements and bytes of shared memory. kWidth: 16, 32, 64 or 128,
// at least D and M. kSplit: bf16 parts per element.
template <int kWidth_, int kSplit_, Product kProduct_>
struct ProductSizes {
  static constexpr int kWidth = kWidth_, kSplit = kSplit_;
  static constexpr Product kProduct = kProduct_;
  static constexpr bool kForward = kProduct == Product::kForward;
  static constexpr bool kReverse = kProduct == Product::kGradK || kProduct == Product::kGradV;
  // Whether a and b have extra columns behind the value columns, so that a . b is g . v + d.
  static constexpr bool kGradient = kProduct == Product::kGradQ || kProduct == Product::kGradK;
  static constexpr int kSlice = kWidth <= (kSplit == 1 ? 64 : 32) ? kWidth : kSplit == 1 ? 64 : 32;
  static constexpr int kSlices = kWidth / kSlice;
  // Columns of a and b (kInner) and of c (kOuter), including the extra columns. A matrix product
  // takes 16 columns of a and 8 of c. c is read 16 columns at a time, so its rows have room for
  // kOuterRoom columns.
  static constexpr int kInner = kGradient ? kWidth + 16 : kWidth;
  static constexpr int kOuter = kForward ? kSlice + 8 : kSlice;
  static constexpr int kOuterRoom = kForward ? kSlice + 16 : kSlice;
  // Row strides, padded so that eight rows begin in different banks.
  static constexpr int Stride(int columns) { return columns * kSplit + 8; }
  static constexpr int kInnerStride = Stride(kInner), kOuterStride = Stride(kOuterRoom);
  static constexpr int kExtraStride = Stride(kSlice);  // of e: phi(q) or phi(k), for phi'
  static constexpr int kRowElements =
      2 * kInnerStride + kOuterStride + (kGradient ? kExtraStride : 0);
  static constexpr int kSumElements = kInner * kOuterStride;
  static constexpr int Bytes(int warps, int stages) {
    return 2 * (stages * 16 * warps * kRowElements + 2 * kSumElements);
  }
  static constexpr int kMost = 160 * 1024;  // compute capability 8.0 allows 163 kB per block
  static constexpr int kWarps = Bytes(8, 1) <= kMost ? 8 : 4;
  static constexpr int kStages = Bytes(kWarps, 2) <= kMost ? 2 : 1;  // chunks held at a time
  static constexpr int kBytes = Bytes(kWarps, kStages);
  static_assert(kBytes <= kMost);
  static constexpr int kThreads = 32 * kWarps, kChunk = 16 * kWarps;
  static_assert(kMostChunk % kChunk == 0);
  static constexpr int kChunkElements = kChunk * kRowElements;
  // The sums t are divided into tiles of 16 x 8, numbered column by column. A warp holds up to
  // kOwnTiles consecutive tiles.
  static constexpr int kRowTiles = kInner / 16, kColumnTiles = kOuter / 8;
  static constexpr int kTiles = kRowTiles * kColumnTiles;
  static constexpr int kOwnTiles = (kTiles + kWarps - 1) / kWarps;
  // Number of floats of one block's sums, as its threads hold them.
  static constexpr int kSumFloats = kOwnTiles * 4 * kThreads;
};

// Number of blocks of a product.
template <class Sizes, typename T>
inline unsigned BlocksOf(const CausalProductArgs<T>& args) {
  return args.batch * args.heads * Sizes::kSlices * args.segments;
}

template <class Tile, class Sizes, typename T>
class CausalProduct {
 public:
  static constexpr Product kProduct = Sizes::kProduct;
  static constexpr int kSplit = Sizes::kSplit, kWidth = Sizes::kWidth, kSlice = Sizes::kSlice;
  static constexpr unsigned kChunk = Sizes::kChunk;
  static constexpr int kVector = 16 / sizeof(T);  // elements of T that a copy moves

  LINNET_TILE CausalProduct(Tile& tile, const CausalProductArgs<T>& args, unsigned block)
      : tile_(tile),
        args_(args),
        extra_(args.normalize && kProduct != Product::kGradV),
        places_(args.batch * args.heads),
        place_(block % places_),
        slice_(block / places_ % Sizes::kSlices),
        order_(block / places_ / Sizes::kSlices),
        n_(place_ / args.heads),
        h_(place_ % args.heads) {
    const SequenceRows rows = RowsOf(n_, args.offsets, args.lengths, args.length);
    first_ = rows.first, length_ = rows.length, valid_ = rows.valid;
    row_ = FirstRowOf(args, n_, h_);
    if constexpr (kProduct == Product::kForward) {
      a_ = Queries<kWidth>(0), b_ = Keys<kWidth>(0), c_ = Values<kSlice>(SliceBegin());
    } else if constexpr (kProduct == Product::kGradQ) {
      a_ = Gradients<kWidth>(0), b_ = Values<kWidth>(0);
      c_ = Keys<kSlice>(SliceBegin()), e_ = Queries<kSlice>(SliceBegin());
    } else if constexpr (kProduct == Product::kGradK) {
      a_ = Values<kWidth>(0), b_ = Gradients<kWidth>(0);
      c_ = Queries<kSlice>(SliceBegin()), e_ = Keys<kSlice>(SliceBegin());
    } else {
      a_ = Keys<kWidth>(0), b_ = Queries<kWidth>(0), c_ = Gradients<kSlice>(SliceBegin());
    }
  }

  LINNET_TILE void Run() {
    const unsigned chunks = (length_ + kChunk - 1) / kChunk;
    begin_ = 0, end_ = chunks;
    if (args_.segments > 1) {
      const unsigned segment = Sizes::kReverse ? args_.segments - 1 - order_ : order_;
      begin_ = segment * (args_.segment_length / kChunk);
      end_ = begin_ + args_.segment_length / kChunk;
      if (begin_ > chunks) begin_ = chunks;
      if (end_ > chunks) end_ = chunks;
    }
    ClearShared();
    if (order_ == 0) {
      LoadState();
    } else {
      ForSums([&](float& sum, unsigned, unsigned, int) { sum = 0.0f; });
    }
    if (!IsLast()) {
      sums_only_ = true;
      Sweep();
      sums_only_ = false;
    }
    if (args_.segments > 1) PassSums();
    Sweep();
    if (IsLast()) StoreState();
  }

 private:
  using Element = BFloat16;

  LINNET_TILE unsigned ChunkAt(unsigned i) const {
    return Sizes::kReverse ? end_ - 1 - i : begin_ + i;
  }
  LINNET_TILE bool IsLast() const { return order_ + 1 == args_.segments; }

  // Computes the results of the block's chunks and adds the chunks to the sums. With sums_only_, it
  // computes no results.
  LINNET_TILE void Sweep() {
    const unsigned count = end_ - begin_;
    if (!sums_only_) WriteSums(0);
    for (unsigned i = 0; i + 1 < Sizes::kStages; ++i) {
      if (i < count) Fetch(ChunkAt(i), i);
      tile_.CopyCommit();
    }
    if (count > 0) FetchRows(ChunkAt(0));
    for (unsigned i = 0; i < count; ++i) {
      const unsigned chunk = ChunkAt(i), stage = i % Sizes::kStages;
      if constexpr (Sizes::kStages == 1) {
        Fetch(chunk, 0);
        tile_.CopyCommit();
        tile_.template CopyWait<0>();
      } else {
        tile_.template CopyWait<Sizes::kStages - 2>();
      }
      Transform(chunk, stage);
      tile_.Barrier();
      if (Sizes::kStages > 1) {
        const unsigned next = i + Sizes::kStages - 1;
        if (next < count) Fetch(ChunkAt(next), next % Sizes::kStages);
        tile_.CopyCommit();
      }
      FetchInverse(chunk);
      if (i + 1 < count) FetchRows(ChunkAt(i + 1));
      if (!sums_only_) Results(chunk, stage, i % 2);
      AddSums(stage);
      if (!sums_only_) WriteSums((i + 1) % 2);
      if (Sizes::kStages == 1) tile_.Barrier();
    }
    tile_.template CopyWait<0>();
    tile_.Barrier();
  }

  // Writes the sums up to the end of this segment for the next block, and sets this block's sums to
  // those of all earlier segments.
  LINNET_TILE void PassSums() {
    const size_t line = static_cast<size_t>(places_) * Sizes::kSlices;
    const size_t at = slice_ * static_cast<size_t>(places_) + place_;
    const auto sums_of = [&](unsigned order) {
      return args_.segment_sums + (order * line + at) * Sizes::kSumFloats + tile_.thread();
    };
    if (order_ > 0) {
      if (tile_.thread() == 0) tile_.Await(args_.written + (order_ - 1) * line + at);
      tile_.Barrier();
      const float* from = sums_of(order_ - 1);
      float* to = sums_of(order_);
      const bool pass = !IsLast();
      unsigned i = 0;
      ForSums([&](float& sum, unsigned, unsigned, int) {
        const float before = tile_.LoadFresh(from + i * Sizes::kThreads);
        if (pass) to[i * Sizes::kThreads] = before + sum;
        sum = before;
        ++i;
      });
    } else {
      float* to = sums_of(0);
      unsigned i = 0;
      ForSums([&](float& sum, unsigned, unsigned, int) { to[i++ * Sizes::kThreads] = sum; });
      LoadState();
    }
    if (IsLast()) return;
    tile_.Barrier();
    if (tile_.thread() == 0) tile_.Publish(args_.written + order_ * line + at);
  }

  // --- Shared memory ---

  // Offsets in shared memory, in elements: the tiles of a, b, c and e of one stage (the buffer of
  // one chunk), and one of the two buffers of the sums.
  LINNET_TILE unsigned AOf(unsigned stage) const { return stage * Sizes::kChunkElements; }
  LINNET_TILE unsigned BOf(unsigned stage) const {
    return AOf(stage) + kChunk * Sizes::kInnerStride;
  }
  LINNET_TILE unsigned COf(unsigned stage) const {
    return BOf(stage) + kChunk * Sizes::kInnerStride;
  }
  LINNET_TILE unsigned EOf(unsigned stage) const {
    return COf(stage) + kChunk * Sizes::kOuterStride;
  }
  LINNET_TILE unsigned SumsOf(unsigned buffer) const {
    return Sizes::kStages * Sizes::kChunkElements + buffer * Sizes::kSumElements;
  }
  LINNET_TILE auto Memory() const {
    return tile_.template Shared<Element>(0, Sizes::kBytes / sizeof(Element));
  }
  // Index of an element. The leading parts of eight columns are followed by their trailing parts.
  static LINNET_TILE unsigned At(unsigned row, unsigned stride, unsigned column, unsigned part) {
    return row * stride + column / 8 * (8 * kSplit) + part * 8 + column % 8;
  }

  // Fills shared memory with zeros, and the extra columns behind the values with ones.
  LINNET_TILE void ClearShared() {
    const auto memory = Memory();
    constexpr unsigned kVectors = Sizes::kBytes / 16;
    for (unsigned i = tile_.thread(); i < kVectors; i += Sizes::kThreads) {
      memory.Store(i * 8, Vector16{});
    }
    tile_.Barrier();
    if (!extra_) return;
    const Element one = ToBf16(1.0f);
    for (unsigned i = tile_.thread(); i < Sizes::kStages * kChunk; i += Sizes::kThreads) {
      const unsigned stage = i / kChunk, row = i % kChunk;
      unsigned tile = COf(stage), stride = Sizes::kOuterStride, column = Sizes::kSlice;
      if (Sizes::kGradient) {
        tile = kProduct == Product::kGradQ ? BOf(stage) : AOf(stage);
        stride = Sizes::kInnerStride, column = kWidth;
      }
      memory.Set(tile + At(row, stride, column, 0), one);
      if (Sizes::kGradient) memory.Set(tile + At(row, stride, column + 1, 0), one);
    }
    tile_.Barrier();
  }

  // --- Copies to shared memory ---

  // The source in global memory of a tile of kColumns columns. A thread copies, and later
  // transforms, eight columns of every kStep-th row.
  struct Slot {
    const T* data = nullptr;  // the thread's first row in the first chunk
    ptrdiff_t time = 0;       // elements from one position to the next
    unsigned limit = 0;       // valid positions from that row on; later ones count as zeros
    bool inside = false;      // whether the tensor has the thread's columns
  };
  template <int kColumns>
  LINNET_TILE Slot SlotOf(const Strided<const T>& x, unsigned width, unsigned first_column,
                          unsigned limit) const {
    const unsigned row = RowOfThread<kColumns>();
    const unsigned column = first_column + ColumnOfThread<kColumns>();
    return {x.data + static_cast<ptrdiff_t>(args_.offsets ? 0 : n_) * x.batch +
                static_cast<ptrdiff_t>(first_ + row) * x.time +
                static_cast<ptrdiff_t>(h_) * x.head + column,
            x.time, limit > row ? limit - row : 0, column < width};
  }
  template <int kColumns>
  LINNET_TILE unsigned RowOfThread() const {
    return tile_.thread() / (kColumns / 8);
  }
  template <int kColumns>
  LINNET_TILE unsigned ColumnOfThread() const {
    return tile_.thread() % (kColumns / 8) * 8;
  }
  template <int kColumns>
  static constexpr unsigned kStep = Sizes::kThreads / (kColumns / 8);
  template <int kColumns>
  static constexpr int kRows = kChunk / kStep<kColumns>;  // rows per thread

  template <int kColumns>
  LINNET_TILE Slot Queries(unsigned column) const {
    return SlotOf<kColumns>(args_.q, args_.dim, column, length_);
  }
  template <int kColumns>
  LINNET_TILE Slot Keys(unsigned column) const {
    return SlotOf<kColumns>(args_.k, args_.dim, column, valid_);
  }
  template <int kColumns>
  LINNET_TILE Slot Values(unsigned column) const {
    return SlotOf<kColumns>(args_.v, args_.value_dim, column, valid_);
  }
  template <int kColumns>
  LINNET_TILE Slot Gradients(unsigned column) const {
    return SlotOf<kColumns>(args_.grad_out, args_.value_dim, column, length_);
  }
  LINNET_TILE unsigned SliceBegin() const { return slice_ * kSlice; }

  // Starts the copies of a chunk.
  LINNET_TILE void Fetch(unsigned chunk, unsigned stage) {
    if (!sums_only_) Copy<kWidth>(a_, AOf(stage), Sizes::kInnerStride, chunk);
    Copy<kWidth>(b_, BOf(stage), Sizes::kInnerStride, chunk);
    Copy<kSlice>(c_, COf(stage), Sizes::kOuterStride, chunk);
    if (Sizes::kGradient && !sums_only_) {
      Copy<kSlice>(e_, EOf(stage), Sizes::kExtraStride, chunk);
    }
  }
  template <int kColumns>
  LINNET_TILE void Copy(const Slot& slot, unsigned to, unsigned stride, unsigned chunk) const {
    const auto memory = Memory();
    const T* data = slot.data + static_cast<ptrdiff_t>(chunk * kChunk) * slot.time;
    to += At(RowOfThread<kColumns>(), stride, ColumnOfThread<kColumns>(), 0);
    LINNET_UNROLL
    for (int i = 0; i < kRows<kColumns>; ++i) {
      const bool valid = slot.inside && chunk * kChunk + i * kStep<kColumns> < slot.limit;
      LINNET_UNROLL
      for (int part = 0; part < kSplit; ++part) {
        // fp32: eight floats take as much room as their bf16 parts, into which Map() splits them.
        tile_.CopyAsync(memory, to + i * kStep<kColumns> * stride + 8 * part,
                        reinterpret_cast<const Element*>(data + part * kVector), valid);
      }
      data += kStep<kColumns> * slot.time;
    }
  }

  // Columns of the tile that holds phi(q) / den, in the reverse products.
  static constexpr int kScaledColumns = Sizes::kGradient ? kSlice : kWidth;

  // Loads the numbers that Transform() needs for a chunk's rows: 1 / den, which multiplies phi(q),
  // and d (thread i loads the d of row i).
  LINNET_TILE void FetchRows(unsigned chunk) {
    if (kProduct == Product::kForward || !args_.normalize) return;
    if constexpr (Sizes::kReverse) {
      LINNET_UNROLL
      for (int i = 0; i < kRows<kScaledColumns>; ++i) {
        const unsigned position =
            chunk * kChunk + RowOfThread<kScaledColumns>() + i * kStep<kScaledColumns>;
        factor_[i] = position < length_ ? args_.inverse[row_ + position] : 0.0f;
      }
    }
    if constexpr (Sizes::kGradient) {
      const unsigned position = chunk * kChunk + tile_.thread();
      const bool valid = tile_.thread() < kChunk && position < length_;
      delta_ = valid ? args_.delta[row_ + position] : 0.0f;
    }
  }
  // Loads 1 / den of the rows of grad_q that the thread computes in this chunk.
  LINNET_TILE void FetchInverse(unsigned chunk) {
    if constexpr (kProduct != Product::kGradQ) return;
    if (!args_.normalize || sums_only_) return;
    LINNET_UNROLL
    for (int half = 0; half < 2; ++half) {
      const unsigned position = chunk * kChunk + 16 * tile_.warp() + tile_.lane() / 4 + 8 * half;
      inverse_[half] = position < length_ ? args_.inverse[row_ + position] : 0.0f;
    }
  }

  // Transforms the elements that the thread has copied: feature map, factors, split of fp32 into
  // bf16 parts.
  LINNET_TILE void Transform(unsigned chunk, unsigned stage) {
    constexpr bool kPhiOuter = Sizes::kGradient;
    constexpr bool kScaledInner = kProduct == Product::kGradV;
    constexpr bool kScaledOuter = kProduct == Product::kGradK;
    if (!sums_only_) {
      Map<kWidth, !kPhiOuter, false>(a_, AOf(stage), Sizes::kInnerStride, chunk);
    }
    Map<kWidth, !kPhiOuter, kScaledInner>(b_, BOf(stage), Sizes::kInnerStride, chunk);
    Map<kSlice, kPhiOuter, kScaledOuter>(c_, COf(stage), Sizes::kOuterStride, chunk);
    if constexpr (Sizes::kGradient) {
      if (!sums_only_) Map<kSlice, true, false>(e_, EOf(stage), Sizes::kExtraStride, chunk);
      if (extra_ && tile_.thread() < kChunk) {
        // For precision, d is stored as two bf16 parts in two columns. In both columns, the rows of
        // values have ones.
        const float lead = ToFloat(ToBf16(delta_));
        Vector16 pair{};
        pair.word[0] = PairBf16(lead, delta_ - lead);
        const unsigned to = kProduct == Product::kGradQ ? AOf(stage) : BOf(stage);
        Memory().Store(to + At(tile_.thread(), Sizes::kInnerStride, kWidth, 0), pair);
      }
    }
  }
  template <int kColumns, bool kPhi, bool kScaled>
  LINNET_TILE void Map(const Slot& slot, unsigned to, unsigned stride, unsigned chunk) const {
    const bool scaled = kScaled && args_.normalize, phi = kPhi && args_.elu;
    if (kSplit == 1 && !phi && !scaled) return;
    const auto memory = Memory();
    to += At(RowOfThread<kColumns>(), stride, ColumnOfThread<kColumns>(), 0);
    LINNET_UNROLL
    for (int i = 0; i < kRows<kColumns>; ++i) {
      const unsigned at = to + i * kStep<kColumns> * stride;
      // Invalid rows and columns must stay zero, but phi(0) is 1.
      const bool zero = phi && !(slot.inside && chunk * kChunk + i * kStep<kColumns> < slot.limit);
      float x[8];
      LoadOctet(memory, at, x);
      LINNET_UNROLL
      for (int j = 0; j < 8; ++j) {
        if (phi) x[j] = fmaxf(x[j], 0.0f) + Exp(fminf(x[j], 0.0f));
        if (scaled) x[j] *= factor_[i];
      }
      StoreOctet(memory, at, x, zero);
    }
  }
  template <class Memory>
  LINNET_TILE void LoadOctet(const Memory& memory, unsigned at, float (&x)[8]) const {
    if constexpr (kSplit == 1) {
      const Vector16 raw = memory.template Load<Vector16>(at);
      LINNET_UNROLL
      for (int j = 0; j < 4; ++j)
        x[2 * j] = LowBf16(raw.word[j]), x[2 * j + 1] = HighBf16(raw.word[j]);
    } else {
      LINNET_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Vector16 raw = memory.template Load<Vector16>(at + 8 * half);
        LINNET_UNROLL
        for (int j = 0; j < 4; ++j) x[4 * half + j] = FloatOfBits(raw.word[j]);
      }
    }
  }
  template <class Memory>
  LINNET_TILE void StoreOctet(const Memory& memory, unsigned at, const float (&x)[8],
                              bool zero) const {
    LINNET_UNROLL
    for (int part = 0; part < kSplit; ++part) {
      Vector16 packed;
      LINNET_UNROLL
      for (int j = 0; j < 4; ++j) packed.word[j] = zero ? 0u : PairOf(x[2 * j], x[2 * j + 1], part);
      memory.Store(at + 8 * part, packed);
    }
  }
  // The leading (part 0) or trailing (part 1) bf16 parts of two floats.
  static LINNET_TILE uint32_t PairOf(float low, float high, int part) {
    const uint32_t lead = PairBf16(low, high);
    if (part == 0) return lead;
    return PairBf16(low - LowBf16(lead), high - HighBf16(lead));
  }

  // --- Products ---

  // Operands in registers, split into bf16 parts.
  struct Left {
    uint32_t part[kSplit][4];
  };
  struct Right {
    uint32_t part[kSplit][2];
  };
  LINNET_TILE void Multiply(float (&d)[4], const Left& a, const Right& b) const {
    if constexpr (kSplit == 2) {
      tile_.Multiply(d, a.part[1], b.part[0]);
      tile_.Multiply(d, a.part[0], b.part[1]);
    }
    tile_.Multiply(d, a.part[0], b.part[0]);
  }

  // Rows [row, row + 16) and columns [column, column + 16) of a tile, as a left operand.
  LINNET_TILE Left LoadLeft(unsigned to, unsigned stride, unsigned row, unsigned column) const {
    Left left;
    const unsigned lane = tile_.lane();
    LINNET_UNROLL
    for (int part = 0; part < kSplit; ++part) {
      tile_.LoadMatrix(left.part[part], Memory(),
                       to + At(row + lane % 16, stride, column + lane / 16 * 8, part));
    }
    return left;
  }
  // The transpose of rows [row, row + 16) and columns [column, column + 16), as a left operand.
  LINNET_TILE Left LoadLeftTransposed(unsigned to, unsigned stride, unsigned row,
                                      unsigned column) const {
    Left left;
    const unsigned lane = tile_.lane();
    LINNET_UNROLL
    for (int part = 0; part < kSplit; ++part) {
      tile_.LoadMatrixTransposed(
          left.part[part], Memory(),
          to + At(row + lane % 8 + lane / 16 * 8, stride, column + lane / 8 % 2 * 8, part));
    }
    return left;
  }
  // Two right operands B [16, 8] side by side, from rows [row, row + 16) and columns
  // [column, column + 16) of a tile. LoadRights: the tile's rows are the columns of B.
  // LoadRightsTransposed: the tile's rows are the rows of B.
  LINNET_TILE void LoadRights(Right (&right)[2], unsigned to, unsigned stride, unsigned row,
                              unsigned column) const {
    const unsigned lane = tile_.lane();
    LINNET_UNROLL
    for (int part = 0; part < kSplit; ++part) {
      uint32_t r[4];
      tile_.LoadMatrix(
          r, Memory(),
          to + At(row + lane % 8 + lane / 16 * 8, stride, column + lane / 8 % 2 * 8, part));
      Deal(right, r, part);
    }
  }
  LINNET_TILE void LoadRightsTransposed(Right (&right)[2], unsigned to, unsigned stride,
                                        unsigned row, unsigned column) const {
    const unsigned lane = tile_.lane();
    LINNET_UNROLL
    for (int part = 0; part < kSplit; ++part) {
      uint32_t r[4];
      tile_.LoadMatrixTransposed(r, Memory(),
                                 to + At(row + lane % 16, stride, column + lane / 16 * 8, part));
      Deal(right, r, part);
    }
  }
  // Two right operands, from rows [row, row + 16) and [row + 16, row + 32) of columns [column,
  // column + 8) of a tile. The tile's rows are the rows of B.
  LINNET_TILE void LoadRightsBelow(Right (&right)[2], unsigned to, unsigned stride, unsigned row,
                                   unsigned column) const {
    LINNET_UNROLL
    for (int part = 0; part < kSplit; ++part) {
      uint32_t r[4];
      tile_.LoadMatrixTransposed(r, Memory(), to + At(row + tile_.lane(), stride, column, part));
      Deal(right, r, part);
    }
  }
  static LINNET_TILE void Deal(Right (&right)[2], const uint32_t (&r)[4], int part) {
    right[0].part[part][0] = r[0], right[0].part[part][1] = r[1];
    right[1].part[part][0] = r[2], right[1].part[part][1] = r[3];
  }

  // Computes and stores the results of the warp's 16 rows.
  LINNET_TILE void Results(unsigned chunk, unsigned stage, unsigned buffer) {
    constexpr int kTiles = Sizes::kColumnTiles, kSteps = Sizes::kRowTiles;
    const unsigned warp = tile_.warp();
    const unsigned a = AOf(stage), b = BOf(stage), c = COf(stage);
    Left left[kSteps];
    LINNET_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      left[step] = LoadLeft(a, Sizes::kInnerStride, 16 * warp, 16 * step);
    }
    float out[kTiles][4] = {};
    // Terms from earlier chunks.
    LINNET_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      AddRows(out, left[step], SumsOf(buffer), 16 * step);
    }
    // Terms from this chunk, 16 positions at a time.
    const unsigned begin = Sizes::kReverse ? warp : 0;
    const unsigned end = Sizes::kReverse ? Sizes::kWarps : warp + 1;
    for (unsigned block = begin; block < end; ++block) {
      float square[2][4] = {};
      LINNET_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        Right right[2];
        LoadRights(right, b, Sizes::kInnerStride, 16 * block, 16 * step);
        Multiply(square[0], left[step], right[0]);
        Multiply(square[1], left[step], right[1]);
      }
      if (block == warp) Mask(square);
      Left weights;
      LINNET_UNROLL
      for (int part = 0; part < kSplit; ++part) {
        LINNET_UNROLL
        for (int i = 0; i < 4; ++i) {
          weights.part[part][i] =
              PairOf(square[i / 2][i % 2 * 2], square[i / 2][i % 2 * 2 + 1], part);
        }
      }
      AddRows(out, weights, c, 16 * block);
    }
    Finish(chunk, stage, out);
  }
  // out += left [16, 16] times rows [row, row + 16) of a tile with the layout of c.
  LINNET_TILE void AddRows(float (&out)[Sizes::kColumnTiles][4], const Left& left, unsigned to,
                           unsigned row) const {
    LINNET_UNROLL
    for (int tile = 0; tile < Sizes::kColumnTiles; tile += 2) {
      const bool is_extra = Sizes::kForward && tile + 1 == Sizes::kColumnTiles;
      if (is_extra && !extra_) continue;
      Right right[2];
      LoadRightsTransposed(right, to, Sizes::kOuterStride, row, 8 * tile);
      Multiply(out[tile], left, right[0]);
      if (tile + 1 < Sizes::kColumnTiles) Multiply(out[tile + 1], left, right[1]);
    }
  }
  // Masks a 16 x 16 block on the diagonal: keeps the columns up to the row (in reverse: from the
  // row on).
  LINNET_TILE void Mask(float (&square)[2][4]) const {
    const unsigned g = tile_.lane() / 4, t = tile_.lane() % 4;
    LINNET_UNROLL
    for (int half = 0; half < 2; ++half) {
      LINNET_UNROLL
      for (int i = 0; i < 4; ++i) {
        const unsigned row = g + i / 2 * 8, column = 8 * half + 2 * t + i % 2;
        if (Sizes::kReverse ? column < row : column > row) square[half][i] = 0.0f;
      }
    }
  }

  // Multiplies each row by 1 / den and phi', as the product requires, and stores it.
  LINNET_TILE void Finish(unsigned chunk, unsigned stage, float (&out)[Sizes::kColumnTiles][4]) {
    constexpr int kTiles = kSlice / 8;
    const unsigned g = tile_.lane() / 4, t = tile_.lane() % 4;
    LINNET_UNROLL
    for (int half = 0; half < 2; ++half) {
      const unsigned row = 16 * tile_.warp() + g + 8 * half;
      const unsigned position = chunk * kChunk + row;
      if (Sizes::kForward && extra_) {
        const float sum = tile_.Shuffle(out[Sizes::kColumnTiles - 1][2 * half], tile_.lane() & ~3u);
        const float inverse = Inverse(sum + args_.eps);
        LINNET_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          out[tile][2 * half] *= inverse, out[tile][2 * half + 1] *= inverse;
        }
        if (args_.inverse != nullptr && t == 0 && slice_ == 0 && position < length_) {
          args_.inverse[row_ + position] = inverse;
        }
      }
      if (Sizes::kGradient) {
        const bool masked = kProduct == Product::kGradK && position >= valid_;
        const bool divided = kProduct == Product::kGradQ && args_.normalize;
        const float factor = masked ? 0.0f : divided ? inverse_[half] : 1.0f;
        LINNET_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          float slope[2] = {1.0f, 1.0f};
          if (args_.elu) {
            const unsigned at = EOf(stage) + At(row, Sizes::kExtraStride, 8 * tile + 2 * t, 0);
            const auto pair = Memory().template Load<uint32_t>(at);
            slope[0] = fminf(LowBf16(pair), 1.0f), slope[1] = fminf(HighBf16(pair), 1.0f);
            if constexpr (kSplit == 2) {
              const auto rest = Memory().template Load<uint32_t>(at + 8);
              slope[0] = fminf(LowBf16(pair) + LowBf16(rest), 1.0f);
              slope[1] = fminf(HighBf16(pair) + HighBf16(rest), 1.0f);
            }
          }
          out[tile][2 * half] *= factor * slope[0];
          out[tile][2 * half + 1] *= factor * slope[1];
        }
      }
      StoreRow(position, half, out);
    }
  }
  LINNET_TILE const Strided<T>& Target() const {
    if constexpr (kProduct == Product::kForward) return args_.out;
    if constexpr (kProduct == Product::kGradQ) return args_.grad_q;
    if constexpr (kProduct == Product::kGradK) return args_.grad_k;
    if constexpr (kProduct == Product::kGradV) return args_.grad_v;
  }
  // Stores a row of the warp's results. Each of four neighboring lanes holds two columns of every
  // tile of the row. The lanes exchange columns, so that each stores 16 consecutive bytes.
  LINNET_TILE void StoreRow(unsigned position, int half, float (&out)[Sizes::kColumnTiles][4]) {
    constexpr int kTiles = kSlice / 8;
    const unsigned t = tile_.lane() % 4;
    const unsigned width = Sizes::kGradient ? args_.dim : args_.value_dim;
    const Strided<T>& to = Target();
    T* data = to.data + static_cast<ptrdiff_t>(args_.offsets ? 0 : n_) * to.batch +
              static_cast<ptrdiff_t>(first_ + position) * to.time +
              static_cast<ptrdiff_t>(h_) * to.head + SliceBegin();
    const unsigned columns = width > SliceBegin() ? width - SliceBegin() : 0;
    LINNET_UNROLL
    for (int from = 0; from < kTiles; from += 4) {
      constexpr int kGroup = kTiles < 4 ? kTiles : 4;
      if constexpr (kSplit == 2) {
        // fp32: each pair of lanes holds the four columns of a 16-byte vector.
        LINNET_UNROLL
        for (int i = 0; i < kGroup; ++i) {
          Vector4 four;
          four.x[0] = out[from + i][2 * half], four.x[1] = out[from + i][2 * half + 1];
          four.x[2] = tile_.ShuffleXor(four.x[0], 1), four.x[3] = tile_.ShuffleXor(four.x[1], 1);
          const unsigned column = 8 * (from + i) + t / 2 * 4;
          if (t % 2 == 0 && position < length_ && column < columns) {
            *reinterpret_cast<Vector4*>(data + column) = four;
          }
        }
      } else {
        uint32_t word[4] = {};
        LINNET_UNROLL
        for (int i = 0; i < kGroup; ++i) {
          word[i] = PairBf16(out[from + i][2 * half], out[from + i][2 * half + 1]);
        }
        Exchange(word);
        // word[i] is now pair i of tile from + t.
        const unsigned column = 8 * (from + t);
        if (t < kGroup && position < length_ && column < columns) {
          *reinterpret_cast<Vector16*>(data + column) = {{word[0], word[1], word[2], word[3]}};
        }
      }
    }
  }
  struct alignas(16) Vector4 {
    float x[4];
  };
  // Transposes the 4 x 4 words of four neighboring lanes.
  LINNET_TILE void Exchange(uint32_t (&word)[4]) const {
    const unsigned t = tile_.lane() % 4;
    LINNET_UNROLL
    for (unsigned mask = 1; mask < 4; mask *= 2) {
      LINNET_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        if (i & mask) continue;
        const bool high = t & mask;
        const uint32_t sent = high ? word[i] : word[i + mask];
        const uint32_t got = tile_.ShuffleXor(sent, mask);
        if (high) {
          word[i] = got;
        } else {
          word[i + mask] = got;
        }
      }
    }
  }

  // --- Sums t [kInner, kOuter] ---

  // The number of the warp's tile `own`. The warps that compute the fewest 16 x 16 blocks of
  // the masked square are the first to get tiles.
  LINNET_TILE unsigned TileOf(int own) const {
    const unsigned warp = tile_.warp();
    return (Sizes::kReverse ? Sizes::kWarps - 1 - warp : warp) * Sizes::kOwnTiles + own;
  }
  LINNET_TILE bool Owns(int own) const {
    return TileOf(own) < static_cast<unsigned>(Sizes::kTiles);
  }
  LINNET_TILE unsigned TileRow(int own) const { return TileOf(own) % Sizes::kRowTiles * 16; }
  LINNET_TILE unsigned TileColumn(int own) const { return TileOf(own) / Sizes::kRowTiles * 8; }

  // Adds the chunk's positions to the sums. Tensor cores truncate sums instead of rounding them,
  // and these errors accumulate over a long sequence. So for fp32, a chunk is first summed by
  // itself and then added with rounding.
  LINNET_TILE void AddSums(unsigned stage) {
    if constexpr (kSplit == 1) {
      AddChunk(stage, sums_);
    } else {
      float chunk[Sizes::kOwnTiles][4] = {};
      AddChunk(stage, chunk);
      LINNET_UNROLL
      for (int own = 0; own < Sizes::kOwnTiles; ++own) {
        LINNET_UNROLL
        for (int i = 0; i < 4; ++i) sums_[own][i] += chunk[own][i];
      }
    }
  }
  LINNET_TILE void AddChunk(unsigned stage, float (&sums)[Sizes::kOwnTiles][4]) const {
    const unsigned b = BOf(stage), c = COf(stage);
    LINNET_UNROLL
    for (unsigned rows = 0; rows < kChunk; rows += 32) {
      Right right[2];
      LINNET_UNROLL
      for (int own = 0; own < Sizes::kOwnTiles; ++own) {
        if (!Owns(own)) break;
        const unsigned row = TileRow(own);
        if (own == 0 || row == 0) {
          LoadRightsBelow(right, c, Sizes::kOuterStride, rows, TileColumn(own));
        }
        LINNET_UNROLL
        for (int below = 0; below < 2; ++below) {
          const Left left = LoadLeftTransposed(b, Sizes::kInnerStride, rows + 16 * below, row);
          Multiply(sums[own], left, right[below]);
        }
      }
    }
  }
  // Calls body(sum, row, column, own) for each of the thread's sums.
  template <class Body>
  LINNET_TILE void ForSums(Body body) {
    const unsigned g = tile_.lane() / 4, t = tile_.lane() % 4;
    LINNET_UNROLL
    for (int own = 0; own < Sizes::kOwnTiles; ++own) {
      LINNET_UNROLL
      for (int i = 0; i < 4; ++i) {
        body(sums_[own][i], TileRow(own) + g + i / 2 * 8, TileColumn(own) + 2 * t + i % 2, own);
      }
    }
  }
  // Writes the sums, rounded to bf16, to shared memory for the next chunk.
  LINNET_TILE void WriteSums(unsigned buffer) {
    const auto memory = Memory();
    const unsigned g = tile_.lane() / 4, t = tile_.lane() % 4;
    LINNET_UNROLL
    for (int own = 0; own < Sizes::kOwnTiles; ++own) {
      if (!Owns(own)) continue;
      LINNET_UNROLL
      for (int half = 0; half < 2; ++half) {
        LINNET_UNROLL
        for (int part = 0; part < kSplit; ++part) {
          memory.Store(SumsOf(buffer) + At(TileRow(own) + g + 8 * half, Sizes::kOuterStride,
                                           TileColumn(own) + 2 * t, part),
                       PairOf(sums_[own][2 * half], sums_[own][2 * half + 1], part));
        }
      }
    }
  }

  // Sets the sums to the initial state, or in reverse to the gradient of the final state.
  LINNET_TILE void LoadState() {
    const float* s = Sizes::kReverse ? args_.grad_s : args_.s;
    const float* z = Sizes::kReverse ? args_.grad_z : args_.z;
    if (!extra_) z = nullptr;
    ForSums([&](float& sum, unsigned row, unsigned column, int own) {
      sum = 0.0f;
      if (!Owns(own)) return;
      const float* from = StateAt(s, z, row, column, kProduct == Product::kGradQ);
      if (from != nullptr) sum = *from;
    });
  }
  // The address of the element of the state that corresponds to a sum; null if there is none.
  // twice: whether b is [v, 1]. If so, both extra columns of b are ones, and rows kWidth and
  // kWidth + 1 of the sums both hold z. Otherwise, row kWidth + 1 is the remainder of row kWidth.
  template <class Float>
  LINNET_TILE Float* StateAt(Float* s, Float* z, unsigned row, unsigned column, bool twice) const {
    unsigned f = row, m = column + SliceBegin();
    bool is_z = column >= static_cast<unsigned>(Sizes::kSlice);
    if (is_z && column > static_cast<unsigned>(Sizes::kSlice)) return nullptr;
    if (Sizes::kGradient) {
      f = column + SliceBegin(), m = row;
      is_z = row == kWidth || (twice && row == kWidth + 1);
      if (!is_z && row >= static_cast<unsigned>(kWidth)) return nullptr;
    }
    if (f >= args_.dim) return nullptr;
    if (is_z) return z == nullptr ? nullptr : z + static_cast<size_t>(place_) * args_.dim + f;
    if (s == nullptr || m >= args_.value_dim) return nullptr;
    return s + (static_cast<size_t>(place_) * args_.dim + f) * args_.value_dim + m;
  }
  LINNET_TILE void StoreState() {
    if (kProduct == Product::kGradQ) return;
    float* s = nullptr;
    float* z = nullptr;
    if (kProduct == Product::kForward) {
      s = args_.final_s, z = extra_ && slice_ == 0 ? args_.final_z : nullptr;
    }
    if (kProduct == Product::kGradV) s = args_.grad_s0;
    if (kProduct == Product::kGradK) z = extra_ ? args_.grad_z0 : nullptr;
    ForSums([&](float& sum, unsigned row, unsigned column, int own) {
      float value = sum;
      if (Sizes::kGradient) {
        // Row kWidth + 1, held by the lane four further on, has the remainders of row kWidth.
        const float rest = tile_.ShuffleXor(sum, 4);
        if (row == kWidth) value += rest;
      }
      if (!Owns(own)) return;
      float* to = StateAt(s, z, row, column, false);
      if (to != nullptr) *to = value;
    });
  }

  Tile& tile_;
  const CausalProductArgs<T>& args_;
  const bool extra_;                       // whether the extra columns, ones and d, are used
  const unsigned places_, place_, slice_;  // a place is a head of a sequence
  const unsigned order_;                   // segment's number in the product's direction
  const unsigned n_, h_;
  size_t first_;  // row of position 0 if sequences are packed, else 0
  unsigned length_, valid_;
  unsigned begin_, end_;  // chunks
  size_t row_;            // FirstRowOf()
  Slot a_, b_, c_, e_;
  bool sums_only_ = false;
  float factor_[kRows<kScaledColumns>] = {}, delta_ = 0, inverse_[2] = {};
  float sums_[Sizes::kOwnTiles][4];
};

// --- The programs ---

// The program of each of the BlocksOf() blocks, which have kThreads threads and kBytes of shared
// memory.
template <class Sizes, typename T, class Tile>
LINNET_TILE void CausalProductTile(Tile& tile, const CausalProductArgs<T>& args) {
  unsigned block = tile.x();
  if (args.segments > 1) {
    const auto ticket = tile.template Shared<unsigned>(0, 1);
    if (tile.thread() == 0) ticket.Set(0, tile.Ticket(args.started));
    tile.Barrier();
    block = ticket.Get(0);
    tile.Barrier();
  }
  CausalProduct<Tile, Sizes, T>(tile, args, block).Run();
}

// d_i = -grad_out_i . out_i, four lanes per row. Grid: x = sequence and head, y = block of
// threads / 4 positions.
template <typename T, class Tile>
LINNET_TILE void DeltaTile(Tile& tile, const CausalProductArgs<T>& args, float* delta) {
  const unsigned n = tile.x() / args.heads, h = tile.x() % args.heads;
  const size_t first = args.offsets ? static_cast<size_t>(args.offsets[n]) : 0;
  const unsigned length =
      args.offsets ? static_cast<unsigned>(args.offsets[n + 1] - args.offsets[n]) : args.length;
  const unsigned position = tile.y() * (tile.threads() / 4) + tile.thread() / 4;
  const unsigned t = tile.thread() % 4;
  constexpr unsigned kVector = 16 / sizeof(T);
  float sum = 0;
  if (position < length) {
    const auto row = [&](const auto& x) {
      return x.data + static_cast<ptrdiff_t>(args.offsets ? 0 : n) * x.batch +
             static_cast<ptrdiff_t>(first + position) * x.time + static_cast<ptrdiff_t>(h) * x.head;
    };
    const T* out = row(args.out);
    const T* grad = row(args.grad_out);
    for (unsigned m = t * kVector; m < args.value_dim; m += 4 * kVector) {
      struct alignas(16) Elements {
        T x[kVector];
      };
      const Elements a = *reinterpret_cast<const Elements*>(out + m);
      const Elements b = *reinterpret_cast<const Elements*>(grad + m);
      LINNET_UNROLL
      for (unsigned i = 0; i < kVector; ++i) sum -= ToFloat(a.x[i]) * ToFloat(b.x[i]);
    }
  }
  sum += tile.ShuffleXor(sum, 1);
  sum += tile.ShuffleXor(sum, 2);
  if (position < length && t == 0) delta[FirstRowOf(args, n, h) + position] = sum;
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_CAUSAL_PRODUCT_TILE_H_
