#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm GatedDeltaNetForm(const MixerSpec& spec) {
  return {.decay = GatedDecay::kHead,
          .write = GatedWrite::kDelta,
          .gate = spec.output_gate ? OutputGate::kSilu : OutputGate::kNone,
          .convolution = spec.short_convolution,
          .readers = KeyReaders(spec)};
}

}  // namespace

MixerInfo GatedDeltaNetInfo() {
  return GatedInfo("gated-delta-net", "delta rule with a decay per head (gated DeltaNet)",
                   {"short_convolution", "output_gate", "negative_eigenvalues", "output_norm_eps"},
                   GatedDeltaNetForm);
}

}  // namespace linnet
