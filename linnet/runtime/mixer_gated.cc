// Gated recurrences (model/gated.h): steps and prefixes run the kernels of kernels/scan.h on
// an fp32 state.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/parallel.h"
#include "linnet/kernels/gates.h"
#include "linnet/kernels/head_norm.h"
#include "linnet/kernels/scan.h"
#include "linnet/runtime/gate_functions.h"
#include "linnet/runtime/mixer.h"
#include "linnet/runtime/second_factor.h"
#include "linnet/runtime/short_convolution.h"

namespace linnet {
namespace {

using kernels::ScanDecay;
using kernels::ScanWrite;

class GatedMixer : public RuntimeMixer {
 public:
  explicit GatedMixer(const MixerMake& make)
      : RuntimeMixer(make.spec),
        form_(FindMixer(make.spec.kind).gated(make.spec)),
        times_(static_cast<size_t>(form_.householders)),
        channels_(dim_ + times_ * (dim_ + value_dim_)),
        strength_(make.spec.negative_eigenvalues ? 2.0f : 1.0f),
        floor_(make.spec.decay_floor),
        convolution_(heads_, static_cast<size_t>(form_.convolution), channels_, form_.timed) {
    size_t column = 0, shared = 0;
    for (const Projection& p : projections()) {
      size_t& at = p.shared ? shared : column;
      if (p.tensor == "b_proj") {
        erase_at_ = at;
      } else if (p.tensor == "w_proj") {
        write_at_ = at;
      } else if (p.tensor.starts_with("g_proj")) {
        gate_at_ = at;
      } else if (at >= channels_ || p.shared) {  // not q, k or v
        decay_at_ = at;
      }
      at += p.width;
    }
    width_ = column;
    AddPart(Part::kQuery, times_ - 1, {0, dim_});
    for (size_t i = 0; i < times_; ++i) {
      AddPart(Part::kKey, i, {dim_ + i * dim_, dim_});
      AddPart(Part::kValue, i, {(1 + times_) * dim_ + i * value_dim_, value_dim_});
    }
    const auto tensor = [&](const std::string& name) { return AlignedCopy(make.tensor(name)); };
    if (convolution_.taps() > 0) TakeConvolution(make);
    norm_ = tensor(std::string(form_.norm) + ".weight");
    if (form_.timed) skip_ = tensor("D");
    if (form_.decay == GatedDecay::kConstant) {
      decays_ = AlignedBuffer<float>(heads_);
      for (size_t h = 0; h < heads_; ++h) {
        decays_[h] = static_cast<float>(RetentionDecay(static_cast<int>(h)));
      }
    }
    for (size_t i = 0; form_.rotary && i < dim_ / 2; ++i) {
      frequencies_.push_back(RotaryFrequency(static_cast<int>(i), make.spec.query_dim));
    }
    const bool by_key = form_.decay == GatedDecay::kKey || form_.decay == GatedDecay::kKeyRate;
    if (form_.decay == GatedDecay::kHead || form_.decay == GatedDecay::kKeyRate) {
      decays_ = tensor("A_log");
      for (float& x : decays_) x = -std::exp(x);
      decay_bias_ = tensor("dt_bias");
    }
    if (by_key) {
      const std::string name = form_.decay == GatedDecay::kKey ? "gk_proj.1" : "f_proj.1";
      const AlignedBuffer<float> weight = ForEachHead(make.tensor(name + ".weight"));
      AlignedBuffer<float> bias;
      if (form_.decay == GatedDecay::kKey) bias = ForEachHead(make.tensor(name + ".bias"));
      decay_factor_ =
          SecondFactor({weight.data(), weight.size()}, {bias.data(), bias.size()}, heads_, dim_);
    }
    if (form_.gate == OutputGate::kSigmoid) {
      gate_factor_ = SecondFactor(make.tensor("g_proj.1.weight"), make.tensor("g_proj.1.bias"),
                                  heads_, value_dim_);
    }
    decay_width_ = by_key ? dim_ : form_.decay == GatedDecay::kNone ? 0 : 1;
    options_ = {.decay = by_key                             ? ScanDecay::kKey
                         : form_.decay == GatedDecay::kNone ? ScanDecay::kNone
                                                            : ScanDecay::kHead,
                .write = form_.write == GatedWrite::kAdd     ? ScanWrite::kAdd
                         : form_.write == GatedWrite::kDelta ? ScanWrite::kDelta
                                                             : ScanWrite::kTwoSided,
                .scale = form_.scale(make.spec.query_dim)};
  }

