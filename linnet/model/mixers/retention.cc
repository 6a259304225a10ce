#include "linnet/model/mixer.h"

namespace linnet {
namespace {

GatedForm Form(const MixerSpec&) {
  return {.decay = GatedDecay::kConstant,
          .gate = OutputGate::kSilu,
          .rotary = true,
          .norm = "g_norm_swish_gate"};
}

}  // namespace

MixerInfo RetentionInfo() {
  return {
      .name = "retention",
      .description = "linear attention with a constant decay per head, rotary positions (RetNet)",
      .causal = true,
      .always_causal = true,
      .recurrent = true,
      .constant_state = true,
      .options = {"output_norm_eps"},
      .beyond = BeyondGated,
      .gated = Form,
      .out = "o_proj",
      .out_bias = false};
}

}  // namespace linnet
