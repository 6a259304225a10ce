#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm HgrnForm(const MixerSpec& spec) {
  return {.decay = GatedDecay::kChannel,
          .gate = OutputGate::kSilu,
          .convolution = spec.short_convolution,
          .norm = "g_norm",
          .bounded = spec.lower_bound};
}

}  // namespace

MixerInfo HgrnInfo() {
  return GatedInfo("hgrn", "a state of one number per channel, each with its own decay (HGRN)",
                   {"short_convolution", "lower_bound", "output_norm_eps"}, HgrnForm);
}

}  // namespace linnet