  // The scan's states [heads, K, V], then for each head the inputs of its convolutions at the last
  // taps - 1 positions, oldest first.
  MixerStateSize state_size() const override {
    return {.fixed = RoundUp(heads_ * (dim_ * value_dim_ + convolution_.PastFloats()), kAlign)};
  }

  size_t norm_heads() const override {
    return static_cast<size_t>(form_.norm_heads(static_cast<int>(heads_)));
  }

  size_t ScratchFloats(size_t rows, size_t heads, size_t) const override {
    const kernels::ScanShape shape = Shape(1, rows * times_, heads);
    return Cut(nullptr, rows, heads).used +
           std::max(kernels::ScanForwardScratch(shape, options_), kernels::ScanStepScratch(shape));
  }

  void Run(const MixerCall& call) const override {
    const Pieces pieces = Cut(call.scratch, call.block.rows(), call.count());
    SecondFactors(call, pieces);
    for (size_t i = 0; i < call.block.sequences; ++i) {
      Convolve(call, i, pieces);
      Prepare(call, i, pieces);
    }
    if (call.state != nullptr && call.block.step) {
      Step(call, pieces);
    } else {
      for (size_t i = 0; i < call.block.sequences; ++i) Scan(call, i, pieces);
    }
    for (size_t row = 0; row < call.block.rows(); ++row) Finish(call, row, pieces);
  }

 private:
  // A part of a head's columns: the query, key or value of a position's delta step.
  struct Part {
    enum Kind : uint8_t { kQuery, kKey, kValue } kind;
    size_t step;
  };
  void AddPart(Part::Kind kind, size_t step, ShortConvolution::Part columns) {
    parts_.push_back({kind, step});
    columns_.push_back(columns);
  }

  // Working memory. The scan's inputs have `times_` rows per position, one per delta step. Only the
  // last of them has the position's query; the queries of the others are zeros.
  struct Pieces {
    float *q, *k, *v;              // [rows, heads, K or V]
    float *decay, *erase, *write;  // [rows, heads, width], with the widths of the scan's options
    float* out;                    // the scan's output, if a position has several rows
    float* x;     // timed: values, before their multiplication by the time step, [rows, heads, V]
    float* gate;  // low-rank products of the gate, [rows, heads, V]

    float* At(Part::Kind kind) const {
      return kind == Part::kQuery ? q : kind == Part::kKey ? k : v;
    }
    float* s;       // [heads, K, V], the scan's state if the call keeps none
    float* kernel;  // the scan's own scratch memory
    size_t used;    // floats before `kernel`
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
    const size_t lines = rows * times_ * heads;
    pieces.q = take(lines * dim_), pieces.k = take(lines * dim_);
    pieces.v = take(lines * value_dim_);
    pieces.decay = take(lines * decay_width_), pieces.erase = take(lines * widths().erase);
    pieces.write = take(lines * widths().write);
    pieces.out = take(times_ > 1 ? lines * value_dim_ : 0);
    pieces.x = take(form_.timed ? lines * value_dim_ : 0);
    pieces.gate = take(form_.gate == OutputGate::kSigmoid ? rows * heads * value_dim_ : 0);
    pieces.s = take(heads * dim_ * value_dim_);
    pieces.kernel = scratch == nullptr ? nullptr : scratch + used;
    pieces.used = used;
    return pieces;
  }

