// The feature map phi of linear attention, as a libtorch operation.
#ifndef LINNET_NN_FEATURE_MAP_H_
#define LINNET_NN_FEATURE_MAP_H_

#include <torch/types.h>

namespace linnet::nn {

// phi(x) = elu(x) + 1 (eq. 7), elementwise.
inline torch::Tensor EluFeatureMap(const torch::Tensor& x) { return torch::elu(x) + 1; }

}  // namespace linnet::nn

#endif  // LINNET_NN_FEATURE_MAP_H_
