// Gated recurrences (model/gated.h): steps and prefixes over kernels/scan.h, from a state in fp32.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/parallel.h"
#include "linnet/kernels/scan.h"
#include "linnet/runtime/mixer.h"

namespace linnet {
namespace {

using kernels::ScanDecay;
using kernels::ScanWrite;

constexpr size_t kAlign = kCacheLine / sizeof(float);

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float Silu(float x) { return x * Sigmoid(x); }
float Softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }

// x W^T + b of a product of low rank, for some of its outputs.
class SecondFactor {
 public:
  // weight [out, rank], or empty if only sizes are needed; bias empty: none.
  SecondFactor() = default;
  SecondFactor(std::span<const float> weight, std::span<const float> bias, size_t out)
      : out_(out), rank_(weight.size() / out), weight_(weight.size()), bias_(out) {
    for (size_t i = 0; i < weight.size(); ++i) weight_[i % rank_ * out + i / rank_] = weight[i];
    std::fill(bias_.begin(), bias_.end(), 0.0f);
    std::copy(bias.begin(), bias.end(), bias_.begin());
  }

  void Apply(const float* x, size_t begin, size_t end, float* y) const {
    std::copy(bias_.begin() + begin, bias_.begin() + end, y);
    for (size_t r = 0; r < rank_; ++r) {
      const float* weight = weight_.data() + r * out_;
      for (size_t o = begin; o < end; ++o) y[o - begin] += x[r] * weight[o];
    }
  }

 private:
  size_t out_ = 0, rank_ = 0;
  AlignedBuffer<float> weight_, bias_;  // weight_ [rank, out]
};

class GatedMixer : public RuntimeMixer {
 public:
  explicit GatedMixer(const MixerMake& make)
      : RuntimeMixer(make.spec),
        form_(FindMixer(make.spec.kind).gated(make.spec)),
        taps_(static_cast<size_t>(form_.convolution)),
        channels_(2 * dim_ + value_dim_),
        norm_eps_(make.spec.output_norm_eps),
        strength_(make.spec.negative_eigenvalues ? 2.0f : 1.0f),
        floor_(make.spec.decay_floor) {
    size_t column = 0, shared = 0;
    for (const Projection& p : projections()) {
      size_t& at = p.shared ? shared : column;
      if (p.tensor == "b_proj") {
        erase_at_ = at;
      } else if (p.tensor == "w_proj") {
        write_at_ = at;
      } else if (p.tensor.starts_with("g_proj")) {
        gate_at_ = at;
      } else if (at >= channels_ || p.shared) {
        decay_at_ = at;
      }
      at += p.width;
    }
    width_ = column;
    const auto tensor = [&](const std::string& name) { return Copied(make.tensor(name)); };
    if (taps_ > 0) TakeConvolution(make);
    norm_ = tensor(std::string(form_.norm) + ".weight");
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
      decay_factor_ = SecondFactor(
          make.tensor(name + ".weight"),
          form_.decay == GatedDecay::kKey ? make.tensor(name + ".bias") : std::span<const float>(),
          heads_ * dim_);
    }
    if (form_.gate == OutputGate::kSigmoid) {
      gate_factor_ = SecondFactor(make.tensor("g_proj.1.weight"), make.tensor("g_proj.1.bias"),
                                  heads_ * value_dim_);
    }
    decay_width_ = by_key ? dim_ : form_.decay == GatedDecay::kNone ? 0 : 1;
    options_ = {.decay = by_key                             ? ScanDecay::kKey
                         : form_.decay == GatedDecay::kNone ? ScanDecay::kNone
                                                            : ScanDecay::kHead,
                .write = form_.write == GatedWrite::kAdd     ? ScanWrite::kAdd
                         : form_.write == GatedWrite::kDelta ? ScanWrite::kDelta
                                                             : ScanWrite::kTwoSided,
                .scale = 1 / std::sqrt(static_cast<float>(dim_))};
  }

  // The scan's states [heads, K, V], then of each head the inputs of its convolutions at the last
  // taps - 1 positions, oldest first.
  MixerStateSize state_size() const override {
    return {.fixed = RoundUp(heads_ * (dim_ * value_dim_ + Past()), kAlign)};
  }

