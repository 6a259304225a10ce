// The kernels of few.h as tile programs (tile.h). A block computes one group of a residual branch
// for one sequence.
//
// Each program calls wait() once, before its first read of memory that the previous kernel may have
// written.
#ifndef LINNET_KERNELS_CUDA_FEW_TILE_H_
#define LINNET_KERNELS_CUDA_FEW_TILE_H_

#include <utility>

#include "linnet/kernels/cuda/few.h"
#include "linnet/kernels/cuda/linear_step_tile.h"
#include "linnet/kernels/cuda/rows_tile.h"
#include "linnet/kernels/cuda/sample_tile.h"
#include "linnet/kernels/cuda/tile.h"

namespace linnet::kernels::cuda {

inline constexpr unsigned kFewThreads = 256;
inline constexpr unsigned kFewInner = 512;  // maximum floats kept between a group's two products

// Byte offsets in shared memory. The branch's input y [kMaxWidth] is at 0. It is followed by the
// warps' partial sums of four reductions, the floats between a group's two products and, from
// kFewWeights on, the scratch of the linear step (attention only) and the weights.
inline constexpr unsigned kFewSums = 4 * kMaxWidth;
inline constexpr unsigned kFewInnerAt = kFewSums + 4 * 4 * kFewThreads / kWarp;
inline constexpr unsigned kFewWeights = kFewInnerAt + 4 * kFewInner;

template <typename Tile, typename T>
using SharedOf = decltype(std::declval<Tile&>().template Shared<T>(0, 0));

template <typename T, class Tile>
class FewBlock {
 public:
  LINNET_TILE FewBlock(Tile& tile, const FewInput<T>& input)
      : tile_(tile),
        input_(input),
        y_(tile.template Shared<float>(0, kMaxWidth)),
        sums_(tile.template Shared<float>(kFewSums, 4 * kFewThreads / kWarp)),
        inner_(tile.template Shared<float>(kFewInnerAt, kFewInner)) {}

  LINNET_TILE const SharedOf<Tile, float>& y() const { return y_; }
  LINNET_TILE const SharedOf<Tile, float>& inner() const { return inner_; }
  LINNET_TILE unsigned sequence() const { return tile_.y(); }

  // Starts copying a matrix [rows, width], whose rows are `stride` elements apart, to rows first ..
  // first + rows - 1 of a shared matrix of the same width.
  template <typename U>
  LINNET_TILE void Copy(const SharedOf<Tile, U>& to, unsigned first, unsigned rows, unsigned width,
                        const U* from, unsigned stride) const {
    constexpr unsigned kOf = 16 / sizeof(U);
    const unsigned chunks = width / kOf;
    for (unsigned i = tile_.thread(); i < rows * chunks; i += tile_.threads()) {
      const unsigned r = i / chunks, c = i % chunks * kOf;
      tile_.CopyAsync(to, (first + r) * width + c, from + size_t{r} * stride + c, true);
    }
  }

  // Computes y, writes x_next (only in the blocks of the first group), and waits for the copies.
  LINNET_TILE void ReadInput() {
    const unsigned d = input_.d_model, n = sequence();
    float s[kColumns];
    LINNET_UNROLL
    for (unsigned j = 0; j < kColumns; ++j) {
      const unsigned c = tile_.thread() + kFewThreads * j;
      s[j] = c < d ? Residual(n, c) : 0.0f;
    }
    const bool first = tile_.x() == 0 && input_.x_next != nullptr;
    if (first && input_.norm_first) Keep(s);
    if (input_.weight != nullptr) Normalize(0, input_.weight, input_.norm_bias, s);
    if (input_.next_weight != nullptr) Normalize(2, input_.next_weight, input_.next_bias, s);
    if (first && !input_.norm_first) Keep(s);
    LINNET_UNROLL
    for (unsigned j = 0; j < kColumns; ++j) {
      const unsigned c = tile_.thread() + kFewThreads * j;
      if (c < d) y_.Set(c, s[j]);
    }
    tile_.template CopyWait<0>();
    tile_.Barrier();
  }

