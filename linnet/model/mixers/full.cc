#include "linnet/model/mixer.h"

namespace linnet {
MixerInfo FullInfo() {
  return {.name = "full",
          .description = "softmax attention (eq. 2); runs over a cache of keys and values",
          .causal = true,
          .recurrent = true,
          .scales = true,
          .cross = "full"};
}

}  // namespace linnet
