// Gated recurrences with a state of one number per channel (GatedDecay::kChannel of model/gated.h),
// over the channel scan of kernels/scan.h.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/parallel.h"
#include "linnet/kernels/gates.h"
#include "linnet/kernels/scan.h"
#include "linnet/runtime/gate_functions.h"
#include "linnet/runtime/mixer.h"
#include "linnet/runtime/short_convolution.h"

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
        channels_(heads_ * value_dim_),
        convolution_(heads_, static_cast<size_t>(form_.convolution), 2 * value_dim_,
                     /*bias=*/false) {
    const std::span<const float> norm = make.tensor(std::string(form_.norm) + ".weight");
    norm_ = AlignedBuffer<float>(norm.size());
    std::copy(norm.begin(), norm.end(), norm_.begin());
    if (form_.bounded) {
      const std::span<const float> bound = make.tensor("lower_bound");
      bound_ = AlignedBuffer<float>(bound.size());
      std::copy(bound.begin(), bound.end(), bound_.begin());
    }
    const size_t taps = convolution_.taps();
    for (size_t i = 0; i < 2 && taps > 0; ++i) {
      const std::span<const float> weight =
          make.tensor(i == 0 ? "i_conv1d.weight" : "f_conv1d.weight");
      for (size_t at = 0; at < weight.size(); ++at) {
        const size_t channel = at / taps;
        convolution_.weight(channel / value_dim_, at % taps,
                            i * value_dim_ + channel % value_dim_) = weight[at];
      }
    }
  }

  // The scan's states, one number per channel of all heads; then for each head the inputs of its
  // convolutions at the last taps - 1 positions, oldest first.
  MixerStateSize state_size() const override {
    return {.fixed = RoundUp(channels_ + heads_ * convolution_.PastFloats(), kAlign)};
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
    float* h;      // [heads, V], the scan's state if the call keeps none
    size_t used;   // floats of all pieces
  };

  Pieces Cut(float* scratch, size_t rows, size_t heads) const {
    const size_t width = heads * value_dim_, all = RoundUp(rows * width, kAlign);
    return {scratch, scratch == nullptr ? nullptr : scratch + all,
            scratch == nullptr ? nullptr : scratch + 2 * all, 2 * all + RoundUp(width, kAlign)};
  }

  // Computes the scan's inputs at a sequence's rows and updates the convolutions' past inputs.
  void Convolve(const MixerCall& call, size_t sequence, const Pieces& pieces) const {
    const size_t first = call.block.Row(sequence), length = call.block.Length(sequence);
    // A head's columns: i, f and the output gate.
    const ShortConvolution::Part parts[] = {{0, value_dim_}, {value_dim_, value_dim_}};
    for (size_t h = 0; h < call.count(); ++h) {
      const size_t head = call.heads.begin + h;
      float* past = call.state == nullptr
                        ? nullptr
                        : call.StateOf(sequence) + channels_ + head * convolution_.PastFloats();
      const auto to = [&](size_t part, size_t t) {
        return (part == 0 ? pieces.x : pieces.g) + ((first + t) * call.count() + h) * value_dim_;
      };
      const float* in = call.in + first * call.in_width + h * 3 * value_dim_;
      convolution_.Run(head, {in, call.in_width, length, past}, parts, to);
      for (size_t t = 0; t < length; ++t) Gate(head, to(0, t), to(1, t));
    }
  }

  // Replaces i (in x) and f (in g) by the scan's input and the logarithm of its decay. 1 - e^g is
  // computed as a product of sigmoids, since a difference would lose digits.
  void Gate(size_t head, float* x, float* g) const {
    kernels::Silu(value_dim_, x);
    for (size_t m = 0; m < value_dim_; ++m) {
      float rest = Sigmoid(-g[m]);  // 1 - e^g, where g is the new g[m]
      g[m] = LogSigmoid(g[m]);
      if (form_.bounded) {
        const float bound = bound_[head * value_dim_ + m];
        g[m] = LogAddExp(LogSigmoid(bound), LogSigmoid(-bound) + g[m]);
        rest *= Sigmoid(-bound);
      }
      x[m] *= rest;
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

  // Applies the norm and the gate to a row's outputs.
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
      float* own = out + h * value_dim_;
      for (size_t m = 0; m < value_dim_; ++m) own[m] *= factor * norm[m];
      kernels::GateBySilu(value_dim_, gate, own);
    }
  }

  const GatedForm form_;
  const size_t channels_;              // number of channels of all heads
  ShortConvolution convolution_;       // of each head's i and f
  AlignedBuffer<float> norm_, bound_;  // [heads, V]
};

}  // namespace

RuntimeMixerRow RuntimeHgrn() {
  return {"hgrn", [](const MixerMake& make) -> std::unique_ptr<RuntimeMixer> {
            return std::make_unique<ChannelMixer>(make);
          }};
}

}  // namespace linnet
