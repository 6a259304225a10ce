// Dropout as a differentiable libtorch operation over kernels/dropout.h.
//
//   y = Dropout(x, 0.1);
#ifndef LINNET_OPS_DROPOUT_H_
#define LINNET_OPS_DROPOUT_H_

#include <torch/types.h>

namespace linnet::ops {

// Each number of x, of any shape, is 0 with probability p, and otherwise divided by 1 - p; 0 <= p <= 1.
// The fused form draws one number from libtorch's default generator and keeps no mask; the plain form is
// libtorch's own. In its fused form it can be differentiated once.
torch::Tensor Dropout(const torch::Tensor& x, double p);

}  // namespace linnet::ops

#endif  // LINNET_OPS_DROPOUT_H_
