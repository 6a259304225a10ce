// The tile programs (tile.h) of gated recurrences: the forward of kernels/scan.h and its gradients,
// in fp32, position by position.
//
// A position changes the state by
//
//   S_t = diag(e^g) S_{t-1} + x y^T + ...     x: key channels (rows), y: value channels (columns)
//
// Column m of S depends on no other column, since y_m is computed from column m alone. Row d
// depends on no other row once all y are known. So a sweep over the positions keeps lines of a
// state, columns or rows, in registers. There are four sweeps:
//
//   kForward      columns of S             out = S^T q, and y
//   kGradWritten  columns of dS, reversed  dy = dS^T x, and so the gradients of v and of `write`
//   kGradRead     rows of S                dq = S do, and P dy, the gradient of what erases
//   kGradKeys     rows of dS, reversed     dx = dS y, and so the gradients of k and of g
//
// Here do is grad_out and dS the gradient of S_t. Sweeps by rows read the y (`written`) and dy
// (`grad_written`) that sweeps by columns have stored. No sweep needs a state of another one.
//
// The gradient of g_t is the row sum of P_t * dP_t, which needs two states that no sweep has at the
// same time. It follows from the other gradients, since a factor of a row of S can be moved to the
// vectors that write and read this row:
//
//   dg_t = dg_{t+1} + q_t * dq_t - (x_t * dx_t of the vectors that write) - (a_t * (P dy)_t)
//
// The sum starts from the row sums of S * grad_s after the last position.
//
// A line is divided among kLanes neighboring threads, and a thread holds kElements elements of
// kLines lines. Blocks read the inputs piece by piece, kPiece positions at a time, into one of two
// buffers in shared memory, while they compute the piece in the other one. The positions of a piece
// are computed kGroup at a time: results are stored after the last one, so that the compiler can
// load the inputs of all of them early, and sum over threads for all of them at the same time.
#ifndef LINNET_KERNELS_CUDA_SCAN_TILE_H_
#define LINNET_KERNELS_CUDA_SCAN_TILE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "linnet/kernels/cuda/sequence_tile.h"
#include "linnet/kernels/cuda/tile.h"
#include "linnet/kernels/scan.h"

namespace linnet::kernels::cuda {

enum class ScanPass : uint8_t { kForward, kGradWritten, kGradRead, kGradKeys };

// Arguments of all sweeps. Pointers are to device memory. Rows of tensors are aligned to 16 bytes,
// except rows of one element.
struct ScanTileArgs {
  unsigned batch = 0, heads = 0, group = 1, length = 0;
  unsigned dim = 0, value_dim = 0;  // multiples of 4, at most kMostScanWidth
  bool head_decay = false;          // whether there is one g for a head
  float scale = 1;
  const int64_t *lengths = nullptr, *offsets = nullptr;  // as in kernels/scan.h
  ScanTensors<const float> in;
  Strided<const float> grad_out;
  Strided<float> out;
  ScanTensors<float> grad;  // `decay` and `erase` only if they have more than one element per row
  // written [M]: kDelta: y / beta; kTwoSided: y; kRwkv7: S_{t-1}^T a. grad_written [M]: the
  // gradient of y. erased [D]: P dy (kRwkv7: S_{t-1} dy). Not used by kAdd.
  Strided<float> written, grad_written, erased;
  Strided<float> channels;  // [D]: with head_decay, the gradient of g by key channel
  // s [N, H, D, M]: the state before the first position, which the forward replaces by the state
  // after the last one; null: zero. first_s: a copy of the state before the first position.
  float *s = nullptr, *first_s = nullptr;
  const float* grad_s = nullptr;  // null: zero
  float* grad_s0 = nullptr;       // optional
  float* final_dots = nullptr;    // [N, H, D]: row sums of S * grad_s after the last position
};

inline constexpr unsigned kMostScanWidth = 128;

// The tensors that sweeps read.
enum class ScanTensor : uint8_t {
  kQ,
  kK,
  kV,
  kDecay,
  kErase,
  kWrite,
  kGradOut,
  kWritten,
  kGradWritten,
  kGradQ,
  kErased,
  kCount,
};

// kWidth: 32, 64 or 128, at least the length of a line. kKeyDecay: one g per key channel.
template <ScanPass kPass_, ScanWrite kWrite_, bool kKeyDecay_, int kWidth_>
struct ScanSweepSizes {
  static constexpr ScanPass kPass = kPass_;
  static constexpr ScanWrite kWrite = kWrite_;
  static constexpr bool kKeyDecay = kKeyDecay_;
  static constexpr bool kAdd = kWrite == ScanWrite::kAdd, kDelta = kWrite == ScanWrite::kDelta;
  static constexpr bool kTwoSided = kWrite == ScanWrite::kTwoSided;
  static constexpr bool kRwkv7 = kWrite == ScanWrite::kRwkv7;
  static constexpr bool kColumns = kPass == ScanPass::kForward || kPass == ScanPass::kGradWritten;
  static constexpr bool kReverse = kPass == ScanPass::kGradWritten || kPass == ScanPass::kGradKeys;

