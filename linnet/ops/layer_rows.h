// The row-wise parts of a transformer layer, that is, everything but its attention, as
// differentiable libtorch operations over kernels/layer_rows.h:
//
//   qkv = Linears(x, {wq, wk, wv}, {bq, bk, bv}, precision);       // three products of one x
//   y = Project(attended, wo, bo, x, norm1, precision);            // norm1(x + attended wo^T + bo)
//   y = FeedForward(y, w1, b1, w2, b2, {.norm_after = norm2, .precision = precision});
//
// In bf16 the weights remain fp32 master copies. In forward and backward, the operands of a product
// are rounded to bf16; sums and results are fp32, except that FeedForward() stores its hidden layer
// in bf16. Norms, biases, residuals and parameter gradients are fp32. On processors with
// AVX512-BF16 or AMX, bf16 products take a fifth of the time of fp32 products.
#ifndef LINNET_OPS_LAYER_ROWS_H_
#define LINNET_OPS_LAYER_ROWS_H_

#include <torch/types.h>

#include <string>
#include <vector>

#include "linnet/kernels/activation.h"

namespace linnet::ops {

enum class Precision { kFp32, kBf16 };

// The precision named "fp32" or "bf16". Throws InputError on other names and, unless the build is
// plain-only (plain.h), on bf16 for a CPU without bf16 products.
Precision PrecisionNamed(const std::string& name, torch::Device device = torch::kCPU);

// The parameters of a layer norm or, if `bias` is undefined, of an RMS norm:
// x / sqrt(mean(x^2) + eps) * weight. An undefined weight means no norm. RMS norms are not fused
// with the products.
struct Norm {
  torch::Tensor weight = {}, bias = {};
  double eps = 1e-5;

  bool defined() const { return weight.defined(); }
  bool rms() const { return defined() && !bias.defined(); }
};

// Returns norm(x), or x if the norm is undefined.
torch::Tensor Normalize(const torch::Tensor& x, const Norm& norm);

// Returns y_i = n(x) W_i^T + b_i for one x [..., in] and one to three weights [out_i, in], where n
// is norm_before, or the identity if that is undefined.
std::vector<torch::Tensor> Linears(const torch::Tensor& x,
                                   const std::vector<torch::Tensor>& weights,
                                   const std::vector<torch::Tensor>& biases, Precision precision,
                                   const Norm& norm_before = {});
torch::Tensor Linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     Precision precision, const Norm& norm_before = {});

// Returns n(residual + a W^T + b) for a [..., in] and residual [..., out], where n is norm_after,
// or the identity if that is undefined.
torch::Tensor Project(const torch::Tensor& a, const torch::Tensor& weight,
                      const torch::Tensor& bias, const torch::Tensor& residual,
                      const Norm& norm_after, Precision precision);

struct FeedForwardOptions {
  kernels::Activation activation = kernels::Activation::kRelu;
  Norm norm_before = {}, norm_after = {};
  Precision precision = Precision::kFp32;
};
// Returns n2(x + act(n1(x) W1^T + b1) W2^T + b2), with the optional norms n1 = norm_before and
// n2 = norm_after: x [..., dim], W1 [hidden, dim], W2 [dim, hidden].
torch::Tensor FeedForward(const torch::Tensor& x, const torch::Tensor& weight1,
                          const torch::Tensor& bias1, const torch::Tensor& weight2,
                          const torch::Tensor& bias2, const FeedForwardOptions& options);

// Returns act(x), by libtorch's operations.
torch::Tensor Activate(kernels::Activation activation, const torch::Tensor& x);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LAYER_ROWS_H_
