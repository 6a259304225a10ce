// y = x W^T + b, with the matrix products in the precision that training asks for.
//
//   y = Linear(x, layer->weight, layer->bias, Precision::kBf16);
//   qkv = Linears(x, {wq, wk, wv}, {bq, bk, bv}, Precision::kBf16);      // three of one x
//
// In bf16 the weights stay fp32 masters: inputs, weights and incoming gradients are rounded for the
// products, which sum in fp32 and give fp32 (kernels/matmul.h), forwards and backwards. Where the
// processor has bf16 products (AVX512-BF16, AMX), they take a fifth of the time of fp32 ones.
#ifndef LINNET_OPS_LINEAR_H_
#define LINNET_OPS_LINEAR_H_

#include <torch/types.h>

#include <string>
#include <vector>

namespace linnet::ops {

enum class Precision { kFp32, kBf16 };

// "fp32" or "bf16". Throws InputError, also where this processor has no bf16 products at all.
Precision PrecisionNamed(const std::string& name);

// x [..., in], fp32 or (with kBf16) bf16; weight [out, in] and bias [out], fp32 -> [..., out] in
// `result`: fp32, or bf16 where only products in bf16 follow.
torch::Tensor Linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     Precision precision, torch::Dtype result = torch::kFloat32);

// Several of one x, each as Linear() gives it, in fp32; x is rounded once, and its gradient is one
// product.
std::vector<torch::Tensor> Linears(const torch::Tensor& x,
                                   const std::vector<torch::Tensor>& weights,
                                   const std::vector<torch::Tensor>& biases, Precision precision);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LINEAR_H_
