// y = x W^T + b, with the matrix products in the precision that training asks for.
//
//   y = Linear(x, layer->weight, layer->bias, Precision::kBf16);
//
// In bf16 the weights stay fp32 masters: inputs, weights and incoming gradients are rounded for the
// products (which sum in fp32), and the gradients of weights and bias come back in fp32. Where the
// processor has bf16 products (AVX512-BF16, AMX), they take a fifth of the time of fp32 ones.
#ifndef LINNET_OPS_LINEAR_H_
#define LINNET_OPS_LINEAR_H_

#include <torch/types.h>

#include <string>

namespace linnet::ops {

enum class Precision { kFp32, kBf16 };

// "fp32" or "bf16". Throws InputError.
Precision PrecisionNamed(const std::string& name);

// x [..., in], fp32 or (with kBf16) bf16; weight [out, in] and bias [out], fp32 -> [..., out] in
// `result`: fp32, or bf16 where only products in bf16 follow.
torch::Tensor Linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     Precision precision, torch::Dtype result = torch::kFloat32);

}  // namespace linnet::ops

#endif  // LINNET_OPS_LINEAR_H_
