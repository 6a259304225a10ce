// The forms of operations over kernels/cuda, in a build with LINNET_CUDA (private to linnet/ops;
// plain.h selects the form). Arguments as in fused.h, on a GPU; they have been checked.
#ifndef LINNET_OPS_CUDA_H_
#define LINNET_OPS_CUDA_H_

#include <torch/types.h>

#include <utility>
#include <vector>

#include "linnet/ops/causal_linear.h"
#include "linnet/ops/layer_rows.h"

namespace linnet::ops {

// Whether the kernels support queries of `dim` and values of `value_dim` elements per head.
bool CudaCausalLinearTakes(int64_t dim, int64_t value_dim);

// offsets: on the GPU. With a carried state, the state and q, k and v are fp32.
torch::Tensor CudaCausalLinear(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const torch::Tensor& lengths,
                               const torch::Tensor& offsets,
                               const kernels::CausalLinearOptions& options,
                               CausalLinearState* state);

// Whether CudaAddNorm() takes x [rows, width] and `others`: all fp32, dense, aligned to 16 bytes;
// width a multiple of 4 up to kMaxTrainingWidth. Undefined tensors in `others` are ignored.
bool CudaAddNormTakes(const torch::Tensor& x, const std::vector<torch::Tensor>& others);

// x += bias + residual in place. Returns norm(x) and, for the backward, the mean and scale of each
// row [rows, 2]; both are undefined without a norm.
std::pair<torch::Tensor, torch::Tensor> CudaAddNorm(const torch::Tensor& x,
                                                    const torch::Tensor& bias,
                                                    const torch::Tensor& residual,
                                                    const Norm& norm);

struct CudaAddNormGradients {
  torch::Tensor x, narrow;  // the gradient of x + bias + residual, in fp32 and in bf16
  torch::Tensor sums;       // [3, width]: gradients of the norm's weight and bias, and of `bias`
};
CudaAddNormGradients CudaAddNormBackward(const torch::Tensor& grad, const torch::Tensor& x,
                                         const torch::Tensor& stats, const torch::Tensor& weight);

// CudaColumnSums(): the sums over the rows of x [rows, width] (fp32 or bf16), in fp32. Only for x
// that CudaColumnSumsTakes().
bool CudaColumnSumsTakes(const torch::Tensor& x);
torch::Tensor CudaColumnSums(const torch::Tensor& x);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CUDA_H_
