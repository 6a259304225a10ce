#include "linnet/model/mixer.h"

namespace linnet {
namespace {

GatedForm Form(const MixerSpec& spec) {
  return {.decay = GatedDecay::kKeyRate,
          .delta = true,
          .gate = OutputGate::kSigmoid,
          .convolution = spec.short_convolution};
}

}  // namespace

MixerInfo KdaInfo() {
  return {.name = "kda",
          .description = "delta rule with a decay per key channel (Kimi Delta Attention)",
          .causal = true,
          .always_causal = true,
          .recurrent = true,
          .constant_state = true,
          .options = {"short_convolution", "negative_eigenvalues", "output_norm_eps"},
          .beyond = BeyondGated,
          .gated = Form,
          .out = "o_proj",
          .out_bias = false};
}

}  // namespace linnet