  kernels::ScanShape Shape(size_t batch, size_t length, size_t heads) const {
    return {.batch = batch, .length = length, .heads = heads, .dim = dim_, .value_dim = value_dim_};
  }
  kernels::ScanWidths widths() const { return {options_, dim_, value_dim_}; }

  // Returns the rows of each head in turn. Heads that share rows get a copy each.
  AlignedBuffer<float> ForEachHead(std::span<const float> from) const {
    const auto readers = static_cast<size_t>(std::max(1, form_.value_readers()));
    AlignedBuffer<float> rows(from.size() * readers);
    const size_t size = rows.size() / heads_;
    for (size_t h = 0; h < heads_; ++h) {
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(h / readers * size), size,
                  rows.begin() + h * size);
    }
    return rows;
  }

  // Copies the convolutions' weights. The channels of a head are its queries, keys and values.
  void TakeConvolution(const MixerMake& make) {
    const std::vector<ProjectionInfo> infos = GatedProjections(make.spec, form_);
    const size_t taps = convolution_.taps();
    size_t first = 0;
    for (size_t i = 0; i < 3; ++i) {
      const std::string name = std::string("qkv").substr(i, 1) + "_conv1d.";
      const std::span<const float> weight = make.tensor(name + "weight");
      const std::span<const float> bias =
          form_.timed ? make.tensor(name + "bias") : std::span<const float>();
      for (size_t h = 0; h < heads_ && !weight.empty(); ++h) {
        for (int c = 0; c < infos[i].width; ++c) {
          const auto row =
              static_cast<size_t>(infos[i].RowOf(static_cast<int>(h), c, make.spec.heads));
          const size_t channel = first + static_cast<size_t>(c);
          for (size_t w = 0; w < taps; ++w)
            convolution_.weight(h, w, channel) = weight[row * taps + w];
          if (form_.timed) convolution_.bias(h, channel) = bias[row];
        }
      }
      first += static_cast<size_t>(infos[i].width);
    }
  }

  // Columns of head h of the group, from `at` on.
  const float* Columns(const MixerCall& call, size_t row, size_t h, size_t at) const {
    return call.in + row * call.in_width + h * width_ + at;
  }
  // Columns that all heads share, from `at` on.
  const float* Shared(const MixerCall& call, size_t row, size_t at) const {
    return Columns(call, row, call.count(), at);
  }

  // Computes queries, keys and values of a sequence's rows, with the convolutions, and updates the
  // convolutions' past inputs.
  void Convolve(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t first = call.block.Row(sequence), length = call.block.Length(sequence);
    for (size_t h = 0; h < call.count(); ++h) {
      const size_t head = call.heads.begin + h;
      float* past = call.state == nullptr ? nullptr
                                          : call.StateOf(sequence) + heads_ * dim_ * value_dim_ +
                                                head * convolution_.PastFloats();
      const auto to = [&](size_t part, size_t t) {
        const size_t at = ((first + t) * times_ + parts_[part].step) * call.count() + h;
        return pieces.At(parts_[part].kind) + at * columns_[part].width;
      };
      convolution_.Run(head, {Columns(call, first, h, 0), call.in_width, length, past}, columns_,
                       to);
      if (convolution_.taps() == 0) continue;
      for (size_t t = 0; t < length; ++t) {
        for (size_t part = 0; part < parts_.size(); ++part) {
          float* x = to(part, t);
          kernels::Silu(columns_[part].width, x);
        }
      }
    }
  }

  // Computes the low-rank products of decays and gates for all rows, before the activations.
  void SecondFactors(const MixerCall& call, const Pieces& pieces) const {
    const size_t rows = call.block.rows(), count = call.count();
    if (decay_factor_.rank() > 0) {
      decay_factor_.Apply(rows, Shared(call, 0, decay_at_), call.in_width, call.heads, pieces.decay,
                          times_ * count * dim_);
    }
    if (gate_factor_.rank() > 0) {
      gate_factor_.Apply(rows, Shared(call, 0, gate_at_), call.in_width, call.heads, pieces.gate,
                         count * value_dim_);
    }
  }

