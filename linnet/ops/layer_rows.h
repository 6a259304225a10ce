// A transformer layer but for its attention, as differentiable libtorch operations over
// kernels/layer_rows.h:
//
//   qkv = Linears(x, {wq, wk, wv}, {bq, bk, bv}, precision);       // three products of one x
//   y = Project(attended, wo, bo, x, norm1, precision);            // norm1(x + attended wo^T + bo)
//   y = FeedForward(y, w1, b1, w2, b2, {.norm_after = norm2, .precision = precision});
//
// In bf16 the weights stay fp32 masters: what goes into a product is rounded, its sums and what
// comes out are fp32 (but for the hidden layer of FeedForward, which is stored as bf16), forwards
// and backwards. Norms, biases, residuals and gradients of parameters are fp32. Where the processor
// has bf16 products (AVX512-BF16, AMX), they take a fifth of the time of fp32 ones.
#ifndef LINNET_OPS_LAYER_ROWS_H_
#define LINNET_OPS_LAYER_ROWS_H_

#include <torch/types.h>

#include <string>
#include <vector>

#include "linnet/kernels/activation.h"

namespace linnet::ops {

enum class Precision { kFp32, kBf16 };

// "fp32" or "bf16". Throws InputError, also where the device is the CPU and has no bf16 products.
Precision PrecisionNamed(const std::string& name, torch::Device device = torch::kCPU);

// A layer norm's parameters, or none.
struct Norm {
  torch::Tensor weight = {}, bias = {};
  double eps = 1e-5;

  bool defined() const { return weight.defined(); }
};

// y_i = n(x) W_i^T + b_i for up to three products of one x [..., in], n being the norm or nothing;
// weights [out_i, in].
std::vector<torch::Tensor> Linears(const torch::Tensor& x,
                                   const std::vector<torch::Tensor>& weights,
                                   const std::vector<torch::Tensor>& biases, Precision precision,
                                   const Norm& norm_before = {});
torch::Tensor Linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     Precision precision, const Norm& norm_before = {});

// n(residual + a W^T + b): a [..., in], residual [..., out].
torch::Tensor Project(const torch::Tensor& a, const torch::Tensor& weight,
                      const torch::Tensor& bias, const torch::Tensor& residual,
                      const Norm& norm_after, Precision precision);

// n2(x + act(n1(x) W1^T + b1) W2^T + b2), the norms n1 (norm_before) and n2 (norm_after) being there
// or not: x [..., dim], W1 [hidden, dim], W2 [dim, hidden].
struct FeedForwardOptions {
  kernels::Activation activation = kernels::Activation::kRelu;
  Norm norm_before = {}, norm_after = {};
  Precision precision = Precision::kFp32;
};
torch::Tensor FeedForward(const torch::Tensor& x, const torch::Tensor& weight1,
                          const torch::Tensor& bias1, const torch::Tensor& weight2,
                          const torch::Tensor& bias2, const FeedForwardOptions& options);

// act(x), by libtorch.
torch::Tensor Activate(kernels::Activation activation, const torch::Tensor& x);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LAYER_ROWS_H_
