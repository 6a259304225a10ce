// Orthogonalization of a matrix, for the optimizer Muon (nn/optimizer.h).
#ifndef LINNET_OPS_ORTHOGONALIZE_H_
#define LINNET_OPS_ORTHOGONALIZE_H_

#include <torch/types.h>

#include "linnet/ops/layer_rows.h"

namespace linnet::ops {

// The result is scale * matrix; a caller that adds it to another matrix saves a pass.
struct Orthogonal {
  torch::Tensor matrix;
  double scale = 1;
};

// For x [m, n] in fp32 with the singular value decomposition U S V^T: a matrix with the same
// singular vectors, whose singular values are all about 1, so about U V^T. Let s be the sum of the
// 8th powers of S to the power of 1/8, which is at least the largest singular value. Values of s /
// 100 or more become 0.73 to 1.27 in fp32 and 0.66 to 1.4 in bf16, which also mixes vectors a
// little. Smaller ones grow by a factor of at most 80 / s. The result does not depend on the scale
// of x, and is zero if x is zero or, in bf16, has no element above 1e-30. Overwrites x,
// which is dense.
//
// With k = min(m, n), costs 9 products of two [k, k] matrices and 2 of a [k, k] with a
// [k, max(m, n)] matrix in fp32. In bf16 it is 3 and 6 products, which are faster ones unless the
// build is plain-only. For where bf16 works, see layer_rows.h.
Orthogonal Orthogonalize(const torch::Tensor& x, Precision precision = Precision::kFp32);

// An update of a matrix by Muon.
struct MuonOptions {
  double momentum = 0.95;  // decay of the average of gradients
  double gradient_scale = 1;
  double decay = 1;  // of the parameter
  double step = 0;
  Precision precision = Precision::kFp32;
};

// average = momentum average + g and parameter = decay parameter - step O, with g = gradient_scale
// gradient and O = Orthogonalize(g + momentum average). Overwrites the gradient.
void MuonUpdate(const torch::Tensor& parameter, const torch::Tensor& gradient,
                const torch::Tensor& average, const MuonOptions& options);

}  // namespace linnet::ops

#endif  // LINNET_OPS_ORTHOGONALIZE_H_