  // Rotates and normalizes queries and keys of a sequence's rows, scales values by time steps, and
  // computes decays and strengths: of these, only those that the form has.
  void Prepare(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t first = call.block.Row(sequence), count = call.count();
    for (size_t row = first; row < first + call.block.Length(sequence); ++row) {
      if (form_.rotary) {
        const size_t position = call.block.Position(sequence) + call.block.ahead + row - first;
        Rotate(position, count, pieces.q + row * count * dim_, pieces.k + row * count * dim_);
      }
      // Head 0 of the row's first and last delta step, as an index in [rows, heads].
      const size_t line = row * times_ * count, last = line + (times_ - 1) * count;
      std::fill(pieces.q + line * dim_, pieces.q + last * dim_, 0.0f);
      if (form_.delta()) {
        kernels::L2Norm(count, dim_, kGatedNormEps, pieces.q + last * dim_);
        kernels::L2Norm(times_ * count, dim_, kGatedNormEps, pieces.k + line * dim_);
      }
      for (size_t h = 0; h < count; ++h) {
        for (size_t i = 0; i < times_ && form_.delta(); ++i) Strengths(call, row, h, i, pieces);
        if (form_.timed) {
          const float step = TimeStep(call, row, h);
          float* v = pieces.v + (line + h) * value_dim_;
          std::copy_n(v, value_dim_, pieces.x + (line + h) * value_dim_);
          for (size_t m = 0; m < value_dim_; ++m) v[m] *= step;
        }
      }
      // The state decays before the first delta step only: the others' log decays are 0.
      Decay(call, row, pieces.decay + line * decay_width_);
      std::fill(pieces.decay + (line + count) * decay_width_,
                pieces.decay + (last + count) * decay_width_, 0.0f);
    }
  }

  // Computes the erase and write strengths of the i-th delta step of a row.
  void Strengths(const MixerCall& call, size_t row, size_t h, size_t i,
                 const Pieces& pieces) const {
    const kernels::ScanWidths width = widths();
    const size_t at = (row * times_ + i) * call.count() + h;
    const float* erase = Columns(call, row, h, erase_at_) + i * width.erase;
    const float* write = Columns(call, row, h, write_at_);
    const auto strengths = [at](const float* from, size_t n, float scale, float* to) {
      std::copy_n(from, n, to + at * n);
      kernels::Sigmoid(n, scale, to + at * n);
    };
    strengths(erase, width.erase, strength_, pieces.erase);
    strengths(write, width.write, 1, pieces.write);
  }

  float TimeStep(const MixerCall& call, size_t row, size_t h) const {
    return Softplus(*Columns(call, row, h, decay_at_) + decay_bias_[call.heads.begin + h]);
  }

  void Decay(const MixerCall& call, size_t row, float* decay) const {
    const size_t begin = call.heads.begin, count = call.count();
    switch (form_.decay) {
      case GatedDecay::kNone:
      case GatedDecay::kChannel:  // runs in mixer_hgrn.cc
        return;
      case GatedDecay::kConstant:
        std::copy_n(decays_.begin() + begin, count, decay);
        return;
      case GatedDecay::kHead:
        for (size_t h = 0; h < count; ++h) {
          decay[h] = decays_[begin + h] * TimeStep(call, row, h);
        }
        return;
      case GatedDecay::kKey:
        kernels::LogSigmoid(count * dim_, 1 / kLowRankDecayDivisor, decay);
        for (size_t i = 0; floor_ < 0 && i < count * dim_; ++i) {
          decay[i] = std::max(decay[i], floor_);
        }
        return;
      case GatedDecay::kKeyRate:
        for (size_t h = 0; h < count; ++h, decay += dim_) {
          const float rate = decays_[begin + h];  // negative
          const float* bias = decay_bias_.data() + (begin + h) * dim_;
          for (size_t d = 0; d < dim_; ++d) decay[d] += bias[d];
          if (floor_ == 0) {
            kernels::Softplus(dim_, rate, decay);
          } else {
            for (size_t d = 0; d < dim_; ++d) decay[d] *= -rate;
            kernels::Sigmoid(dim_, floor_, decay);
          }
        }
        return;
    }
  }

