// Projections to queries, keys and values in bf16 ("narrow"), for attention kernels on a GPU that
// read bf16 and accumulate in fp32. Project() (layer_rows.h) takes the bf16 output of such an
// attention.
//
//   if (x.is_cuda() && CausalLinearHasGpuKernels(dim, value_dim)) {
//     qkv = NarrowLinears(x, {wq, wk, wv}, {bq, bk, bv});
//   }
#ifndef LINNET_OPS_NARROW_H_
#define LINNET_OPS_NARROW_H_

#include <torch/types.h>
#include <torch/version.h>

#include <vector>

#include "linnet/ops/layer_rows.h"

namespace linnet::ops {

// Linears() with bf16 products and bf16 results, by libtorch's operations on any device. x is fp32
// or bf16; weights and biases are fp32 and are rounded to bf16.
std::vector<torch::Tensor> NarrowLinears(const torch::Tensor& x,
                                         const std::vector<torch::Tensor>& weights,
                                         const std::vector<torch::Tensor>& biases,
                                         const Norm& norm_before = {});

// Whether causal linear attention has GPU kernels for queries of `dim` and values of `value_dim`
// elements per head.
bool CausalLinearHasGpuKernels(int64_t dim, int64_t value_dim);

// Whether SoftmaxAttention() has GPU kernels. They are libtorch's, and do not support `lengths`,
// `hidden`, `window`, `offset` or shared key heads.
inline constexpr bool kSoftmaxHasGpuKernels = TORCH_VERSION_MAJOR >= 2;

}  // namespace linnet::ops

#endif  // LINNET_OPS_NARROW_H_
