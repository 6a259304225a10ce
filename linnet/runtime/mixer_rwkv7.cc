// RWKV-7's time mixing (model/rwkv7.h): steps and prefixes run the kernels of kernels/scan.h on an
// fp32 state. The walker applies the token shifts, before the projections.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/parallel.h"
#include "linnet/kernels/gates.h"
#include "linnet/kernels/rwkv7.h"
#include "linnet/kernels/scan.h"
#include "linnet/model/rwkv7.h"
#include "linnet/runtime/mixer.h"
#include "linnet/runtime/second_factor.h"

namespace linnet {
namespace {

constexpr kernels::ScanOptions kOptions = {.decay = kernels::ScanDecay::kKey,
                                           .write = kernels::ScanWrite::kRwkv7};

class Rwkv7Mixer : public RuntimeMixer {
 public:
  explicit Rwkv7Mixer(const MixerMake& make)
      : RuntimeMixer(make.spec), reads_(make.spec.value_rank > 0) {
    const auto own = [&](const char* name) { return make.tensor(name); };
    decay_ = SecondFactor(own("w2"), own("w0"), heads_, dim_, /*transposed=*/true);
    rate_ = SecondFactor(own("a2"), own("a0"), heads_, dim_, /*transposed=*/true);
    gate_ = SecondFactor(own("g2"), {}, heads_, value_dim_, /*transposed=*/true);
    if (reads_)
      share_ = SecondFactor(own("v2"), own("v0"), heads_, value_dim_, /*transposed=*/true);
    removal_ = AlignedCopy(own("k_k")), key_rate_ = AlignedCopy(own("k_a")),
    bonus_ = AlignedCopy(own("r_k"));
    norm_ = AlignedCopy(own("ln_x.weight")), norm_bias_ = AlignedCopy(own("ln_x.bias"));
    const auto ranks = {make.spec.decay_rank, make.spec.rate_rank, make.spec.gate_rank,
                        make.spec.value_rank};
    widest_rank_ = static_cast<size_t>(std::max(ranks));
  }

  // The scan's states [heads, K, V].
  MixerStateSize state_size() const override {
    return {.fixed = RoundUp(heads_ * dim_ * value_dim_, kAlign)};
  }

  size_t ScratchFloats(size_t rows, size_t heads, size_t) const override {
    const kernels::ScanShape shape = Shape(1, rows, heads);
    return Cut(nullptr, rows, heads).used +
           std::max(kernels::ScanForwardScratch(shape, kOptions), kernels::ScanStepScratch(shape));
  }

  void Run(const MixerCall& call) const override {
    const size_t rows = call.block.rows();
    Pieces pieces = Cut(call.scratch, rows, call.count());
    for (size_t i = 0; i < projections().size(); ++i) pieces.columns[i] = Place(i, call.count());
    LowRank(call, kW1, decay_, dim_, kernels::Tanh, pieces, pieces.decay);
    LowRank(call, kA1, rate_, dim_, nullptr, pieces, pieces.write);
    if (reads_) LowRank(call, kV1, share_, value_dim_, nullptr, pieces, pieces.line);
    for (size_t row = 0; row < rows; ++row) Prepare(call, row, pieces);
    if (call.state != nullptr && call.block.step) {
      Step(call, pieces);
    } else {
      for (size_t i = 0; i < call.block.sequences; ++i) Scan(call, i, pieces);
    }
    const auto sigmoid = [](size_t n, float* x) { kernels::Sigmoid(n, 1, x); };
    LowRank(call, kG1, gate_, value_dim_, sigmoid, pieces, pieces.line);
    for (size_t row = 0; row < rows; ++row) Finish(call, row, pieces);
  }

 private:
  // The projections, in the order of Projections() in model/mixers/rwkv7.cc. kFirst is v_first, the
  // values of an earlier layer.
  enum Index : uint8_t { kReceptance, kKey, kValue, kW1, kA1, kG1, kV1, kFirst, kCount };

