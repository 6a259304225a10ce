#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm RetentionForm(const MixerSpec& spec) {
  return {.decay = GatedDecay::kConstant,
          .gate = OutputGate::kSilu,
          .rotary = true,
          .norm = "g_norm_swish_gate",
          .readers = KeyReaders(spec),
          .shared_values = true};
}

}  // namespace

MixerInfo RetentionInfo() {
  return GatedInfo("retention",
                   "linear attention with a constant decay per head, rotary positions (RetNet)",
                   {"output_norm_eps"}, RetentionForm);
}

}  // namespace linnet
