#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm GatedDeltaProductForm(const MixerSpec& spec) {
  return {.decay = GatedDecay::kHead,
          .write = GatedWrite::kDelta,
          .gate = spec.output_gate ? OutputGate::kSilu : OutputGate::kNone,
          .convolution = spec.short_convolution,
          .readers = KeyReaders(spec),
          .householders = spec.householders};
}

}  // namespace

MixerInfo GatedDeltaProductInfo() {
  return GatedInfo("gated-delta-product",
                   "gated-delta-net with several delta steps per position (Gated DeltaProduct)",
                   {"short_convolution", "output_gate", "negative_eigenvalues", "householders",
                    "output_norm_eps"},
                   GatedDeltaProductForm);
}

}  // namespace linnet
