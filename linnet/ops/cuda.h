// GPU forms of operations, over the kernels of kernels/cuda, in a build with LINNET_CUDA (private
// to linnet/ops; plain.h selects the form). Arguments are on a GPU and have been checked.
#ifndef LINNET_OPS_CUDA_H_
#define LINNET_OPS_CUDA_H_

#include <torch/types.h>

#include <utility>
#include <vector>

#include "linnet/ops/causal_linear.h"
#include "linnet/ops/layer_rows.h"
#include "linnet/ops/scan.h"

namespace linnet::ops {

// Whether the kernels support queries of `dim` and values of `value_dim` elements per head.
bool CudaCausalLinearTakes(int64_t dim, int64_t value_dim);

// Like FusedCausalLinear() (fused.h), but `offsets` is on the GPU. If `state` is not null, the
// state and q, k and v must be fp32.
torch::Tensor CudaCausalLinear(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const torch::Tensor& lengths,
                               const torch::Tensor& offsets,
                               const kernels::CausalLinearOptions& options,
                               CausalLinearState* state);

// Whether the kernels of CudaScan() support these inputs and options.
bool CudaScanTakes(const ScanInputs& in, const kernels::ScanOptions& options);

// Like FusedScan() and FusedChannelScan() (fused.h): fp32; `lengths` is on the GPU.
torch::Tensor CudaScan(const ScanInputs& in, const kernels::ScanOptions& options,
                       const torch::Tensor& lengths, torch::Tensor* state);
torch::Tensor CudaChannelScan(const torch::Tensor& x, const torch::Tensor& g,
                              const torch::Tensor& lengths, torch::Tensor* state);

// Whether CudaAddNorm() accepts x [rows, width] and `others`: bias, residual, and the norm's weight
// and bias. All must be fp32 on a GPU, dense and aligned to 16 bytes. width must be a multiple of
// 4, at most kMaxTrainingWidth. Undefined tensors in `others` are ignored.
bool CudaAddNormTakes(const torch::Tensor& x, const std::vector<torch::Tensor>& others);

// Adds bias and residual to x in place. Returns norm(x) and, for the backward, each row's mean and
// scale, [rows, 2]. Both results are undefined without a norm.
std::pair<torch::Tensor, torch::Tensor> CudaAddNorm(const torch::Tensor& x,
                                                    const torch::Tensor& bias,
                                                    const torch::Tensor& residual,
                                                    const Norm& norm);

struct CudaAddNormGradients {
  torch::Tensor x, narrow;  // gradient of x + bias + residual: in fp32, and rounded to bf16
  torch::Tensor sums;       // [3, width]: gradients of the norm's weight and bias, and of `bias`
};
// The backward of CudaAddNorm() with a norm. x: the sum that CudaAddNorm() wrote to its x. stats:
// the rows' means and scales. weight: the norm's.
CudaAddNormGradients CudaAddNormBackward(const torch::Tensor& grad, const torch::Tensor& x,
                                         const torch::Tensor& stats, const torch::Tensor& weight);

// Whether CudaColumnSums() accepts x: in fp32 or bf16, aligned to 16 bytes, with dense rows. Width
// and row stride must be multiples of 4.
bool CudaColumnSumsTakes(const torch::Tensor& x);
// The sums over the rows of x [rows, width] (fp32 or bf16): [width], in fp32.
torch::Tensor CudaColumnSums(const torch::Tensor& x);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CUDA_H_
