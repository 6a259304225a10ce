#include "linnet/model/mixer.h"

namespace linnet {
namespace {

GatedForm Form(const MixerSpec& spec) {
  return {.decay = GatedDecay::kHead,
          .delta = true,
          .gate = spec.output_gate ? OutputGate::kSilu : OutputGate::kNone,
          .convolution = spec.short_convolution};
}

}  // namespace

MixerInfo GatedDeltaNetInfo() {
  return {
      .name = "gated-delta-net",
      .description = "delta rule with a decay per head (gated DeltaNet)",
      .causal = true,
      .always_causal = true,
      .recurrent = true,
      .constant_state = true,
      .options = {"short_convolution", "output_gate", "negative_eigenvalues", "output_norm_eps"},
      .beyond = BeyondGated,
      .gated = Form,
      .out = "o_proj",
      .out_bias = false};
}

}  // namespace linnet
