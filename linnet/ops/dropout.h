// Dropout as a differentiable libtorch operation over kernels/dropout.h.
//
//   y = Dropout(x, 0.1);
#ifndef LINNET_OPS_DROPOUT_H_
#define LINNET_OPS_DROPOUT_H_

#include <torch/types.h>

namespace linnet::ops {

// Sets each element of x (any shape) to 0 with probability p, and otherwise divides it by 1 - p;
// 0 <= p <= 1. In fp32 on the CPU, with p < 1 and fewer than 2^32 elements, runs the fused kernel,
// which draws one seed from libtorch's default generator, stores no mask and has first derivatives
// only. Otherwise runs libtorch's dropout.
torch::Tensor Dropout(const torch::Tensor& x, double p);

}  // namespace linnet::ops

#endif  // LINNET_OPS_DROPOUT_H_
