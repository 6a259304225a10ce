#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm DeltaNetForm(const MixerSpec& spec) {
  return {.write = GatedWrite::kDelta,
          .gate = spec.output_gate ? OutputGate::kSilu : OutputGate::kNone,
          .convolution = spec.short_convolution};
}

}  // namespace

MixerInfo DeltaNetInfo() {
  return GatedInfo("delta-net", "delta rule: a key's value replaces its earlier one (DeltaNet)",
                   {"short_convolution", "output_gate", "negative_eigenvalues", "output_norm_eps"},
                   DeltaNetForm);
}

}  // namespace linnet
