// A custom attention kind. This file alone defines and registers it.
#include <torch/torch.h>

#include <cmath>

#include "linnet/nn/mixer.h"

namespace {

using torch::Tensor;

// Attention whose weights decay with the distance: for j <= i, weight(i, j) is proportional to
// 2^-(i - j). In recurrent form the state is a sum that is halved at every position.
class Fading : public linnet::nn::MixerImpl {
 public:
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v,
                 const linnet::nn::Mask& mask) override {
    linnet::nn::CheckAttention("fading", q, k, v, mask, /*quadratic=*/false);
    const Tensor t = torch::arange(q.size(1), v.options());
    const Tensor weights = torch::pow(2, t.unsqueeze(0) - t.unsqueeze(1)).tril();
    return torch::matmul(weights / weights.sum(1, true), v.transpose(1, 2)).transpose(1, 2);
  }

  bool recurrent() const override { return true; }
  Tensor Step(const Tensor&, const Tensor&, const Tensor& v,
              linnet::nn::MixerState& state) override {
    const Tensor sum = state.empty() ? v : state.tensors[0] / 2 + v;
    const double weight = 2 - std::pow(2.0, -state.length);  // 1 + 1/2 + ... + 2^-length
    state.tensors = {sum};
    ++state.length;
    return sum / weight;
  }
};

const bool registered = [] {
  linnet::nn::RegisterMixer(
      {.name = "fading", .description = "weights that halve with the distance", .causal = true},
      [](const linnet::MixerSpec&) -> linnet::nn::Mixer { return std::make_shared<Fading>(); });
  return true;
}();

}  // namespace