  // Multiplies weights [rows, width] in shared memory by the vector x[begin .. begin + width - 1].
  // For each row r, one thread calls emit(r, sum).
  template <typename U, class Emit>
  LINNET_TILE void Multiply(const SharedOf<Tile, U>& weights, unsigned rows, unsigned width,
                            const SharedOf<Tile, float>& x, unsigned begin,
                            const Emit& emit) const {
    constexpr unsigned kOf = 16 / sizeof(U);
    const unsigned chunks = width / kOf;
    unsigned lanes = kWarp;  // lanes per row
    while (lanes > chunks) lanes /= 2;
    const unsigned own = tile_.thread() % lanes, at_once = tile_.threads() / lanes;
    for (unsigned r0 = 0; r0 < rows; r0 += at_once) {
      const unsigned r = r0 + tile_.thread() / lanes;
      float sum = 0;
      for (unsigned i = own; r < rows && i < chunks; i += lanes) {
        const auto raw = weights.template Load<Vector16>(r * width + i * kOf);
        LINNET_UNROLL
        for (unsigned part = 0; part < kOf; part += 4) {
          const auto v = x.template Load<Vector16>(begin + i * kOf + part);
          LINNET_UNROLL
          for (unsigned e = 0; e < 4; ++e) {
            sum += Element<U>(raw, part + e) * FloatOfBits(v.word[e]);
          }
        }
      }
      for (unsigned mask = lanes / 2; mask > 0; mask /= 2) sum += tile_.ShuffleXor(sum, mask);
      if (own == 0 && r < rows) emit(r, sum);
    }
  }

 private:
  static constexpr unsigned kColumns = kMaxWidth / kFewThreads;

  template <typename U>
  LINNET_TILE static float Element(const Vector16& raw, unsigned i) {
    if constexpr (sizeof(U) == 4) {
      return FloatOfBits(raw.word[i]);
    } else {
      return i % 2 == 0 ? LowBf16(raw.word[i / 2]) : HighBf16(raw.word[i / 2]);
    }
  }

  // Column c of the residual stream of sequence n.
  LINNET_TILE float Residual(unsigned n, unsigned c) const {
    if (input_.embeds) {
      return EmbeddedRow(input_.embed, n, input_.embed.control->next_position).At(c);
    }
    const size_t row = size_t{input_.batch} * input_.d_model;
    const size_t at = size_t{n} * input_.d_model + c;
    float s = input_.x[at] + ToFloat(input_.bias[c]);
    for (unsigned g = 0; g < input_.groups; ++g) s += input_.sums[g * row + at];
    return s;
  }

  // Writes the sequence's row of x_next.
  LINNET_TILE void Keep(const float (&s)[kColumns]) const {
    LINNET_UNROLL
    for (unsigned j = 0; j < kColumns; ++j) {
      const unsigned c = tile_.thread() + kFewThreads * j;
      if (c < input_.d_model) input_.x_next[size_t{sequence()} * input_.d_model + c] = s[j];
    }
  }

  // Returns the sum of x over the block. Each call in a program needs its own `slot`, 0 .. 3.
  LINNET_TILE float Sum(unsigned slot, float x) const {
    const unsigned warps = kFewThreads / kWarp;
    const float own = SumOfWarp(tile_, x);
    if (tile_.lane() == 0) sums_.Set(slot * warps + tile_.warp(), own);
    tile_.Barrier();
    float sum = 0;
    for (unsigned w = 0; w < warps; ++w) sum += sums_.Get(slot * warps + w);
    return sum;
  }

