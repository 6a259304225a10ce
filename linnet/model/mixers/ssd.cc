#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm SsdForm(const MixerSpec& spec) {
  return {.decay = GatedDecay::kHead,
          .gate = OutputGate::kSilu,
          .convolution = spec.short_convolution,
          .norm = "norm",
          .readers = KeyReaders(spec),
          .timed = true};
}

}  // namespace

MixerInfo SsdInfo() {
  return GatedInfo("ssd", "state space with a decay and a time step per head (Mamba-2)",
                   {"short_convolution", "key_heads", "output_norm_eps"}, SsdForm);
}

}  // namespace linnet
