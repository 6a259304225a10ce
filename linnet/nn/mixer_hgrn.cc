// Gated recurrences with a state of one number per channel (GatedDecay::kChannel of model/gated.h),
// over ops::ChannelScan().
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <vector>

#include "linnet/nn/recurrence.h"
#include "linnet/nn/short_convolution.h"
#include "linnet/ops/scan.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

Tensor InitialHgrn(const TensorInfo& info) {
  const Tensor x = torch::empty(info.shape);
  if (info.name == "lower_bound") return x.uniform_(0.01, 0.99).logit_();
  if (info.shape.size() == 1) return x.fill_(1);  // the norm
  const double bound = 1 / std::sqrt(static_cast<double>(info.shape.back()));
  return x.uniform_(-bound, bound);
}

// Sets query_dim to value_dim: the first two inputs have value_dim columns, but RecurrenceImpl
// expects query_dim columns there, as in queries and keys.
MixerSpec WithQueries(MixerSpec spec) {
  spec.query_dim = spec.value_dim;
  return spec;
}

class HgrnMixerImpl : public RecurrenceImpl {
 public:
  explicit HgrnMixerImpl(const MixerSpec& spec)
      : RecurrenceImpl(WithQueries(spec), InitialHgrn), form_(FindMixer(spec.kind).gated(spec)) {}

 private:
  // state.tensors are h [N, H, 1, M] and, with a convolution, the last width - 1 inputs of the
  // convolutions of all heads.
  Tensor Compute(const Parts& in, const Tensor& lengths, MixerState* state) const override {
    const bool begun = state != nullptr && !state->empty();
    const auto type = in[0].scalar_type();
    Tensor both = torch::cat({Wide(in[0]).flatten(2), Wide(in[1]).flatten(2)}, 2), past;
    if (form_.convolution > 0) {
      if (begun) past = state->tensors[1];
      const Tensor weight = torch::cat({Own("i_conv1d.weight"), Own("f_conv1d.weight")});
      both = ShortConvolution(both, weight.flatten(1).t().contiguous(), {}, lengths,
                              state != nullptr ? &past : nullptr);
    }
    const std::vector<Tensor> parts = both.chunk(2, 2);
    // g holds the logarithms of the decays. rest = 1 - e^g is computed without that subtraction,
    // which would lose digits to cancellation.
    Tensor g = torch::log_sigmoid(parts[1]), rest = torch::sigmoid(-parts[1]);
    if (form_.bounded) {
      const Tensor bound = Own("lower_bound");
      g = torch::logaddexp(torch::log_sigmoid(bound), torch::log_sigmoid(-bound) + g);
      rest = rest * torch::sigmoid(-bound);
    }
    const Tensor x = torch::silu(parts[0]) * rest;
    Tensor h = begun ? Wide(state->tensors[0]).flatten(1) : Tensor();
    const Tensor out =
        state != nullptr ? ops::ChannelScan(x, g, lengths, h) : ops::ChannelScan(x, g, lengths);
    if (state != nullptr) {
      state->tensors = {h.view({h.size(0), spec_.heads, 1, spec_.value_dim}).to(type)};
      if (form_.convolution > 0) state->tensors.push_back(past);
      state->length += x.size(1);
    }
    const Tensor root = (out.square().mean({2}, true) + spec_.output_norm_eps).rsqrt();
    return (out * root * Own(std::string(form_.norm) + ".weight"))
        .unflatten(2, {spec_.heads, spec_.value_dim})
        .mul(torch::silu(Wide(in[2])))
        .to(type);
  }

  const GatedForm form_;
};

}  // namespace

MixerKind HgrnMixerKind() {
  return {"hgrn",
          [](const MixerSpec& spec) -> Mixer { return std::make_shared<HgrnMixerImpl>(spec); }};
}

}  // namespace linnet::nn
