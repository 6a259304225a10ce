// Compares the runtime's gated recurrences, on whole sequences, in pieces and in steps, with layers
// of flash-linear-attention and RWKV-7.
#include "tests/gated_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "linnet/runtime/mixer.h"

namespace linnet {
namespace {

using Floats = std::vector<float>;

class GatedLayers : public testing::TestWithParam<std::string> {
 protected:
  GatedLayers()
      : layer_(GetParam()),
        d_(static_cast<size_t>(layer_.width)),
        x_(layer_.file.Get("hidden_states").f32()),
        length_(static_cast<size_t>(layer_.file.Get("hidden_states").shape[1])) {
    mixer_ = MakeRuntimeMixer({.spec = layer_.spec, .tensor = [&](const std::string& name) {
                                 return layer_.Get(name).f32();
                               }});
    state_.resize(mixer_->state_size().fixed);
  }

  // The index of the tested sequence's first row in hidden_states.
  size_t Before() const { return sequence_ * length_; }

  // The projections of `count` positions from `begin` on, in the layout of MixerCall::in.
  Floats Columns(size_t begin, size_t count) const {
    Floats in;
    // Appends p.width columns of projection p, from column `first` on, at position t.
    const auto add = [&](size_t t, const Projection& p, const std::string& shift, size_t first) {
      const size_t row = (Before() + t) * d_;
      if (p.carried) {
        const auto from = layer_.file.Get(p.tensor).f32().subspan(row + first, p.width);
        in.insert(in.end(), from.begin(), from.end());
        return;
      }
      const auto weight = layer_.Get(p.tensor + ".weight").f32();
      // The weights of the token shift; empty if there is none.
      const auto share = shift.empty() ? std::span<const float>() : layer_.Get(shift).f32();
      for (size_t o = first; o < first + p.width; ++o) {
        double sum = 0;
        for (size_t i = 0; i < d_; ++i) {
          double x = x_[row + i];
          if (!share.empty()) x += ((t > 0 ? x_[row - d_ + i] : 0) - x) * share[i];
          sum += x * weight[o * d_ + i];
        }
        in.push_back(static_cast<float>(sum));
      }
    };
    // Appends the columns that head h does not share with other heads, at position t.
    const auto head = [&](size_t t, const MixerInput& input, size_t h) {
      for (const size_t i : input.projections) {
        const Projection& p = mixer_->projections()[i];
        if (!p.shared) add(t, p, input.shift, h / p.readers * p.width);
      }
    };
    for (size_t t = begin; t < begin + count; ++t) {
      for (const MixerInput& input : mixer_->inputs()) {
        for (size_t h = 0; h < mixer_->heads(); ++h) head(t, input, h);
        for (const size_t i : input.projections) {
          const Projection& p = mixer_->projections()[i];
          if (p.shared) add(t, p, input.shift, 0);
        }
      }
    }
    return in;
  }

  // Runs `count` positions from `begin` on and compares the layer's outputs.
  void Expect(size_t begin, size_t count, bool with_state) {
    const size_t heads = mixer_->heads(), values = heads * mixer_->value_dim();
    const Floats in = Columns(begin, count);
    Floats out(count * values), scratch(mixer_->ScratchFloats(count, heads, count));
    const Block block{.sequences = 1,
                      .length = count,
                      .positions = &begin,
                      .step = with_state && count == 1,
                      .states = state_.data(),
                      .state_stride = state_.size()};
    mixer_->Run({.block = block,
                 .heads = {0, heads},
                 .in = in.data(),
                 .in_width = in.size() / count,
                 .out = out.data(),
                 .state = with_state ? state_.data() : nullptr,
                 .scratch = scratch.data()});
    const auto weight = layer_.Get(mixer_->out_projection() + ".weight").f32();
    const std::vector<double> want = layer_.Doubles("out");
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::abs(x));
    for (size_t t = 0; t < count; ++t) {
      for (size_t o = 0; o < d_; ++o) {
        double sum = 0;
        for (size_t i = 0; i < values; ++i)
          sum += double{out[t * values + i]} * weight[o * values + i];
        ASSERT_NEAR(sum, want[(Before() + begin + t) * d_ + o], 1e-4 * largest)
            << begin + t << ", " << o;
      }
    }
  }

  GatedLayer layer_;
  const size_t d_;
  const std::span<const float> x_;
  const size_t length_;
  size_t sequence_ = 0;
  std::unique_ptr<RuntimeMixer> mixer_;
  Floats state_;
};

INSTANTIATE_TEST_SUITE_P(Golden, GatedLayers, testing::ValuesIn(GatedLayerNames()));

TEST_P(GatedLayers, WholePiecesAndStepsGiveTheSourcesOutputs) {
  const std::vector<double> states = layer_.FinalState();
  const size_t sequences = x_.size() / d_ / length_, size = states.size() / sequences;
  for (sequence_ = 0; sequence_ < sequences; ++sequence_) {
    SCOPED_TRACE(sequence_);
    Expect(0, length_, /*with_state=*/false);
    for (const std::vector<size_t>& ends :
         {std::vector<size_t>{length_}, {1, 2, 3, 5, length_}, {4, 6, length_}, {2, length_}}) {
      std::fill(state_.begin(), state_.end(), 0.0f);
      size_t begin = 0;
      for (const size_t end : ends) {
        Expect(begin, end - begin, /*with_state=*/true);
        begin = end;
      }
      // The mixer's state begins with the state of the recurrence.
      for (size_t i = 0; i < size; ++i) {
        ASSERT_NEAR(state_[i], states[sequence_ * size + i], 1e-4) << i;
      }
    }
    std::fill(state_.begin(), state_.end(), 0.0f);
    for (size_t t = 0; t < length_; ++t) Expect(t, 1, /*with_state=*/true);
  }
}

}  // namespace
}  // namespace linnet