  static constexpr int kElements = kWidth_ <= 32 ? 4 : 8, kLines = 4;  // of a thread
  static constexpr unsigned kWidth = kWidth_, kLanes = kWidth / kElements;
  static constexpr unsigned kThreads = kWidth <= 32 ? 64 : 128;        // of a block
  static constexpr unsigned kBlockLines = kThreads / kLanes * kLines;  // lines of a block
  static constexpr unsigned kPiece = 8, kGroup = 4;

  // Whether a sweep reads a tensor whose rows are as long as a line.
  static constexpr LINNET_HOST_TILE bool ReadsElements(ScanTensor x) {
    if (kColumns) {
      return x == ScanTensor::kQ || x == ScanTensor::kK || (kKeyDecay && x == ScanTensor::kDecay) ||
             ((kTwoSided || kRwkv7) && x == ScanTensor::kErase) ||
             (kRwkv7 && x == ScanTensor::kWrite);
    }
    return x == ScanTensor::kGradOut || ((kAdd || kRwkv7) && x == ScanTensor::kV) ||
           (!kAdd && (x == ScanTensor::kWritten || x == ScanTensor::kGradWritten));
  }
  // Whether a sweep reads a tensor with one element for each line.
  static constexpr LINNET_HOST_TILE bool ReadsLines(ScanTensor x) {
    switch (kPass) {
      case ScanPass::kForward:
        return x == ScanTensor::kV || (kTwoSided && x == ScanTensor::kWrite);
      case ScanPass::kGradWritten:
        return x == ScanTensor::kGradOut ||
               (kTwoSided && (x == ScanTensor::kV || x == ScanTensor::kWrite));
      case ScanPass::kGradRead:
        return x == ScanTensor::kK || (kKeyDecay && x == ScanTensor::kDecay) ||
               (kRwkv7 && x == ScanTensor::kWrite);
      default:
        return x == ScanTensor::kQ || x == ScanTensor::kK || x == ScanTensor::kGradQ ||
               (kKeyDecay && x == ScanTensor::kDecay) ||
               ((kTwoSided || kRwkv7) && x == ScanTensor::kErase) ||
               (kRwkv7 && x == ScanTensor::kWrite) || (!kAdd && x == ScanTensor::kErased);
    }
  }
  static constexpr LINNET_HOST_TILE unsigned CountElements(ScanTensor end) {
    unsigned count = 0;
    for (int x = 0; x < static_cast<int>(end); ++x) count += ReadsElements(ScanTensor(x));
    return count;
  }
  static constexpr LINNET_HOST_TILE unsigned CountLines(ScanTensor end) {
    unsigned count = 0;
    for (int x = 0; x < static_cast<int>(end); ++x) count += ReadsLines(ScanTensor(x));
    return count;
  }

  // Floats of a buffer: elements, lines and two scalars of each position.
  static constexpr unsigned kElementFloats = CountElements(ScanTensor::kCount) * kPiece * kWidth;
  static constexpr unsigned kLineFloats = CountLines(ScanTensor::kCount) * kPiece * kBlockLines;
  static constexpr unsigned kBufferFloats = kElementFloats + kLineFloats + 2 * kPiece;
  static constexpr unsigned kBytes = 2 * 4 * kBufferFloats;
};

template <class Tile, class Sizes>
class ScanSweep {
 public:
  LINNET_TILE ScanSweep(Tile& tile, const ScanTileArgs& args)
      : tile_(tile),
        args_(args),
        n_(tile.x() / args.heads),
        h_(tile.x() % args.heads),
        lane_(tile.thread() % kLanes),
        slot_(tile.thread() / kLanes * Sizes::kLines),
        first_line_(tile.y() * Sizes::kBlockLines),
        own_(lane_ % 2 * 2 + lane_ / 2 % 2) {
    const SequenceRows rows = RowsOf(n_, args.offsets, args.lengths, args.length);
    first_ = rows.first, length_ = rows.length, valid_ = rows.valid;
  }

  LINNET_TILE void Run() {
    Begin();
    const unsigned pieces = (length_ + kPiece - 1) / kPiece;
    const auto begin_of = [&](unsigned i) {
      return (Sizes::kReverse ? pieces - 1 - i : i) * kPiece;
    };
    if (pieces > 0) Fetch(begin_of(0), 0);
    for (unsigned i = 0; i < pieces; ++i) {
      const unsigned begin = begin_of(i), buffer = i % 2;
      tile_.template CopyWait<0>();
      Transform(buffer);
      tile_.Barrier();
      if (i + 1 < pieces) Fetch(begin_of(i + 1), 1 - buffer);
      for (unsigned done = 0; done < kPiece; done += kGroup) {
        const unsigned group = Sizes::kReverse ? kPiece - kGroup - done : done;
        if (begin + group < length_) Group(begin, buffer, group);
      }
    }
    End();
  }

