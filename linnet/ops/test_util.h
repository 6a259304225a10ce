// For tests: random tensors, and comparisons of the forms of an operation.
#ifndef LINNET_OPS_TEST_UTIL_H_
#define LINNET_OPS_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "linnet/error.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::ops {

using Tensors = std::vector<torch::Tensor>;

// The operation under test: a function of differentiable inputs.
using Operation = std::function<Tensors(const Tensors&)>;

// Whether this processor has bf16 products.
inline bool HasBf16() {
  try {
    return PrecisionNamed("bf16") == Precision::kBf16;
  } catch (const Error&) {
    return false;
  }
}

// Copies of x in `dtype` that require gradients.
inline Tensors Leaves(const Tensors& x, torch::Dtype dtype) {
  Tensors leaves;
  for (const torch::Tensor& t : x) leaves.push_back(t.detach().to(dtype).clone().requires_grad_());
  return leaves;
}

// Standard normal numbers in double, in the shapes of x.
inline Tensors RandomLike(const Tensors& x) {
  Tensors random;
  for (const torch::Tensor& t : x) random.push_back(torch::randn(t.sizes(), torch::kDouble));
  return random;
}

// The sum of all elements of all outputs, each multiplied by its weight.
inline torch::Tensor Loss(const Tensors& outputs, const Tensors& weights) {
  torch::Tensor loss = torch::zeros({}, outputs[0].options());
  for (size_t i = 0; i < outputs.size(); ++i) {
    loss = loss + (outputs[i] * weights[i].to(outputs[i].dtype())).sum();
  }
  return loss;
}

// The largest difference relative to the largest magnitude of `want`.
inline double RelativeOff(const torch::Tensor& got, const torch::Tensor& want) {
  const double size = want.abs().max().item<double>();
  return (got.to(torch::kDouble) - want).abs().max().item<double>() / (size > 0 ? size : 1);
}

// Compares outputs and gradients of the fused form (fp32) with those of the plain form (double).
inline void ExpectFusedEqualsPlain(const Operation& operation, const Tensors& x, double tolerance) {
  const Tensors fused = Leaves(x, torch::kFloat32), plain = Leaves(x, torch::kDouble);
  const Tensors got = operation(fused), want = operation(plain);
  ASSERT_EQ(got.size(), want.size());
  const Tensors weights = RandomLike(want);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), torch::kFloat32);
    EXPECT_LT(RelativeOff(got[i], want[i]), tolerance) << "output " << i;
  }
  const auto got_grads = torch::autograd::grad({Loss(got, weights)}, fused);
  const auto want_grads = torch::autograd::grad({Loss(want, weights)}, plain);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(got_grads[i].sizes(), fused[i].sizes());
    EXPECT_LT(RelativeOff(got_grads[i], want_grads[i]), tolerance) << "gradient " << i;
  }
  // The result is the same without gradients.
  torch::NoGradGuard no_grad;
  const Tensors again = operation(fused);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(again[i], got[i]));
}

// Compares the plain form's gradients with central differences, all in double.
inline void ExpectGradientsMatchDifferences(const Operation& operation, const Tensors& x) {
  const Tensors leaves = Leaves(x, torch::kDouble);
  const Tensors out = operation(leaves);
  const Tensors weights = RandomLike(out);
  const auto grads = torch::autograd::grad({Loss(out, weights)}, leaves);
  torch::NoGradGuard no_grad;
  for (size_t n = 0; n < leaves.size(); ++n) {
    double* at = leaves[n].data_ptr<double>();
    for (int64_t i = 0; i < leaves[n].numel(); ++i) {
      const double value = at[i], h = 1e-6;
      at[i] = value + h;
      const double up = Loss(operation(leaves), weights).item<double>();
      at[i] = value - h;
      const double down = Loss(operation(leaves), weights).item<double>();
      at[i] = value;
      const double grad = grads[n].contiguous().data_ptr<double>()[i];
      EXPECT_NEAR(grad, (up - down) / (2 * h), 1e-6 * (1 + std::abs(grad))) << n << ", " << i;
    }
  }
}

// Runs both comparisons above; finite differences only if `small`.
inline void Check(const Operation& operation, const Tensors& x, bool small) {
  ExpectFusedEqualsPlain(operation, x, 1e-5);
  if (small) ExpectGradientsMatchDifferences(operation, x);
}

inline torch::Tensor Random(at::IntArrayRef shape) { return torch::randn(shape); }
// A random weight [out, in]. Its product with an input has about the magnitude of that input.
inline torch::Tensor Weight(int64_t out, int64_t in) {
  return torch::randn({out, in}) / std::sqrt(static_cast<double>(in));
}

}  // namespace linnet::ops

#endif  // LINNET_OPS_TEST_UTIL_H_
