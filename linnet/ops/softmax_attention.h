// Exact softmax attention as a differentiable libtorch operation over kernels/softmax_attention.h.
//
//   torch::Tensor out = ops::SoftmaxAttention(q, k, v, {.causal = true});
//   out.sum().backward();
//
// The queries of one piece of a longer sequence attend to the keys and values of all positions so
// far; `before` is the number of positions before the piece:
//
//   out = ops::SoftmaxAttention(q, keys, values, {.causal = true, .offset = before});
#ifndef LINNET_OPS_SOFTMAX_ATTENTION_H_
#define LINNET_OPS_SOFTMAX_ATTENTION_H_

#include <torch/types.h>

#include <optional>

namespace linnet::ops {

struct SoftmaxAttentionOptions {
  bool causal = false;  // query i attends to the keys 0 .. i + offset
  int64_t offset = 0;   // number of keys before query 0; ignored unless `causal`
  // If not 0, query i attends only to the last `window` of the keys 0 .. i + offset. Ignored unless
  // `causal`.
  int64_t window = 0;
  // Undefined, or int64 [N]: keys at positions >= lengths[n] are masked out, whatever they and
  // their values hold.
  torch::Tensor lengths = {};
  // Undefined, or bool, broadcastable to [N, H, L, S]: true masks a key out for a query.
  torch::Tensor hidden = {};
  std::optional<double> scale = {};  // factor of q . k; default 1 / sqrt(D)
};

// softmax(scale q k^T) v over the keys that are not masked out (equation 2 of Katharopoulos et al.,
// 2020): q [N, L, H, D], k [N, S, G, D], v [N, S, G, M] -> [N, L, H, M], any strides (a tensor
// whose last axis is not dense is copied); D, M >= 1. Head h of q reads head h / (H / G) of k and
// v. A query without keys has an output and a gradient of 0. In fp32 on the CPU and without
// `hidden`, runs the fused kernel, whose memory does not grow with L x S, and which has first
// derivatives only. On a GPU, runs libtorch's fused attention if that supports the call. Otherwise
// runs the plain form (unfused libtorch operations), which materializes the scores. Throws
// InputError on shapes that do not match.
torch::Tensor SoftmaxAttention(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, const SoftmaxAttentionOptions& options = {});

}  // namespace linnet::ops

#endif  // LINNET_OPS_SOFTMAX_ATTENTION_H_