  size_t ScratchFloats(size_t rows, size_t heads, size_t) const override {
    const kernels::ScanShape shape = Shape(1, rows, heads);
    return Cut(nullptr, rows, heads).used +
           std::max(kernels::ScanForwardScratch(shape, options_), kernels::ScanStepScratch(shape));
  }

  void Run(const MixerCall& call) const override {
    const Pieces pieces = Cut(call.scratch, call.block.rows(), call.count());
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
  struct Pieces {
    float *q, *k, *v;  // [rows, heads, K or V]
    float *decay, *erase, *write;
    float* line;  // second factors of a row's gate
    float* s;     // a state for sequences that keep none
    float* kernel;
    size_t used;
  };

  Pieces Cut(float* scratch, size_t rows, size_t heads) const {
    size_t used = 0;
    const auto take = [&](size_t floats) {
      float* piece = scratch == nullptr ? nullptr : scratch + used;
      used += RoundUp(floats, kAlign);
      return piece;
    };
    Pieces pieces{};
    pieces.q = take(rows * heads * dim_), pieces.k = take(rows * heads * dim_);
    pieces.v = take(rows * heads * value_dim_);
    pieces.decay = take(rows * heads * decay_width_),
    pieces.erase = take(rows * heads * widths().erase);
    pieces.write = take(rows * heads * widths().write);
    pieces.line = take(heads * value_dim_);
    pieces.s = take(heads * dim_ * value_dim_);
    pieces.kernel = scratch == nullptr ? nullptr : scratch + used;
    pieces.used = used;
    return pieces;
  }

  kernels::ScanShape Shape(size_t batch, size_t length, size_t heads) const {
    return {.batch = batch, .length = length, .heads = heads, .dim = dim_, .value_dim = value_dim_};
  }
  kernels::ScanWidths widths() const { return {options_, dim_, value_dim_}; }
  // Floats of a head's past inputs.
  size_t Past() const { return taps_ > 0 ? (taps_ - 1) * channels_ : 0; }

  static AlignedBuffer<float> Copied(std::span<const float> from) {
    AlignedBuffer<float> copy(from.size());
    std::copy(from.begin(), from.end(), copy.begin());
    return copy;
  }

  // The weights of each head as [taps, channels]: queries, keys, values.
  void TakeConvolution(const MixerMake& make) {
    taps_of_ = AlignedBuffer<float>(heads_ * taps_ * channels_);
    size_t channel = 0;
    for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      const std::span<const float> weight = make.tensor(name);
      const bool values = channel == 2 * dim_;
      const size_t own = values ? value_dim_ : dim_;
      const size_t readers = values ? 1 : static_cast<size_t>(form_.readers);
      for (size_t i = 0; i < weight.size(); ++i) {
        const size_t c = i / taps_;
        for (size_t h = c / own * readers; h < (c / own + 1) * readers; ++h) {
          taps_of_[(h * taps_ + i % taps_) * channels_ + channel + c % own] = weight[i];
        }
      }
      channel += own;
    }
  }

  // Columns of head h of the group, from `at` on; or the shared ones.
  const float* Columns(const MixerCall& call, size_t row, size_t h, size_t at) const {
    return call.in + row * call.in_width + h * width_ + at;
  }
  const float* Shared(const MixerCall& call, size_t row, size_t at) const {
    return Columns(call, row, call.count(), at);
  }

