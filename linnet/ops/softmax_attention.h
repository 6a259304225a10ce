// Exact softmax attention as a differentiable libtorch operation over kernels/softmax_attention.h.
//
//   torch::Tensor out = ops::SoftmaxAttention(q, k, v, {.causal = true});
//   out.sum().backward();
//
// A piece of a longer sequence, over all keys and values so far:
//
//   out = ops::SoftmaxAttention(q, keys, values, {.causal = true, .offset = before});
#ifndef LINNET_OPS_SOFTMAX_ATTENTION_H_
#define LINNET_OPS_SOFTMAX_ATTENTION_H_

#include <torch/types.h>

#include <optional>

namespace linnet::ops {

struct SoftmaxAttentionOptions {
  bool causal = false;  // query i sees the keys 0 .. i + offset
  int64_t offset = 0;   // keys before the first query; read only if `causal`
  // Undefined, or int64 [N]: keys at positions >= lengths[n] are masked out, whatever they and
  // their values hold.
  torch::Tensor lengths = {};
  // Undefined, or bool, broadcastable to [N, H, L, S]: true hides a key.
  torch::Tensor hidden = {};
  std::optional<double> scale = {};  // factor of q . k; default 1 / sqrt(D)
};

// softmax(scale q k^T) v over the keys that a query sees (eq. 2): q [N, L, H, D], k [N, S, H, D], v
// [N, S, H, M] -> [N, L, H, M], any strides (a last axis that is not dense is copied); D, M >= 1. A
// query that sees no key gives 0 and gets no gradient. In fp32 on the CPU and without `hidden`,
// runs the fused kernel, in memory that does not grow with L x S; elsewhere the plain form, which
// materializes the scores. Differentiable once. Throws InputError on shapes that do not match.
torch::Tensor SoftmaxAttention(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const SoftmaxAttentionOptions& options = {});

}  // namespace linnet::ops

#endif  // LINNET_OPS_SOFTMAX_ATTENTION_H_
