#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm GlaForm(const MixerSpec& spec) {
  return {.decay = GatedDecay::kKey,
          .gate = OutputGate::kSilu,
          .norm = "g_norm_swish_gate",
          .readers = KeyReaders(spec),
          .shared_values = true};
}

}  // namespace

MixerInfo GlaInfo() {
  return GatedInfo("gla", "linear attention with a decay per key channel (gated linear attention)",
                   {"gate_rank", "output_norm_eps"}, GlaForm);
}

}  // namespace linnet