 private:
  static constexpr int kElements = Sizes::kElements, kLines = Sizes::kLines;
  static constexpr unsigned kLanes = Sizes::kLanes, kWidth = Sizes::kWidth;
  static constexpr unsigned kPiece = Sizes::kPiece, kGroup = Sizes::kGroup;
  using Tensor = ScanTensor;
  struct alignas(16) Float4 {
    float x[4];
  };

  // --- Inputs ---

  LINNET_TILE auto Memory() const {
    return tile_.template Shared<float>(0, 2 * Sizes::kBufferFloats);
  }
  template <Tensor kTensor>
  LINNET_TILE unsigned ElementsAt(unsigned buffer, unsigned at) const {
    constexpr unsigned kIndex = Sizes::CountElements(kTensor);
    return buffer * Sizes::kBufferFloats + (kIndex * kPiece + at) * kWidth;
  }
  template <Tensor kTensor>
  LINNET_TILE unsigned LinesAt(unsigned buffer, unsigned at) const {
    constexpr unsigned kIndex = Sizes::CountLines(kTensor);
    return buffer * Sizes::kBufferFloats + Sizes::kElementFloats +
           (kIndex * kPiece + at) * Sizes::kBlockLines;
  }
  // which: 0 for g of the head, 1 for beta.
  LINNET_TILE unsigned ScalarAt(unsigned buffer, unsigned at, unsigned which) const {
    return buffer * Sizes::kBufferFloats + Sizes::kElementFloats + Sizes::kLineFloats +
           which * kPiece + at;
  }

  // The row of a tensor [N, L, H / group, width] at a position of this sequence.
  template <typename T>
  LINNET_TILE T* Row(const Strided<T>& x, unsigned t, unsigned group = 1) const {
    return x.data + static_cast<ptrdiff_t>(args_.offsets ? 0 : n_) * x.batch +
           static_cast<ptrdiff_t>(first_ + t) * x.time +
           static_cast<ptrdiff_t>(h_ / group) * x.head;
  }
  template <Tensor kTensor>
  LINNET_TILE const float* Input(unsigned t) const {
    if constexpr (kTensor == Tensor::kQ) return Row(args_.in.q, t, args_.group);
    if constexpr (kTensor == Tensor::kK) return Row(args_.in.k, t, args_.group);
    if constexpr (kTensor == Tensor::kV) return Row(args_.in.v, t);
    if constexpr (kTensor == Tensor::kDecay) return Row(args_.in.decay, t);
    if constexpr (kTensor == Tensor::kErase) return Row(args_.in.erase, t);
    if constexpr (kTensor == Tensor::kWrite) return Row(args_.in.write, t);
    if constexpr (kTensor == Tensor::kGradOut) return Row(args_.grad_out, t);
    if constexpr (kTensor == Tensor::kWritten) return Row(args_.written, t);
    if constexpr (kTensor == Tensor::kGradWritten) return Row(args_.grad_written, t);
    if constexpr (kTensor == Tensor::kGradQ) return Row(args_.grad.q, t);
    if constexpr (kTensor == Tensor::kErased) return Row(args_.erased, t);
  }
  // At positions >= lengths[n], these inputs count as zeros: nothing decays and nothing is written.
  static constexpr LINNET_HOST_TILE bool IsMasked(Tensor x) {
    return x == Tensor::kK || x == Tensor::kV || x == Tensor::kDecay || x == Tensor::kErase ||
           x == Tensor::kWrite;
  }
  LINNET_TILE unsigned ElementCount() const {
    return Sizes::kColumns ? args_.dim : args_.value_dim;
  }
  LINNET_TILE unsigned LineCount() const { return Sizes::kColumns ? args_.value_dim : args_.dim; }

