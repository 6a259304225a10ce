#include "linnet/model/mixer.h"

namespace linnet {
MixerInfo CausalLinearInfo() {
  return {.name = "causal-linear",
          .description = "linear attention over the past; runs as an RNN (eqs. 8-15)",
          .causal = true,
          .always_causal = true,
          .recurrent = true,
          .constant_state = true,
          .maps = true,
          .cross = "linear",
          .describe = DescribeFeatureMap};
}

}  // namespace linnet
