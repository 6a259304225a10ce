#include "linnet/model/mixer.h"

namespace linnet {
namespace {

GatedForm Form(const MixerSpec&) {
  return {.decay = GatedDecay::kKey, .gate = OutputGate::kSilu, .norm = "g_norm_swish_gate"};
}

}  // namespace

MixerInfo GlaInfo() {
  return {.name = "gla",
          .description = "linear attention with a decay per key channel (gated linear attention)",
          .causal = true,
          .always_causal = true,
          .recurrent = true,
          .constant_state = true,
          .options = {"gate_rank", "output_norm_eps"},
          .beyond = BeyondGated,
          .gated = Form,
          .out = "o_proj",
          .out_bias = false};
}

}  // namespace linnet