  // Calls body(index, position, column) for each 16 bytes that this thread copies of kColumns
  // columns of a piece.
  template <unsigned kColumns, class Body>
  LINNET_TILE void ForVectors(Body body) const {
    constexpr unsigned kVectors = kColumns / 4;
    LINNET_UNROLL
    for (unsigned first = 0; first < kPiece * kVectors; first += Sizes::kThreads) {
      const unsigned i = first + tile_.thread();
      if (i < kPiece * kVectors) body(4 * i, i / kVectors, i % kVectors * 4);
    }
  }
  template <Tensor kTensor>
  LINNET_TILE void Copy(unsigned begin, unsigned buffer) const {
    constexpr bool kMasked = IsMasked(kTensor);
    const unsigned limit = kMasked ? valid_ : length_;
    const auto copy = [&](unsigned to, unsigned at, unsigned column, unsigned end) {
      const bool valid = begin + at < limit && column < end;
      tile_.CopyAsync(Memory(), to, Input<kTensor>(valid ? begin + at : 0) + (valid ? column : 0),
                      valid);
    };
    if constexpr (Sizes::ReadsElements(kTensor)) {
      const unsigned to = ElementsAt<kTensor>(buffer, 0);
      ForVectors<kWidth>([&](unsigned index, unsigned at, unsigned column) {
        copy(to + index, at, column, ElementCount());
      });
    }
    if constexpr (Sizes::ReadsLines(kTensor)) {
      const unsigned to = LinesAt<kTensor>(buffer, 0);
      ForVectors<Sizes::kBlockLines>([&](unsigned index, unsigned at, unsigned column) {
        copy(to + index, at, first_line_ + column, LineCount());
      });
    }
  }
  // Starts to copy a piece.
  LINNET_TILE void Fetch(unsigned begin, unsigned buffer) {
    Copy<Tensor::kQ>(begin, buffer), Copy<Tensor::kK>(begin, buffer);
    Copy<Tensor::kV>(begin, buffer), Copy<Tensor::kDecay>(begin, buffer);
    Copy<Tensor::kErase>(begin, buffer), Copy<Tensor::kWrite>(begin, buffer);
    Copy<Tensor::kGradOut>(begin, buffer), Copy<Tensor::kWritten>(begin, buffer);
    Copy<Tensor::kGradWritten>(begin, buffer), Copy<Tensor::kGradQ>(begin, buffer);
    Copy<Tensor::kErased>(begin, buffer);
    tile_.CopyCommit();
    const unsigned t = begin + tile_.thread();
    const bool valid = tile_.thread() < kPiece && t < valid_;
    next_decay_ = valid && args_.head_decay ? *Row(args_.in.decay, t) : 0.0f;
    next_beta_ = valid && Sizes::kDelta ? *Row(args_.in.erase, t) : 0.0f;
  }
  // Replaces g by e^g, in the elements that the thread has copied.
  LINNET_TILE void Transform(unsigned buffer) const {
    const auto memory = Memory();
    if constexpr (Sizes::kKeyDecay) {
      constexpr unsigned kColumns = Sizes::kColumns ? kWidth : Sizes::kBlockLines;
      unsigned to = 0;
      if constexpr (Sizes::kColumns) {
        to = ElementsAt<Tensor::kDecay>(buffer, 0);
      } else {
        to = LinesAt<Tensor::kDecay>(buffer, 0);
      }
      ForVectors<kColumns>([&](unsigned index, unsigned, unsigned) {
        Float4 g = memory.template Load<Float4>(to + index);
        LINNET_UNROLL
        for (int i = 0; i < 4; ++i) g.x[i] = expf(g.x[i]);
        memory.Store(to + index, g);
      });
    }
    if (tile_.thread() < kPiece) {
      memory.Set(ScalarAt(buffer, tile_.thread(), 0), expf(next_decay_));
      memory.Set(ScalarAt(buffer, tile_.thread(), 1), next_beta_);
    }
  }

  // The thread's elements of a tensor at the current position, a vector along the lines.
  using Elements = float[kElements];
  using Lines = float[kLines];
  template <Tensor kTensor>
  LINNET_TILE void Load(Elements& to) const {
    const unsigned at = ElementsAt<kTensor>(buffer_, at_) + 4 * lane_;
    LINNET_UNROLL
    for (int part = 0; part < kElements / 4; ++part) {
      const auto four = Memory().template Load<Float4>(at + 4 * kLanes * part);
      LINNET_UNROLL
      for (int i = 0; i < 4; ++i) to[4 * part + i] = four.x[i];
    }
  }
  template <Tensor kTensor>
  LINNET_TILE void LoadLines(Lines& to) const {
    const auto four = Memory().template Load<Float4>(LinesAt<kTensor>(buffer_, at_) + slot_);
    LINNET_UNROLL
    for (int i = 0; i < kLines; ++i) to[i] = four.x[i];
  }
  // The element of the line for which this thread stores results.
  template <Tensor kTensor>
  LINNET_TILE float LoadOwn() const {
    return Memory().Get(LinesAt<kTensor>(buffer_, at_) + slot_ + own_);
  }
  LINNET_TILE float HeadDecay() const { return Memory().Get(ScalarAt(buffer_, at_, 0)); }
  LINNET_TILE float Beta() const { return Memory().Get(ScalarAt(buffer_, at_, 1)); }

  // --- Lines ---

