// Linear attention over the whole sequence (equations 4-6 of Katharopoulos et al. 2020), at a cost
// of O(L). Every query attends to every key. In the recurrent form, a query attends to the keys so
// far, as in causal attention.
#include <torch/types.h>

#include "linnet/error.h"
#include "linnet/nn/feature_map.h"
#include "linnet/nn/linear_state.h"
#include "linnet/nn/mixer.h"
#include "linnet/ops/linear_attention.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class LinearAttentionImpl : public LinearStateAttention {
 public:
  using LinearStateAttention::LinearStateAttention;

  Tensor forward(const Tensor& q_in, const Tensor& k, const Tensor& v, const Mask& mask) override {
    if (mask.causal) {
      throw InputError("attention 'linear' takes no causal mask; use 'causal-linear'");
    }
    CheckAttention("linear", q_in, k, v, mask, /*quadratic=*/false, query_dim_);
    const Tensor q = DropBehind(q_in, mask.query_lengths);
    return DropQueries(map_->floor() ? Guarded(q, k, v, mask) : Fused(q, k, v, mask), mask);
  }

 private:
  Tensor Fused(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) const {
    const Tensor lengths = mask.lengths.defined() ? mask.lengths.contiguous() : Tensor();
    if (const auto fused = map_->fused()) {
      return ops::LinearAttention(q, k, v, lengths, {*fused, true, eps_});
    }
    return ops::LinearAttention(map_->Queries(q), map_->Keys(DropBehind(k, lengths)), v, lengths,
                                {kernels::FeatureMap::kIdentity, true, eps_});
  }

  // For maps with a floor(): computes z explicitly, because the lower bound of the denominator
  // depends on it.
  Tensor Guarded(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) {
    MixerState state;
    Remember(k, v, mask.lengths, state);
    const Tensor phi_q = map_->Queries(q).transpose(1, 2);  // [N, H, L, F]
    const Tensor numerator = torch::matmul(phi_q, state.tensors[0]);
    const Tensor& z = state.tensors[1];
    const Tensor denominator = torch::matmul(phi_q, z.unsqueeze(3));
    return map_->Divide(numerator, denominator, z.unsqueeze(2), eps_).transpose(1, 2);
  }
};

}  // namespace

MixerKind LinearMixerKind() {
  return {"linear", [](const MixerSpec& spec) -> Mixer {
            return std::make_shared<LinearAttentionImpl>(spec);
          }};
}

}  // namespace linnet::nn