  // Layer norm of s, in place. Uses slots `slot` and `slot + 1` of Sum().
  LINNET_TILE void Normalize(unsigned slot, const float* weight, const float* bias,
                             float (&s)[kColumns]) const {
    const float width = static_cast<float>(input_.d_model);
    float sum = 0, squares = 0;
    LINNET_UNROLL
    for (unsigned j = 0; j < kColumns; ++j) sum += s[j];  // 0 beyond the row
    const float mean = Sum(slot, sum) / width;
    LINNET_UNROLL
    for (unsigned j = 0; j < kColumns; ++j) {
      if (tile_.thread() + kFewThreads * j < input_.d_model)
        squares += (s[j] - mean) * (s[j] - mean);
    }
    const float scale = 1.0f / std::sqrt(Sum(slot + 1, squares) / width + input_.eps);
    LINNET_UNROLL
    for (unsigned j = 0; j < kColumns; ++j) {
      const unsigned c = tile_.thread() + kFewThreads * j;
      if (c < input_.d_model) s[j] = (s[j] - mean) * scale * weight[c] + bias[c];
    }
  }

  Tile& tile_;
  const FewInput<T>& input_;
  const SharedOf<Tile, float> y_, sums_, inner_;
};

// Like GlobalHead (linear_step_tile.h), but the head's query, key, value and output lie in shared
// memory, in this order.
template <class Array>
class SharedHead {
 public:
  LINNET_TILE SharedHead(const Array& at, unsigned dim, unsigned value_dim)
      : at_(at), dim_(dim), out_(2 * dim + value_dim) {}
  LINNET_TILE float Query(unsigned f) const { return at_.Get(f); }
  LINNET_TILE float Key(unsigned f) const { return at_.Get(dim_ + f); }
  LINNET_TILE float Value(unsigned m) const { return at_.Get(2 * dim_ + m); }
  LINNET_TILE void Out(unsigned m, float x) const { at_.Set(out_ + m, x); }