  // The thread's part of the dot products of x with each line.
  LINNET_TILE void Dot(const Elements& x, Lines& dot) const {
    LINNET_UNROLL
    for (int r = 0; r < kLines; ++r) {
      dot[r] = x[0] * state_[r][0];
      LINNET_UNROLL
      for (int c = 1; c < kElements; ++c) dot[r] += x[c] * state_[r][c];
    }
  }
  // line r += x * factor[r]
  LINNET_TILE void Add(const Elements& x, const Lines& factor) {
    LINNET_UNROLL
    for (int r = 0; r < kLines; ++r) {
      LINNET_UNROLL
      for (int c = 0; c < kElements; ++c) state_[r][c] += x[c] * factor[r];
    }
  }
  // Multiplies each row of the state by its e^g.
  LINNET_TILE void Decay() {
    if constexpr (Sizes::kKeyDecay && Sizes::kColumns) {
      Elements g;
      Load<Tensor::kDecay>(g);
      LINNET_UNROLL
      for (int r = 0; r < kLines; ++r) {
        LINNET_UNROLL
        for (int c = 0; c < kElements; ++c) state_[r][c] *= g[c];
      }
    } else {
      if (!Sizes::kKeyDecay && !args_.head_decay) return;
      Lines g;
      if constexpr (Sizes::kKeyDecay) {
        LoadLines<Tensor::kDecay>(g);
      } else {
        g[0] = HeadDecay();
        LINNET_UNROLL
        for (int r = 1; r < kLines; ++r) g[r] = g[0];
      }
      LINNET_UNROLL
      for (int r = 0; r < kLines; ++r) {
        LINNET_UNROLL
        for (int c = 0; c < kElements; ++c) state_[r][c] *= g[r];
      }
    }
  }
  // Sums over the lanes of each line. All lanes receive all sums.
  LINNET_TILE void Sum(Lines& x) const {
    LINNET_UNROLL
    for (unsigned mask = 1; mask < kLanes; mask *= 2) {
      LINNET_UNROLL
      for (int r = 0; r < kLines; ++r) x[r] += tile_.ShuffleXor(x[r], mask);
    }
  }
  // The sum of line own_ over its lanes. Each exchange leaves half as many lines to a thread.
  LINNET_TILE float OwnSum(const Lines& x) const {
    const bool odd = lane_ % 2 != 0, second = lane_ / 2 % 2 != 0;
    const float low = (odd ? x[2] : x[0]) + tile_.ShuffleXor(odd ? x[0] : x[2], 1);
    const float high = (odd ? x[3] : x[1]) + tile_.ShuffleXor(odd ? x[1] : x[3], 1);
    float sum = (second ? high : low) + tile_.ShuffleXor(second ? low : high, 2);
    LINNET_UNROLL
    for (unsigned mask = 4; mask < kLanes; mask *= 2) sum += tile_.ShuffleXor(sum, mask);
    return sum;
  }
  LINNET_TILE float Own(const Lines& x) const {
    const float low = own_ & 1u ? x[1] : x[0], high = own_ & 1u ? x[3] : x[2];
    return own_ & 2u ? high : low;
  }
  // Stores the result of line own_ at position t.
  LINNET_TILE void StoreOwn(const Strided<float>& to, unsigned t, float value) const {
    const unsigned line = first_line_ + slot_ + own_;
    if (lane_ < kLines && line < LineCount() && t < length_) Row(to, t)[line] = value;
  }

  // --- Sweeps ---

  // Computes positions begin + group .. begin + group + kGroup - 1. The inputs of positions after
  // the last one are zeros, which change nothing.
  LINNET_TILE void Group(unsigned begin, unsigned buffer, unsigned group) {
    buffer_ = buffer;
    Results results[kGroup];
    LINNET_UNROLL
    for (unsigned i = 0; i < kGroup; ++i) {
      const unsigned j = Sizes::kReverse ? kGroup - 1 - i : i;
      at_ = group + j;
      if constexpr (Sizes::kPass == ScanPass::kForward) Forward(results[j]);
      if constexpr (Sizes::kPass == ScanPass::kGradWritten) GradWritten(results[j]);
      if constexpr (Sizes::kPass == ScanPass::kGradRead) GradRead(results[j]);
      if constexpr (Sizes::kPass == ScanPass::kGradKeys) {
        GradKeys(begin + at_ < valid_, results[j]);
      }
    }
    LINNET_UNROLL
    for (unsigned j = 0; j < kGroup; ++j) Store(begin + group + j, results[j]);
  }
  // The results of a position for line own_, each used by some of the sweeps.
  struct Results {
    float out, written;               // kForward
    float q, erased;                  // kGradRead
    float v, k, erase, write, decay;  // gradients
  };
  LINNET_TILE void Store(unsigned t, const Results& results) const {
    if constexpr (Sizes::kPass == ScanPass::kForward) {
      StoreOwn(args_.out, t, results.out);
      if constexpr (!Sizes::kAdd) StoreOwn(args_.written, t, results.written);
    }
    if constexpr (Sizes::kPass == ScanPass::kGradWritten) {
      StoreOwn(args_.grad.v, t, results.v);
      if constexpr (!Sizes::kAdd) StoreOwn(args_.grad_written, t, results.written);
      if constexpr (Sizes::kTwoSided) StoreOwn(args_.grad.write, t, results.write);
    }
    if constexpr (Sizes::kPass == ScanPass::kGradRead) {
      StoreOwn(args_.grad.q, t, results.q);
      if constexpr (!Sizes::kAdd) StoreOwn(args_.erased, t, results.erased);
    }
    if constexpr (Sizes::kPass == ScanPass::kGradKeys) {
      StoreOwn(args_.grad.k, t, results.k);
      if constexpr (Sizes::kTwoSided || Sizes::kRwkv7) StoreOwn(args_.grad.erase, t, results.erase);
      if constexpr (Sizes::kRwkv7) StoreOwn(args_.grad.write, t, results.write);
      if constexpr (Sizes::kKeyDecay) {
        StoreOwn(args_.grad.decay, t, results.decay);
      } else if (args_.head_decay) {
        StoreOwn(args_.channels, t, results.decay);
      }
    }
  }

