// The forms over kernels/cuda, in a build with LINNET_CUDA (private to linnet/ops; plain.h selects
// the form). Arguments as in fused.h, on a GPU; they have been checked.
#ifndef LINNET_OPS_CUDA_H_
#define LINNET_OPS_CUDA_H_

#include <torch/types.h>

#include "linnet/ops/causal_linear.h"

namespace linnet::ops {

// Whether the kernels have these dimensions.
bool CudaCausalLinearTakes(const torch::Tensor& q, const torch::Tensor& v);

// offsets: on the GPU. A carried state is fp32, as q, k and v must then be.
torch::Tensor CudaCausalLinear(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const torch::Tensor& lengths,
                               const torch::Tensor& offsets,
                               const kernels::CausalLinearOptions& options,
                               CausalLinearState* state);

}  // namespace linnet::ops

#endif  // LINNET_OPS_CUDA_H_