  // Working memory: intermediate results, and the scan's inputs except the queries, which are
  // columns of MixerCall::in.
  struct Pieces {
    float *k, *v;                  // [rows, heads, K or V]
    float *decay, *erase, *write;  // [rows, heads, K]
    float* rank;                   // [rows, rank], a first factor's columns after the activation
    float* line;                   // [rows, heads, V], low-rank products: first of v, then of g
    float* s;                      // [heads, K, V], the scan's state if the call keeps none
    float* kernel;                 // the scan's own scratch memory
    size_t used;                   // floats before `kernel`
    std::array<Columns, kCount> columns;  // of the projections
  };

  // Lays the pieces out in `scratch`; if it is null, only counts their floats.
  Pieces Cut(float* scratch, size_t rows, size_t heads) const {
    size_t used = 0;
    const auto take = [&](size_t floats) {
      float* piece = scratch == nullptr ? nullptr : scratch + used;
      used += RoundUp(floats, kAlign);
      return piece;
    };
    Pieces pieces{};
    const size_t keys = rows * heads * dim_;
    pieces.k = take(keys), pieces.v = take(rows * heads * value_dim_);
    pieces.decay = take(keys), pieces.erase = take(keys), pieces.write = take(keys);
    pieces.rank = take(rows * widest_rank_), pieces.line = take(rows * heads * value_dim_);
    pieces.s = take(heads * dim_ * value_dim_);
    pieces.kernel = scratch == nullptr ? nullptr : scratch + used;
    pieces.used = used;
    return pieces;
  }

  kernels::ScanShape Shape(size_t batch, size_t length, size_t heads) const {
    return {.batch = batch, .length = length, .heads = heads, .dim = dim_, .value_dim = value_dim_};
  }

  // Columns of head h of the group, in the projection `index`.
  static const float* In(const MixerCall& call, size_t row, const Pieces& pieces, Index index,
                         size_t h = 0) {
    const Columns& columns = pieces.columns[index];
    return call.in + row * call.in_width + columns.at + h * columns.stride;
  }

  // Computes a low-rank product: to [rows, heads of the group, width] = act(a) times the second
  // factor, where a are the columns of the projection `index`, which is the first factor. act(n, x)
  // replaces x [n]; null: act(a) = a.
  void LowRank(const MixerCall& call, Index index, const SecondFactor& second, size_t width,
               void (*act)(size_t n, float* x), const Pieces& pieces, float* to) const {
    const size_t rows = call.block.rows(), rank = second.rank();
    const float* a = In(call, 0, pieces, index);
    size_t stride = call.in_width;
    if (act != nullptr) {
      for (size_t row = 0; row < rows; ++row) {
        std::copy_n(a + row * stride, rank, pieces.rank + row * rank);
      }
      act(rows * rank, pieces.rank);
      a = pieces.rank, stride = rank;
    }
    second.Apply(rows, a, stride, call.heads, to, call.count() * width);
  }

  // Computes a row of the scan's inputs.
  void Prepare(const MixerCall& call, size_t row, const Pieces& pieces) const {
    const size_t count = call.count(), keys = count * dim_, first = row * keys;
    float *decay = pieces.decay + first, *rate = pieces.write + first;
    kernels::Sigmoid(keys, static_cast<float>(kRwkv7Decay), decay);
    kernels::Sigmoid(keys, 1, rate);
    const size_t begin = call.heads.begin * dim_, stride = pieces.columns[kKey].stride;
    kernels::Rwkv7Keys({.heads = count,
                        .dim = dim_,
                        .key = In(call, row, pieces, kKey),
                        .key_stride = stride,
                        .removal = removal_.data() + begin,
                        .key_rate = key_rate_.data() + begin,
                        .least = static_cast<float>(kRwkv7LeastLength),
                        .k = pieces.k + first,
                        .erase = pieces.erase + first,
                        .write = rate});
    const size_t values = row * count * value_dim_;
    float* share = pieces.line + values;
    if (reads_) kernels::Sigmoid(count * value_dim_, 1, share);
    for (size_t h = 0; h < count; ++h) {
      const float* own = In(call, row, pieces, kValue, h);
      float* v = pieces.v + values + h * value_dim_;
      if (reads_) {
        kernels::Interpolate(value_dim_, own, In(call, row, pieces, kFirst, h),
                             share + h * value_dim_, v);
      } else {
        std::copy_n(own, value_dim_, v);
      }
    }
  }