  // Columns of S.
  LINNET_TILE void Forward(Results& results) {
    Elements k, x;
    Lines y, v;
    Load<Tensor::kK>(k);
    LoadLines<Tensor::kV>(v);
    if constexpr (Sizes::kRwkv7) {
      Load<Tensor::kErase>(x);
      Dot(x, y);
      Sum(y);
      results.written = Own(y);
    }
    Decay();
    if constexpr (Sizes::kDelta) {
      Dot(k, y);
      Sum(y);
      LINNET_UNROLL
      for (int r = 0; r < kLines; ++r) y[r] = v[r] - y[r];
      results.written = Own(y);
      const float beta = Beta();
      LINNET_UNROLL
      for (int r = 0; r < kLines; ++r) y[r] *= beta;
    }
    if constexpr (Sizes::kTwoSided) {
      Load<Tensor::kErase>(x);
      Multiply(x, k);
      Dot(x, y);
      Sum(y);
      Lines w;
      LoadLines<Tensor::kWrite>(w);
      LINNET_UNROLL
      for (int r = 0; r < kLines; ++r) y[r] = w[r] * v[r] - y[r];
      results.written = Own(y);
    }
    if constexpr (Sizes::kRwkv7) {
      Load<Tensor::kWrite>(x);
      Add(x, y);
    }
    Add(k, Sizes::kDelta || Sizes::kTwoSided ? y : v);
    Load<Tensor::kQ>(x);
    Dot(x, y);
    results.out = args_.scale * OwnSum(y);
  }

  // Columns of dS.
  LINNET_TILE void GradWritten(Results& results) {
    Elements k, x;
    Lines grad, y;
    Load<Tensor::kQ>(x);
    LoadLines<Tensor::kGradOut>(grad);
    LINNET_UNROLL
    for (int r = 0; r < kLines; ++r) grad[r] *= args_.scale;
    Add(x, grad);
    Load<Tensor::kK>(k);
    Dot(k, y);
    if constexpr (Sizes::kAdd || Sizes::kRwkv7) {
      results.v = OwnSum(y);
    } else {
      Sum(y);
      const float own = Own(y);
      results.written = own;
      if constexpr (Sizes::kDelta) {
        const float beta = Beta();
        results.v = beta * own;
        LINNET_UNROLL
        for (int c = 0; c < kElements; ++c) x[c] = -beta * k[c];
      } else {
        results.v = own * LoadOwn<Tensor::kWrite>();
        results.write = own * LoadOwn<Tensor::kV>();
        Load<Tensor::kErase>(x);
        LINNET_UNROLL
        for (int c = 0; c < kElements; ++c) x[c] *= -k[c];
      }
      Add(x, y);
    }
    if constexpr (Sizes::kRwkv7) {
      Load<Tensor::kWrite>(x);
      Dot(x, y);
      Sum(y);
      results.written = Own(y);
    }
    Decay();
    if constexpr (Sizes::kRwkv7) {
      Load<Tensor::kErase>(x);
      Add(x, y);
    }
  }

  // Rows of S.
  LINNET_TILE void GradRead(Results& results) {
    Elements x;
    Lines k, dot;
    LoadLines<Tensor::kK>(k);
    if constexpr (!Sizes::kRwkv7) Decay();
    if constexpr (!Sizes::kAdd) {
      Load<Tensor::kGradWritten>(x);
      Dot(x, dot);
      results.erased = OwnSum(dot);
    }
    if constexpr (Sizes::kRwkv7) Decay();
    if constexpr (!Sizes::kAdd) {
      Lines b;
      if constexpr (Sizes::kRwkv7) {
        LoadLines<Tensor::kWrite>(b);
      } else {
        const float beta = Sizes::kDelta ? Beta() : 1.0f;
        LINNET_UNROLL
        for (int r = 0; r < kLines; ++r) b[r] = beta * k[r];
      }
      Load<Tensor::kWritten>(x);
      Add(x, b);
    }
    if constexpr (Sizes::kAdd || Sizes::kRwkv7) {
      Load<Tensor::kV>(x);
      Add(x, k);
    }
    Load<Tensor::kGradOut>(x);
    Dot(x, dot);
    results.q = args_.scale * OwnSum(dot);
  }

