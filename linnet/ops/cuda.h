// The forms over kernels/cuda, in a build with LINNET_CUDA (private to linnet/ops; plain.h selects
// the form). Arguments as in fused.h, on a GPU; they have been checked.
#ifndef LINNET_OPS_CUDA_H_
#define LINNET_OPS_CUDA_H_

#include <torch/types.h>

#include <utility>
#include <vector>

#include "linnet/ops/causal_linear.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::ops {

// Whether the kernels have these dimensions.
bool CudaCausalLinearTakes(int64_t dim, int64_t value_dim);

// offsets: on the GPU. A carried state is fp32, as q, k and v must then be.
torch::Tensor CudaCausalLinear(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const torch::Tensor& lengths,
                               const torch::Tensor& offsets,
                               const kernels::CausalLinearOptions& options,
                               CausalLinearState* state);

// Rows of fp32 [rows, width], dense and aligned to 16 bytes: whether the kernels take x and `others`.
bool CudaAddNormTakes(const torch::Tensor& x, const std::vector<torch::Tensor>& others);

// x += bias + residual in place. Returns its norm, and the rows' means and scales for the backward;
// both undefined without a norm.
std::pair<torch::Tensor, torch::Tensor> CudaAddNorm(const torch::Tensor& x,
                                                    const torch::Tensor& bias,
                                                    const torch::Tensor& residual,
                                                    const Norm& norm);

struct CudaAddNormGradients {
  torch::Tensor x, narrow;  // the gradient of the sum, in fp32 and in bf16
  torch::Tensor sums;       // [3, width]: gradients of the norm's weight and bias, and of `bias`
};
CudaAddNormGradients CudaAddNormBackward(const torch::Tensor& grad, const torch::Tensor& x,
                                         const torch::Tensor& stats, const torch::Tensor& weight);

// Sums over the rows of x [rows, width] (fp32 or bf16), in fp32.
bool CudaColumnSumsTakes(const torch::Tensor& x);
torch::Tensor CudaColumnSums(const torch::Tensor& x);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CUDA_H_
