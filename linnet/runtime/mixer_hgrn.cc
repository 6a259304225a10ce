// Gated recurrences with a state of one number per channel (GatedDecay::kChannel of model/gated.h),
// over the channel scan of kernels/scan.h.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/parallel.h"
#include "linnet/kernels/scan.h"
#include "linnet/runtime/gate_functions.h"
#include "linnet/runtime/mixer.h"

namespace linnet {
namespace {

float LogAddExp(float a, float b) {
  return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

class ChannelMixer : public RuntimeMixer {
 public:
  explicit ChannelMixer(const MixerMake& make)
      : RuntimeMixer(make.spec),
        form_(FindMixer(make.spec.kind).gated(make.spec)),
        taps_(static_cast<size_t>(form_.convolution)),
        channels_(heads_ * value_dim_) {
    const std::span<const float> norm = make.tensor(std::string(form_.norm) + ".weight");
    norm_ = AlignedBuffer<float>(norm.size());
    std::copy(norm.begin(), norm.end(), norm_.begin());
    if (form_.bounded) {
      const std::span<const float> bound = make.tensor("lower_bound");
      bound_ = AlignedBuffer<float>(bound.size());
      std::copy(bound.begin(), bound.end(), bound_.begin());
    }
    if (taps_ == 0) return;
    taps_of_ = AlignedBuffer<float>(taps_ * 2 * channels_);
    for (size_t i = 0; i < 2; ++i) {
      const std::span<const float> weight =
          make.tensor(i == 0 ? "i_conv1d.weight" : "f_conv1d.weight");
      for (size_t at = 0; at < weight.size(); ++at) {
        const size_t channel = at / taps_, head = channel / value_dim_;
        taps_of_[(head * taps_ + at % taps_) * 2 * value_dim_ + i * value_dim_ +
                 channel % value_dim_] = weight[at];
      }
    }
  }

  // The channels of all heads, then of each head the inputs of its convolutions at the last
  // taps - 1 positions, oldest first.
  MixerStateSize state_size() const override {
    return {.fixed = RoundUp(channels_ + heads_ * Past(), kAlign)};
  }

  size_t norm_heads() const override { return heads_; }

  size_t ScratchFloats(size_t rows, size_t heads, size_t) const override {
    return Cut(nullptr, rows, heads).used;
  }

  void Run(const MixerCall& call) const override {
    const Pieces pieces = Cut(call.scratch, call.block.rows(), call.count());
    for (size_t i = 0; i < call.block.sequences; ++i) {
      Convolve(call, i, pieces);
      Scan(call, i, pieces);
    }
    for (size_t row = 0; row < call.block.rows(); ++row) Finish(call, row);
  }

 private:
  struct Pieces {
    float *x, *g;  // the scan's inputs, [rows, heads, V]
    float* h;      // a state for sequences that keep none
    size_t used;
  };

  Pieces Cut(float* scratch, size_t rows, size_t heads) const {
    const size_t width = heads * value_dim_, all = RoundUp(rows * width, kAlign);
    return {scratch, scratch == nullptr ? nullptr : scratch + all,
            scratch == nullptr ? nullptr : scratch + 2 * all, 2 * all + RoundUp(width, kAlign)};
  }

  // Floats of a head's past inputs.
  size_t Past() const { return taps_ > 0 ? (taps_ - 1) * 2 * value_dim_ : 0; }

  // The scan's inputs at a sequence's rows; updates the past inputs of the convolutions.
  void Convolve(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t first = call.block.Row(sequence), length = call.block.Length(sequence);
    const size_t both = 2 * value_dim_;  // a head's columns of i and f
    for (size_t h = 0; h < call.count(); ++h) {
      const size_t head = call.heads.begin + h;
      float* past =
          call.state == nullptr ? nullptr : call.StateOf(sequence) + channels_ + head * Past();
      // The columns at row t of the sequence; null: zeros.
      const auto input = [&](ptrdiff_t t) -> const float* {
        if (t >= 0) {
          return call.in + (first + static_cast<size_t>(t)) * call.in_width + h * 3 * value_dim_;
        }
        if (past == nullptr) return nullptr;
        return past + static_cast<size_t>(t + static_cast<ptrdiff_t>(taps_) - 1) * both;
      };
      for (size_t t = 0; t < length; ++t) {
        const size_t at = ((first + t) * call.count() + h) * value_dim_;
        float *x = pieces.x + at, *g = pieces.g + at;
        const float* in = input(static_cast<ptrdiff_t>(t));
        std::copy_n(in, value_dim_, x);
        std::copy_n(in + value_dim_, value_dim_, g);
        if (taps_ > 0) {
          std::fill_n(x, value_dim_, 0.0f);
          std::fill_n(g, value_dim_, 0.0f);
        }
        for (size_t w = 0; w < taps_; ++w) {
          in = input(static_cast<ptrdiff_t>(t + w + 1) - static_cast<ptrdiff_t>(taps_));
          if (in == nullptr) continue;
          const float* weight = taps_of_.data() + (head * taps_ + w) * both;
          for (size_t m = 0; m < value_dim_; ++m) {
            x[m] += weight[m] * in[m];
            g[m] += weight[value_dim_ + m] * in[value_dim_ + m];
          }
        }
        Gate(head, x, g);
      }
      // From the oldest on: row t + 1 of the past is read only after row t has been written.
      for (size_t w = 0; past != nullptr && w + 1 < taps_; ++w) {
        std::copy_n(input(static_cast<ptrdiff_t>(length + w + 1) - static_cast<ptrdiff_t>(taps_)),
                    both, past + w * both);
      }
    }
  }

  // From i and f to the scan's input and the logarithm of its decay. 1 - e^g is computed without a
  // difference.
  void Gate(size_t head, float* x, float* g) const {
    for (size_t m = 0; m < value_dim_; ++m) {
      float rest = Sigmoid(-g[m]);
      g[m] = LogSigmoid(g[m]);
      if (form_.bounded) {
        const float bound = bound_[head * value_dim_ + m];
        g[m] = LogAddExp(LogSigmoid(bound), LogSigmoid(-bound) + g[m]);
        rest *= Sigmoid(-bound);
      }
      x[m] = Silu(x[m]) * rest;
    }
  }

  void Scan(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t width = call.count() * value_dim_, at = call.block.Row(sequence) * width;
    const auto time = static_cast<ptrdiff_t>(width);
    float* h = pieces.h;
    if (call.state != nullptr) {
      h = call.StateOf(sequence) + call.heads.begin * value_dim_;
    } else {
      std::fill_n(h, width, 0.0f);
    }
    kernels::ChannelScanForward({1, call.block.Length(sequence), width},
                                {.x = {pieces.x + at, 0, time, 0},
                                 .g = {pieces.g + at, 0, time, 0},
                                 .out = {call.out + at, 0, time, 0},
                                 .h = h},
                                SerialFor);
  }

  // The norm and the gate of a row's outputs.
  void Finish(const MixerCall& call, size_t row) const {
    const size_t count = call.count(), width = count * value_dim_;
    float* out = call.out + row * width;
    float squares = 0;
    for (size_t i = 0; i < width; ++i) squares += out[i] * out[i];
    float factor = 1;
    if (call.squares != nullptr) {
      call.squares[row] = squares;
    } else {
      factor = 1 / std::sqrt(squares / static_cast<float>(width) + norm_eps());
    }
    for (size_t h = 0; h < count; ++h) {
      const float* gate = call.in + row * call.in_width + (3 * h + 2) * value_dim_;
      const float* norm = norm_.data() + (call.heads.begin + h) * value_dim_;
      for (size_t m = 0; m < value_dim_; ++m) {
        out[h * value_dim_ + m] *= factor * norm[m] * Silu(gate[m]);
      }
    }
  }

  const GatedForm form_;
  const size_t taps_;                  // of the convolutions
  const size_t channels_;              // of all heads
  AlignedBuffer<float> taps_of_;       // [heads, taps, 2, V]: those of i, then those of f
  AlignedBuffer<float> norm_, bound_;  // [heads, V]
};

}  // namespace

RuntimeMixerRow RuntimeHgrn() {
  return {"hgrn", [](const MixerMake& make) -> std::unique_ptr<RuntimeMixer> {
            return std::make_unique<ChannelMixer>(make);
          }};
}

}  // namespace linnet