  // Rows of dS. valid: whether the position is before the sequence's length.
  LINNET_TILE void GradKeys(bool valid, Results& results) {
    Elements x;
    Lines q, k, dot;
    LoadLines<Tensor::kQ>(q);
    LoadLines<Tensor::kK>(k);
    Load<Tensor::kGradOut>(x);
    LINNET_UNROLL
    for (int r = 0; r < kLines; ++r) q[r] *= args_.scale;
    Add(x, q);
    // grad_k and grad_y: rows of dS times the values and times `written`.
    float grad_k = 0, grad_y = 0;
    if constexpr (Sizes::kAdd || Sizes::kRwkv7) {
      Load<Tensor::kV>(x);
      Dot(x, dot);
      grad_k = OwnSum(dot);
    }
    Lines a;
    if constexpr (!Sizes::kAdd) {
      Load<Tensor::kWritten>(x);
      Dot(x, dot);
      grad_y = OwnSum(dot);
      Load<Tensor::kGradWritten>(x);
      if constexpr (Sizes::kDelta) {
        const float beta = Beta();
        LINNET_UNROLL
        for (int r = 0; r < kLines; ++r) a[r] = -beta * k[r];
        Add(x, a);
      } else {
        LoadLines<Tensor::kErase>(a);
      }
      if constexpr (Sizes::kTwoSided) {
        LINNET_UNROLL
        for (int r = 0; r < kLines; ++r) a[r] *= -k[r];
        Add(x, a);
      }
    }
    Decay();
    if constexpr (Sizes::kRwkv7) Add(x, a);
    FinishGradKeys(valid, grad_k, grad_y, results);
  }
  LINNET_TILE void FinishGradKeys(bool valid, float grad_k, float grad_y, Results& results) {
    const float q = LoadOwn<Tensor::kQ>(), k = LoadOwn<Tensor::kK>();
    // wrote: what the vectors that write in this position take off the sum of dg; reads: what the
    // vector that reads S_{t-1} adds to it.
    float wrote = k * grad_k, reads = 0;
    if constexpr (Sizes::kDelta) {
      const float beta = Beta(), erased = LoadOwn<Tensor::kErased>();
      wrote = beta * k * (grad_y + erased);
      grad_k = beta * (grad_y - erased);
    }
    if constexpr (Sizes::kTwoSided) {
      const float erase = LoadOwn<Tensor::kErase>(), erased = LoadOwn<Tensor::kErased>();
      wrote = k * (grad_y + erase * erased);
      grad_k = grad_y - erase * erased;
      results.erase = -k * erased;
    }
    if constexpr (Sizes::kRwkv7) {
      const float erased = LoadOwn<Tensor::kErased>();
      wrote += LoadOwn<Tensor::kWrite>() * grad_y;
      reads = LoadOwn<Tensor::kErase>() * erased;
      results.write = grad_y;
      results.erase = valid ? erased : 0.0f;
    }
    results.k = valid ? grad_k : 0.0f;
    if (!Sizes::kKeyDecay && !args_.head_decay) return;
    AddGradDecay(q * LoadOwn<Tensor::kGradQ>() - wrote);
    results.decay = valid ? grad_decay_ : 0.0f;
    AddGradDecay(reads);
  }
  // Adds to the sum of dg, which may be long, with the rounding errors so far (Kahan's sum).
  LINNET_TILE void AddGradDecay(float x) {
    const float y = x - lost_, sum = grad_decay_ + y;
    lost_ = (sum - grad_decay_) - y;
    grad_decay_ = sum;
  }
  static LINNET_TILE void Multiply(Elements& x, const Elements& y) {
    LINNET_UNROLL
    for (int c = 0; c < kElements; ++c) x[c] *= y[c];
  }

  // --- States ---