  void Rotate(size_t position, size_t count, float* q, float* k) const {
    const size_t pairs = dim_ / 2;
    for (size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * frequencies_[i];
      const auto sine = static_cast<float>(std::sin(angle)),
                 cosine = static_cast<float>(std::cos(angle));
      for (size_t h = 0; h < count; ++h) {
        for (float* x : {q + h * dim_, k + h * dim_}) {
          const float a = x[i], b = x[i + pairs];
          x[i] = a * cosine - b * sine, x[i + pairs] = b * cosine + a * sine;
        }
      }
    }
  }

  // The scan's inputs: every `apart`-th row of the pieces, from row `first` on.
  kernels::ScanTensors<const float> Inputs(size_t first, size_t apart, size_t count,
                                           const Pieces& pieces) const {
    const auto rows = [&](const float* from, size_t width) {
      return Rows(from + first * count * width, 0, apart * count * width, width);
    };
    return {.q = rows(pieces.q, dim_),
            .k = rows(pieces.k, dim_),
            .v = rows(pieces.v, value_dim_),
            .decay = rows(pieces.decay, decay_width_),
            .erase = rows(pieces.erase, widths().erase),
            .write = rows(pieces.write, widths().write)};
  }

  // Reads one position of every sequence. Each delta step overwrites the previous one's output.
  void Step(const MixerCall& call, const Pieces& pieces) const {
    for (size_t i = 0; i < times_; ++i) {
      kernels::ScanStep(Shape(call.block.sequences, 1, call.count()), options_,
                        {.in = Inputs(i, times_, call.count(), pieces),
                         .out = Out(call, 0),
                         .s = call.state + call.block.FirstPlace() * call.block.state_stride +
                              call.heads.begin * dim_ * value_dim_,
                         .s_stride = static_cast<ptrdiff_t>(call.block.state_stride),
                         .sequences = call.block.chosen,
                         .scratch = pieces.kernel});
    }
  }

  // Reads the rows of one sequence, starting from its state or from zeros.
  void Scan(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t size = dim_ * value_dim_, row = call.block.Row(sequence), count = call.count();
    const size_t length = call.block.Length(sequence);
    float* s = pieces.s;
    if (call.state != nullptr) {
      s = call.StateOf(sequence) + call.heads.begin * size;
    } else {
      std::fill_n(s, count * size, 0.0f);
    }
    const bool several = times_ > 1;
    kernels::ScanForward(
        Shape(1, length * times_, count), options_,
        {.in = Inputs(row * times_, 1, count, pieces),
         .out = several ? kernels::RowMajor(pieces.out, 1, count, value_dim_) : Out(call, row),
         .s = s},
        {pieces.kernel, 1}, SerialFor);
    for (size_t t = 0; several && t < length; ++t) {  // keep the outputs of the last delta steps
      std::copy_n(pieces.out + (t * times_ + times_ - 1) * count * value_dim_, count * value_dim_,
                  call.out + (row + t) * count * value_dim_);
    }
  }

  // Applies the norm and the gate to a row's outputs.
  void Finish(const MixerCall& call, size_t row, const Pieces& pieces) const {
    if (form_.timed) return FinishTimed(call, row, pieces);
    const size_t count = call.count();
    kernels::GatedRmsNormArgs args{.x = call.out + row * count * value_dim_,
                                   .weight = norm_.data()};
    kernels::GateFunction function = kernels::GateFunction::kSilu;
    if (form_.gate == OutputGate::kSilu) {
      args.gate = Columns(call, row, 0, gate_at_), args.gate_stride = width_;
    } else if (form_.gate == OutputGate::kSigmoid) {
      function = kernels::GateFunction::kSigmoid;
      args.gate = pieces.gate + row * count * value_dim_, args.gate_stride = value_dim_;
    }
    // A head is a row of one head, since the gates of heads may be apart.
    kernels::GatedRmsNorm(
        {.rows = count, .heads = 1, .width = value_dim_, .eps = norm_eps(), .function = function},
        args, call.out + row * count * value_dim_, SerialFor);
  }

