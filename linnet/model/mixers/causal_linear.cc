#include "linnet/model/mixer.h"

namespace linnet {

std::string BeyondFeatureMap(const MixerSpec& spec) {
  if (spec.feature_map == "elu") return "";
  return StrCat("feature map ", spec.feature_map, " in linnet's own form");
}

MixerInfo CausalLinearInfo() {
  return {.name = "causal-linear",
          .description = "linear attention over the past; runs as an RNN (eqs. 8-15)",
          .causal = true,
          .always_causal = true,
          .recurrent = true,
          .constant_state = true,
          .maps = true,
          .cross = "linear",
          .describe = DescribeFeatureMap,
          .beyond = BeyondFeatureMap};
}

}  // namespace linnet