  // Calls body(index, r, c) for each group of four elements of the state that are neighbors in
  // memory. Columns: lines 0 .. 3, element c; rows: line r, elements c .. c + 3.
  template <class Body>
  LINNET_TILE void ForState(Body body) const {
    const size_t place = static_cast<size_t>(n_) * args_.heads + h_;
    const unsigned line = first_line_ + slot_;
    constexpr int kGroups = Sizes::kColumns ? 1 : kLines, kStride = Sizes::kColumns ? 1 : 4;
    LINNET_UNROLL
    for (int r = 0; r < kGroups; ++r) {
      LINNET_UNROLL
      for (int c = 0; c < kElements; c += kStride) {
        const unsigned element = c / 4 * 4 * kLanes + 4 * lane_ + c % 4;
        if (line + r >= LineCount() || element >= ElementCount()) continue;
        const unsigned d = Sizes::kColumns ? element : line + r;
        const unsigned m = Sizes::kColumns ? line : element;
        body((place * args_.dim + d) * args_.value_dim + m, r, c);
      }
    }
  }
  LINNET_TILE float& Neighbor(int r, int c, int i) {
    return Sizes::kColumns ? state_[i][c] : state_[r][c + i];
  }
  LINNET_TILE void LoadState(const float* from) {
    if (from == nullptr) return;
    ForState([&](size_t index, int r, int c) {
      const Float4 four = *reinterpret_cast<const Float4*>(from + index);
      LINNET_UNROLL
      for (int i = 0; i < 4; ++i) Neighbor(r, c, i) = four.x[i];
    });
  }
  LINNET_TILE void StoreState(float* to) {
    if (to == nullptr) return;
    ForState([&](size_t index, int r, int c) {
      Float4 four;
      LINNET_UNROLL
      for (int i = 0; i < 4; ++i) four.x[i] = Neighbor(r, c, i);
      *reinterpret_cast<Float4*>(to + index) = four;
    });
  }
  LINNET_TILE float* FinalDot() const {
    const unsigned line = first_line_ + slot_ + own_;
    if (lane_ >= kLines || line >= LineCount()) return nullptr;
    return args_.final_dots + (static_cast<size_t>(n_) * args_.heads + h_) * args_.dim + line;
  }
  LINNET_TILE void Begin() {
    LINNET_UNROLL
    for (int r = 0; r < kLines; ++r) {
      LINNET_UNROLL
      for (int c = 0; c < kElements; ++c) state_[r][c] = 0.0f;
    }
    if constexpr (Sizes::kPass == ScanPass::kForward) {
      LoadState(args_.s);
      StoreState(args_.first_s);
    } else if constexpr (Sizes::kPass == ScanPass::kGradRead) {
      LoadState(args_.first_s);
    } else {
      LoadState(args_.grad_s);
    }
    if constexpr (Sizes::kPass == ScanPass::kGradKeys) {
      const float* dot = FinalDot();
      if (dot != nullptr) grad_decay_ = *dot;
    }
  }
  LINNET_TILE void End() {
    if constexpr (Sizes::kPass == ScanPass::kForward) StoreState(args_.s);
    if constexpr (Sizes::kPass == ScanPass::kGradWritten) StoreState(args_.grad_s0);
    if constexpr (Sizes::kPass == ScanPass::kGradRead) {
      Lines dot = {};
      if (args_.grad_s != nullptr) {
        ForState([&](size_t index, int r, int c) {
          const Float4 four = *reinterpret_cast<const Float4*>(args_.grad_s + index);
          LINNET_UNROLL
          for (int i = 0; i < 4; ++i) dot[r] += four.x[i] * state_[r][c + i];
        });
      }
      const float sum = OwnSum(dot);
      float* to = FinalDot();
      if (to != nullptr) *to = sum;
    }
  }

  Tile& tile_;
  const ScanTileArgs& args_;
  const unsigned n_, h_;
  const unsigned lane_, slot_;  // the thread's lane in its lines, and its first line
  const unsigned first_line_;   // of the block
  const unsigned own_;  // of the thread's lines, the one whose sums it stores (if lane_ < kLines)
  size_t first_;        // row of position 0 if sequences are packed, else 0
  unsigned length_, valid_;
  unsigned buffer_ = 0, at_ = 0;  // the current position: its buffer, and its place in the piece
  float next_decay_ = 0, next_beta_ = 0;  // of position thread() of the piece being copied
  float grad_decay_ = 0, lost_ = 0;       // of line own_: the sum of dg, and its rounding error
  float state_[kLines][kElements];
};

// Grid: x = sequence and head, y = groups of Sizes::kBlockLines lines.
template <class Sizes, class Tile>
LINNET_TILE void ScanSweepTile(Tile& tile, const ScanTileArgs& args) {
  ScanSweep<Tile, Sizes>(tile, args).Run();
}

// Gradients with one number for a position and head: of g, the sum of `channels`; of beta, the dot
// product of `written` and `grad_written`. One warp per position and head. Grid: x = blocks of
// threads / 32 of them.
template <bool kDelta, class Tile>
LINNET_TILE void ScanScalarsTile(Tile& tile, const ScanTileArgs& args) {
  const size_t row =
      static_cast<size_t>(tile.x()) * (tile.threads() / kWarp) + tile.thread() / kWarp;
  const size_t rows = static_cast<size_t>(args.offsets ? 1 : args.batch) * args.length * args.heads;
  if (row >= rows) return;
  const unsigned h = static_cast<unsigned>(row % args.heads);
  const size_t t = row / args.heads % args.length, n = row / args.heads / args.length;
  const auto sum_of = [&](unsigned width, auto term) {
    float sum = 0;
    for (unsigned i = tile.lane(); i < width; i += kWarp) sum += term(i);
    LINNET_UNROLL
    for (unsigned mask = 1; mask < kWarp; mask *= 2) sum += tile.ShuffleXor(sum, mask);
    return sum;
  };
  const auto row_of = [&](const Strided<float>& x) {
    return x.data + static_cast<ptrdiff_t>(n) * x.batch + static_cast<ptrdiff_t>(t) * x.time +
           static_cast<ptrdiff_t>(h) * x.head;
  };
  if (args.head_decay) {
    const float* g = row_of(args.channels);
    const float sum = sum_of(args.dim, [&](unsigned i) { return g[i]; });
    if (tile.lane() == 0) *row_of(args.grad.decay) = sum;
  }
  if (kDelta) {
    const float *y = row_of(args.written), *grad = row_of(args.grad_written);
    const float sum = sum_of(args.value_dim, [&](unsigned i) { return y[i] * grad[i]; });
    if (tile.lane() == 0) *row_of(args.grad.erase) = sum;
  }
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_SCAN_TILE_H_
