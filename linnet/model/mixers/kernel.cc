#include "linnet/model/mixer.h"

namespace linnet {
namespace {

std::string DescribeSimilarity(const MixerSpec& spec) {
  return StrCat(spec.kind, ", similarity ", NameOf(spec.similarity));
}

std::string BeyondSimilarity(const MixerSpec& spec) {
  return StrCat("attention kernel, similarity ", NameOf(spec.similarity));
}

}  // namespace

MixerInfo KernelInfo() {
  return {.name = "kernel",
          .description =
              "attention with a choice of similarity, without a feature map (eq. 3); quadratic",
          .causal = true,
          .recurrent = true,
          .cross = "kernel",
          .describe = DescribeSimilarity,
          .beyond = BeyondSimilarity};
}

}  // namespace linnet