  kernels::ScanTensors<const float> Inputs(const MixerCall& call, size_t row,
                                           const Pieces& pieces) const {
    const size_t count = call.count();
    const auto rows = [&](const float* from, size_t width) {
      return Rows(from, row, count * width, width);
    };
    return {.q = Rows(In(call, 0, pieces, kReceptance), row, call.in_width, dim_),
            .k = rows(pieces.k, dim_),
            .v = rows(pieces.v, value_dim_),
            .decay = rows(pieces.decay, dim_),
            .erase = rows(pieces.erase, dim_),
            .write = rows(pieces.write, dim_)};
  }

  // Reads one position of every sequence.
  void Step(const MixerCall& call, const Pieces& pieces) const {
    kernels::ScanStep(Shape(call.block.sequences, 1, call.count()), kOptions,
                      {.in = Inputs(call, 0, pieces),
                       .out = Out(call, 0),
                       .s = call.state + call.block.FirstPlace() * call.block.state_stride +
                            call.heads.begin * dim_ * value_dim_,
                       .s_stride = static_cast<ptrdiff_t>(call.block.state_stride),
                       .sequences = call.block.chosen,
                       .scratch = pieces.kernel});
  }

  // Reads the rows of one sequence, starting from its state or from zeros.
  void Scan(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t size = dim_ * value_dim_, row = call.block.Row(sequence), count = call.count();
    float* s = pieces.s;
    if (call.state != nullptr) {
      s = call.StateOf(sequence) + call.heads.begin * size;
    } else {
      std::fill_n(s, count * size, 0.0f);
    }
    kernels::ScanForward(Shape(1, call.block.Length(sequence), count), kOptions,
                         {.in = Inputs(call, row, pieces), .out = Out(call, row), .s = s},
                         {pieces.kernel, 1}, SerialFor);
  }

  // Applies the norm, the bonus (the term with r_k) and the gate to a row's outputs.
  void Finish(const MixerCall& call, size_t row, const Pieces& pieces) const {
    const size_t count = call.count(), values = row * count * value_dim_;
    const size_t begin = call.heads.begin * value_dim_;
    kernels::Rwkv7Output({.heads = count,
                          .dim = dim_,
                          .value_dim = value_dim_,
                          .r = In(call, row, pieces, kReceptance),
                          .r_stride = pieces.columns[kReceptance].stride,
                          .k = pieces.k + row * count * dim_,
                          .bonus = bonus_.data() + call.heads.begin * dim_,
                          .v = pieces.v + values,
                          .gate = pieces.line + values,
                          .weight = norm_.data() + begin,
                          .bias = norm_bias_.data() + begin,
                          .eps = static_cast<float>(kRwkv7NormEps),
                          .out = call.out + values});
  }

  const bool reads_;                          // whether it mixes in the values of an earlier layer
  SecondFactor decay_, rate_, gate_, share_;  // w2, a2, g2, v2
  AlignedBuffer<float> removal_, key_rate_, bonus_;  // [heads, K]: k_k, k_a, r_k
  AlignedBuffer<float> norm_, norm_bias_;            // [heads, V]
  size_t widest_rank_ = 0;
};

}  // namespace

RuntimeMixerRow RuntimeRwkv7() {
  return {"rwkv7", [](const MixerMake& make) -> std::unique_ptr<RuntimeMixer> {
            return std::make_unique<Rwkv7Mixer>(make);
          }};
}

}  // namespace linnet