  // Queries, keys and values of a sequence's rows, after the convolutions; updates its past inputs.
  void Convolve(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t first = call.block.Row(sequence), length = call.block.Length(sequence);
    for (size_t h = 0; h < call.count(); ++h) {
      float* past = call.state == nullptr ? nullptr
                                          : call.StateOf(sequence) + heads_ * dim_ * value_dim_ +
                                                (call.heads.begin + h) * Past();
      // The inputs at row t of the sequence; null: zeros.
      const auto input = [&](ptrdiff_t t) -> const float* {
        if (t >= 0) return call.in + (first + static_cast<size_t>(t)) * call.in_width + h * width_;
        if (past == nullptr) return nullptr;
        return past + static_cast<size_t>(t + static_cast<ptrdiff_t>(taps_) - 1) * channels_;
      };
      for (size_t t = 0; t < length; ++t) {
        const size_t at = (first + t) * call.count() + h;
        float* to[] = {pieces.q + at * dim_, pieces.k + at * dim_, pieces.v + at * value_dim_};
        size_t channel = 0;
        for (size_t i = 0; i < 3; ++i) {
          const size_t count = i < 2 ? dim_ : value_dim_;
          if (taps_ == 0) {
            std::copy_n(input(static_cast<ptrdiff_t>(t)) + channel, count, to[i]);
          } else {
            std::fill_n(to[i], count, 0.0f);
          }
          for (size_t w = 0; w < taps_; ++w) {
            const float* x =
                input(static_cast<ptrdiff_t>(t + w + 1) - static_cast<ptrdiff_t>(taps_));
            if (x == nullptr) continue;
            const float* weight =
                taps_of_.data() + ((call.heads.begin + h) * taps_ + w) * channels_ + channel;
            for (size_t c = 0; c < count; ++c) to[i][c] += weight[c] * x[channel + c];
          }
          if (taps_ > 0) {
            for (size_t c = 0; c < count; ++c) to[i][c] = Silu(to[i][c]);
          }
          channel += count;
        }
      }
      // From the oldest on: row t + 1 of the past is read only after row t has been written.
      for (size_t w = 0; past != nullptr && w + 1 < taps_; ++w) {
        const float* x =
            input(static_cast<ptrdiff_t>(length + w + 1) - static_cast<ptrdiff_t>(taps_));
        std::copy_n(x, channels_, past + w * channels_);
      }
    }
  }

  // Rotations, norms, decays and strengths of a sequence's rows.
  void Prepare(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t first = call.block.Row(sequence), count = call.count();
    for (size_t row = first; row < first + call.block.Length(sequence); ++row) {
      if (form_.rotary) {
        const size_t position = call.block.Position(sequence) + call.block.ahead + row - first;
        Rotate(position, count, pieces.q + row * count * dim_, pieces.k + row * count * dim_);
      }
      for (size_t h = 0; h < count; ++h) {
        const size_t at = row * count + h;
        if (!form_.delta()) continue;
        Normalize(pieces.q + at * dim_), Normalize(pieces.k + at * dim_);
        const float *erase = Columns(call, row, h, erase_at_),
                    *write = Columns(call, row, h, write_at_);
        const kernels::ScanWidths width = widths();
        for (size_t d = 0; d < width.erase; ++d) {
          pieces.erase[at * width.erase + d] = strength_ * Sigmoid(erase[d]);
        }
        for (size_t m = 0; m < width.write; ++m) {
          pieces.write[at * width.write + m] = Sigmoid(write[m]);
        }
      }
      Decay(call, row, pieces.decay + row * count * decay_width_);
    }
  }

  void Decay(const MixerCall& call, size_t row, float* decay) const {
    const size_t begin = call.heads.begin, count = call.count();
    switch (form_.decay) {
      case GatedDecay::kNone:
        return;
      case GatedDecay::kConstant:
        std::copy_n(decays_.begin() + begin, count, decay);
        return;
      case GatedDecay::kHead:
        for (size_t h = 0; h < count; ++h) {
          decay[h] = decays_[begin + h] *
                     Softplus(*Columns(call, row, h, decay_at_) + decay_bias_[begin + h]);
        }
        return;
      case GatedDecay::kKey:
        decay_factor_.Apply(Shared(call, row, decay_at_), begin * dim_, call.heads.end * dim_,
                            decay);
        for (size_t i = 0; i < count * dim_; ++i) {
          decay[i] = -Softplus(-decay[i]) / kLowRankDecayDivisor;
          if (floor_ < 0) decay[i] = std::max(decay[i], floor_);
        }
        return;
      case GatedDecay::kKeyRate:
        decay_factor_.Apply(Shared(call, row, decay_at_), begin * dim_, call.heads.end * dim_,
                            decay);
        for (size_t i = 0; i < count * dim_; ++i) {
          const float rate = decays_[begin + i / dim_];  // negative
          const float x = decay[i] + decay_bias_[begin * dim_ + i];
          decay[i] = floor_ < 0 ? floor_ * Sigmoid(-rate * x) : rate * Softplus(x);
        }
        return;
    }
  }

