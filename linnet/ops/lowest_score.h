// The score that attention gives to masked keys.
#ifndef LINNET_OPS_LOWEST_SCORE_H_
#define LINNET_OPS_LOWEST_SCORE_H_

#include <torch/types.h>

#include <limits>

namespace linnet::ops {

// The lowest finite number of `type`; for double, the lowest finite fp32 number. Not -infinity,
// because the softmax of a row without any visible key would then be NaN.
inline double LowestScore(torch::ScalarType type) {
  if (type == torch::kHalf) return std::numeric_limits<c10::Half>::lowest();
  if (type == torch::kBFloat16) return std::numeric_limits<c10::BFloat16>::lowest();
  return std::numeric_limits<float>::lowest();
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_LOWEST_SCORE_H_
