// Causal linear attention: the fused operation over whole sequences, and the RNN of equations
// 16-20.
#include <torch/types.h>

#include "linnet/nn/attention.h"
#include "linnet/nn/feature_map.h"
#include "linnet/ops/causal_linear.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class CausalLinearAttentionImpl : public AttentionImpl {
 public:
  explicit CausalLinearAttentionImpl(const AttentionSpec& spec) { options_.eps = spec.eps; }

  // Causal whatever the mask says.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) override {
    return ops::CausalLinearAttention(q, k, v, mask.lengths, options_);
  }

 private:
  kernels::CausalLinearOptions options_;
};

class RecurrentCausalLinearAttentionImpl : public RecurrentAttentionImpl {
 public:
  explicit RecurrentCausalLinearAttentionImpl(const AttentionSpec& spec) : eps_(spec.eps) {}

  // The state is s [N, H, D, M] and z [N, H, D].
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v,
                 AttentionState& state) override {
    const Tensor phi_q = EluFeatureMap(q), phi_k = EluFeatureMap(k);
    const Tensor kv = phi_k.unsqueeze(3) * v.unsqueeze(2);
    if (state.empty()) {
      state = {kv, phi_k};
    } else {
      state = {state[0] + kv, state[1] + phi_k};
    }
    const Tensor numerator = torch::matmul(phi_q.unsqueeze(2), state[0]).squeeze(2);
    return numerator / ((phi_q * state[1]).sum(2, true) + eps_);
  }

 private:
  double eps_;
};

}  // namespace

const AttentionKind kCausalLinearAttention = {
    "causal-linear",
    [](const AttentionSpec& spec) -> Attention {
      return std::make_shared<CausalLinearAttentionImpl>(spec);
    },
    [](const AttentionSpec& spec) -> RecurrentAttention {
      return std::make_shared<RecurrentCausalLinearAttentionImpl>(spec);
    }};

}  // namespace linnet::nn
