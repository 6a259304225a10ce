#include "linnet/model/mixers/gated_info.h"

namespace linnet {
namespace {

GatedForm KdaForm(const MixerSpec& spec) {
  return {.decay = GatedDecay::kKeyRate,
          .write = GatedWrite::kDelta,
          .gate = OutputGate::kSigmoid,
          .convolution = spec.short_convolution,
          .readers = KeyReaders(spec)};
}

}  // namespace

MixerInfo KdaInfo() {
  return GatedInfo("kda", "delta rule with a decay per key channel (Kimi Delta Attention)",
                   {"short_convolution", "negative_eigenvalues", "output_norm_eps"}, KdaForm);
}

}  // namespace linnet