 private:
  const Array& at_;
  const unsigned dim_, out_;
};

template <typename T>
LINNET_HOST_TILE unsigned FewAttendShared(unsigned dim, unsigned value_dim, unsigned padded_dim,
                                          unsigned d_model) {
  return kFewWeights + LinearStepShared<T>(padded_dim, PaddedWidth(value_dim)) +
         d_model * (2 * dim + 2 * value_dim) * static_cast<unsigned>(sizeof(T));
}
template <typename T>
LINNET_HOST_TILE unsigned FewFeedForwardShared(unsigned slice, unsigned d_model) {
  return kFewWeights + 2 * slice * d_model * static_cast<unsigned>(sizeof(T));
}
LINNET_HOST_TILE unsigned FewHeadShared(unsigned outputs, unsigned d_model) {
  return kFewWeights + 4 * outputs * d_model;
}

template <typename T, unsigned kFeatureBlocks, class Tile, class Wait>
LINNET_TILE void FewAttendTile(Tile& tile, const FewAttendArgs<T>& args, const Wait& wait) {
  const DecodeStepArgs& step = args.step;
  const unsigned d = args.input.d_model, f = step.dim, m = step.value_dim, head = tile.x();
  const unsigned rows = 2 * f + m, all = step.heads * f;
  const unsigned scratch = LinearStepShared<T>(kFeatureBlocks * kStepPad, PaddedWidth(m));
  const auto project = tile.template Shared<T>(kFewWeights + scratch, rows * d);
  const auto merge = tile.template Shared<T>(
      kFewWeights + scratch + rows * d * static_cast<unsigned>(sizeof(T)), d * m);
  FewBlock<T, Tile> block(tile, args.input);
  block.template Copy<T>(project, 0, f, d, args.project + size_t{head} * f * d, d);
  block.template Copy<T>(project, f, f, d, args.project + (size_t{all} + head * f) * d, d);
  block.template Copy<T>(project, 2 * f, m, d, args.project + (2 * size_t{all} + head * m) * d, d);
  block.template Copy<T>(merge, 0, d, m, args.merge + head * m, step.heads * m);
  tile.CopyCommit();
  wait();

  const DecodeControl& control = *step.control;
  const bool embeds = args.input.embeds;
  const unsigned waiting = embeds ? control.next_waiting : control.waiting;
  if (embeds && head == 0 && tile.y() == 0 && tile.thread() == 0) {
    args.input.embed.control->position = control.next_position;
    args.input.embed.control->waiting = waiting;
  }
  block.ReadInput();
  const auto& inner = block.inner();
  block.template Multiply<T>(project, rows, d, block.y(), 0, [&](unsigned r, float sum) {
    const unsigned at = r < f       ? head * f + r
                        : r < 2 * f ? all + head * f + r - f
                                    : 2 * all + head * m + r - 2 * f;
    inner.Set(r, sum + ToFloat(args.project_bias[at]));
  });
  tile.Barrier();
  if (tile.warp() == 0) {
    const SharedHead io(inner, f, m);
    LinearStepWarp<T, kFeatureBlocks, Tile, decltype(io)>(tile, step, block.sequence(), head,
                                                          waiting, kFewWeights, io)
        .Run();
  }
  tile.Barrier();
  float* sums = args.sums + (size_t{head} * args.input.batch + block.sequence()) * d;
  block.template Multiply<T>(merge, d, m, inner, rows,
                             [&](unsigned r, float sum) { sums[r] = sum; });
}

template <typename T, class Tile, class Wait>
LINNET_TILE void FewFeedForwardTile(Tile& tile, const FewFeedForwardArgs<T>& args,
                                    const Wait& wait) {
  const unsigned d = args.input.d_model, begin = tile.x() * args.slice;
  const unsigned units = args.d_ff - begin < args.slice ? args.d_ff - begin : args.slice;
  const auto up = tile.template Shared<T>(kFewWeights, units * d);
  const auto down = tile.template Shared<T>(
      kFewWeights + units * d * static_cast<unsigned>(sizeof(T)), units * d);
  FewBlock<T, Tile> block(tile, args.input);
  block.template Copy<T>(up, 0, units, d, args.up + size_t{begin} * d, d);
  block.template Copy<T>(down, 0, d, units, args.down + begin, args.d_ff);
  tile.CopyCommit();
  wait();

  block.ReadInput();
  const auto& inner = block.inner();
  block.template Multiply<T>(up, units, d, block.y(), 0, [&](unsigned r, float sum) {
    const float x = sum + ToFloat(args.up_bias[begin + r]);
    inner.Set(r, args.gelu ? Gelu(x) : x > 0 ? x : 0.0f);
  });
  tile.Barrier();
  float* sums = args.sums + (size_t{tile.x()} * args.input.batch + block.sequence()) * d;
  block.template Multiply<T>(down, d, units, inner, 0,
                             [&](unsigned r, float sum) { sums[r] = sum; });
}

template <typename T, class Tile, class Wait>
LINNET_TILE void FewHeadTile(Tile& tile, const FewHeadArgs<T>& args, const Wait& wait) {
  const unsigned d = args.input.d_model;
  const auto weight = tile.template Shared<float>(kFewWeights, args.outputs * d);
  FewBlock<T, Tile> block(tile, args.input);
  block.template Copy<float>(weight, 0, args.outputs, d, args.weight, d);
  tile.CopyCommit();
  wait();

  block.ReadInput();
  const unsigned n = block.sequence(), next = args.sample.control->position + 1;
  float* outputs = args.to + size_t{n} * args.sample.output_stride;
  block.template Multiply<float>(weight, args.outputs, d, block.y(), 0,
                                 [&](unsigned r, float sum) { outputs[r] = sum + args.bias[r]; });
  tile.Barrier();
  if (n == 0 && tile.thread() == 0) AdvanceControl(args.sample.control);
  if (tile.warp() == 0 && next >= args.sample.control->known) {
    SampleSequence(tile, args.sample, n, next, kFewInnerAt);
  }
}

}  // namespace linnet::kernels::cuda

#endif  // LINNET_KERNELS_CUDA_FEW_TILE_H_
