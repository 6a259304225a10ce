// Orthogonalization of a matrix, for the optimizer Muon (nn/optimizer.h).
#ifndef LINNET_OPS_ORTHOGONALIZE_H_
#define LINNET_OPS_ORTHOGONALIZE_H_

#include <torch/types.h>

namespace linnet::ops {

// The result is scale * matrix; a caller that adds it to another matrix saves a pass.
struct Orthogonal {
  torch::Tensor matrix;
  double scale = 1;
};

// For x [m, n] in fp32 with the singular value decomposition U S V^T: a matrix with the same
// singular vectors, whose singular values are all about 1, so about U V^T. Let s be the sum of the
// 8th powers of S to the power of 1/8, which is at least the largest singular value. Values of s /
// 100 or more become 0.73 to 1.27. Smaller ones grow by a factor of at most 80 / s. The result does
// not depend on the scale of x, and is zero if x is zero. Costs 9 products of two [k, k] matrices
// and 2 of a [k, k] with a [k, max(m, n)] matrix, k = min(m, n). Overwrites x.
Orthogonal Orthogonalize(const torch::Tensor& x);

}  // namespace linnet::ops

#endif  // LINNET_OPS_ORTHOGONALIZE_H_
