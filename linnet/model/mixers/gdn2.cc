#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm Gdn2Form(const MixerSpec& spec) {
  return {.decay = GatedDecay::kKeyRate,
          .write = GatedWrite::kTwoSided,
          .gate = OutputGate::kSigmoid,
          .convolution = spec.short_convolution};
}

}  // namespace

MixerInfo Gdn2Info() {
  return GatedInfo("gdn2",
                   "delta rule that erases by key channels and writes by value channels (Gated "
                   "DeltaNet-2)",
                   {"short_convolution", "negative_eigenvalues", "output_norm_eps"}, Gdn2Form);
}

}  // namespace linnet