  void Normalize(float* x) const {
    float sum = 0;
    for (size_t d = 0; d < dim_; ++d) sum += x[d] * x[d];
    const float factor = 1 / std::sqrt(sum + kGatedNormEps);
    for (size_t d = 0; d < dim_; ++d) x[d] *= factor;
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

  kernels::ScanTensors<const float> Inputs(size_t row, size_t count, const Pieces& pieces) const {
    const auto rows = [&](const float* from, size_t width) {
      return Rows(from, row, count * width, width);
    };
    return {.q = rows(pieces.q, dim_),
            .k = rows(pieces.k, dim_),
            .v = rows(pieces.v, value_dim_),
            .decay = rows(pieces.decay, decay_width_),
            .erase = rows(pieces.erase, widths().erase),
            .write = rows(pieces.write, widths().write)};
  }

  // One position of every sequence.
  void Step(const MixerCall& call, const Pieces& pieces) const {
    kernels::ScanStep(Shape(call.block.sequences, 1, call.count()), options_,
                      {.in = Inputs(0, call.count(), pieces),
                       .out = Out(call, 0),
                       .s = call.state + call.block.FirstPlace() * call.block.state_stride +
                            call.heads.begin * dim_ * value_dim_,
                       .s_stride = static_cast<ptrdiff_t>(call.block.state_stride),
                       .sequences = call.block.chosen,
                       .scratch = pieces.kernel});
  }

  // The rows of one sequence, from its state or from zeros.
  void Scan(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t size = dim_ * value_dim_, row = call.block.Row(sequence);
    float* s = pieces.s;
    if (call.state != nullptr) {
      s = call.StateOf(sequence) + call.heads.begin * size;
    } else {
      std::fill_n(s, call.count() * size, 0.0f);
    }
    kernels::ScanForward(Shape(1, call.block.Length(sequence), call.count()), options_,
                         {.in = Inputs(row, call.count(), pieces), .out = Out(call, row), .s = s},
                         {pieces.kernel, 1}, SerialFor);
  }

  // The norm and the gate of a row's outputs.
  void Finish(const MixerCall& call, size_t row, const Pieces& pieces) const {
    const size_t count = call.count();
    if (form_.gate == OutputGate::kSigmoid) {
      gate_factor_.Apply(Shared(call, row, gate_at_), call.heads.begin * value_dim_,
                         call.heads.end * value_dim_, pieces.line);
    }
    for (size_t h = 0; h < count; ++h) {
      float* out = call.out + (row * count + h) * value_dim_;
      float sum = 0;
      for (size_t m = 0; m < value_dim_; ++m) sum += out[m] * out[m];
      const float factor = 1 / std::sqrt(sum / static_cast<float>(value_dim_) + norm_eps_);
      for (size_t m = 0; m < value_dim_; ++m) out[m] *= factor * norm_[m];
      if (form_.gate == OutputGate::kSilu) {
        const float* gate = Columns(call, row, h, gate_at_);
        for (size_t m = 0; m < value_dim_; ++m) out[m] *= Silu(gate[m]);
      } else if (form_.gate == OutputGate::kSigmoid) {
        for (size_t m = 0; m < value_dim_; ++m) out[m] *= Sigmoid(pieces.line[h * value_dim_ + m]);
      }
    }
  }

  const GatedForm form_;
  const size_t taps_, channels_;  // of the convolutions; channels_ per head
  const float norm_eps_, strength_, floor_;
  size_t width_ = 0;  // of a head's columns
  // Places within a head's columns, or within the shared ones.
  size_t erase_at_ = 0, write_at_ = 0, decay_at_ = 0, gate_at_ = 0;
  size_t decay_width_ = 0;
  AlignedBuffer<float> taps_of_;  // [heads, taps, channels]
  AlignedBuffer<float> norm_, decays_, decay_bias_;
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
RuntimeMixerRow RuntimeGdn2() { return Row("gdn2"); }
RuntimeMixerRow RuntimeGla() { return Row("gla"); }
RuntimeMixerRow RuntimeKda() { return Row("kda"); }
RuntimeMixerRow RuntimeRetention() { return Row("retention"); }

}  // namespace linnet
