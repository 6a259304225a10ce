#include "linnet/model/mixer.h"

namespace linnet {
MixerInfo LinearInfo() {
  return {.name = "linear",
          .description = "linear attention over the whole sequence (eqs. 4-6)",
          .maps = true,
          .cross = "linear",
          .describe = DescribeFeatureMap,
          .beyond = BeyondFeatureMap};
}

}  // namespace linnet