  void FinishTimed(const MixerCall& call, size_t row, const Pieces& pieces) const {
    const size_t count = call.count(), width = norm_heads() * value_dim_;
    float* outs = call.out + row * count * value_dim_;
    for (size_t h = 0; h < count; ++h) {
      const float* x = pieces.x + (row * count + h) * value_dim_;
      const float* gate = Columns(call, row, h, gate_at_);
      float* out = outs + h * value_dim_;
      const float skip = skip_[call.heads.begin + h];
      for (size_t m = 0; m < value_dim_; ++m) out[m] += skip * x[m];
      kernels::GateBySilu(value_dim_, gate, out);
    }
    if (call.squares != nullptr) {
      call.squares[row] = SquaresOf(outs, count * value_dim_);
    } else {
      for (size_t at = 0; at < count * value_dim_; at += width) {
        Divide(outs + at, width, SquaresOf(outs + at, width));
      }
    }
    const float* norm = norm_.data() + call.heads.begin * value_dim_;
    for (size_t i = 0; i < count * value_dim_; ++i) outs[i] *= norm[i];
  }

  static float SquaresOf(const float* x, size_t count) {
    float sum = 0;
    for (size_t i = 0; i < count; ++i) sum += x[i] * x[i];
    return sum;
  }
  // Divides x by its root mean square; `squares` is the sum of its squares.
  void Divide(float* x, size_t count, float squares) const {
    const float factor = 1 / std::sqrt(squares / static_cast<float>(count) + norm_eps());
    for (size_t i = 0; i < count; ++i) x[i] *= factor;
  }

  const GatedForm form_;
  const size_t times_;            // delta steps per position
  const size_t channels_;         // columns of a head's queries, keys and values
  const float strength_, floor_;  // factor of the erase strengths; MixerSpec::decay_floor
  ShortConvolution convolution_;
  std::vector<Part> parts_;
  std::vector<ShortConvolution::Part> columns_;  // the columns of each part
  size_t width_ = 0;                             // number of columns of a head
  // Offsets of projections, within a head's columns or within the shared columns.
  size_t erase_at_ = 0, write_at_ = 0, decay_at_ = 0, gate_at_ = 0;
  size_t decay_width_ = 0;  // decays per row and head
  // The norm's weight; D, if timed; log decays (kConstant) or -exp(A_log), of each head; dt_bias.
  AlignedBuffer<float> norm_, skip_, decays_, decay_bias_;
  SecondFactor decay_factor_, gate_factor_;
  std::vector<double> frequencies_;  // of the rotation
  kernels::ScanOptions options_;
};

RuntimeMixerRow Row(const char* name) {
  return {name, [](const MixerMake& make) -> std::unique_ptr<RuntimeMixer> {
            return std::make_unique<GatedMixer>(make);
          }};
}

}  // namespace

RuntimeMixerRow RuntimeDeltaNet() { return Row("delta-net"); }
RuntimeMixerRow RuntimeGatedDeltaNet() { return Row("gated-delta-net"); }
RuntimeMixerRow RuntimeGatedDeltaProduct() { return Row("gated-delta-product"); }
RuntimeMixerRow RuntimeGdn2() { return Row("gdn2"); }
RuntimeMixerRow RuntimeGla() { return Row("gla"); }
RuntimeMixerRow RuntimeKda() { return Row("kda"); }
RuntimeMixerRow RuntimeRetention() { return Row("retention"); }
RuntimeMixerRow RuntimeSsd() { return Row("ssd"); }

}  // namespace linnet
