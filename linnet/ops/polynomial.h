// The features of the polynomial kernel of degree two as a differentiable libtorch operation over
// kernels/polynomial.h, which has their formula. In fp32 on the CPU it runs the fused kernel (first
// derivatives only), elsewhere libtorch's operations.
#ifndef LINNET_OPS_POLYNOMIAL_H_
#define LINNET_OPS_POLYNOMIAL_H_

#include <torch/types.h>

namespace linnet::ops {

// x [..., D] -> [..., F], F = 1 + D + D (D + 1) / 2. Throws InputError if x has no axis or D is 0.
torch::Tensor Polynomial2(const torch::Tensor& x);

}  // namespace linnet::ops

#endif  // LINNET_OPS_POLYNOMIAL_H_
