// Causal linear attention: the fused operation over whole sequences (eqs. 8-15), and the RNN of
// equations 16-20.
#include <torch/types.h>
#include <torch/utils.h>

#include "linnet/base/error.h"
#include "linnet/nn/attention.h"
#include "linnet/nn/feature_map.h"
#include "linnet/nn/linear_state.h"
#include "linnet/ops/causal_linear.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class CausalLinearAttentionImpl : public LinearStateAttention {
 public:
  using LinearStateAttention::LinearStateAttention;

  // Causal whatever the mask says.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) override {
    CheckAttention("causal-linear", q, k, v, mask, /*quadratic=*/false);
    if (q.size(1) != k.size(1)) {
      throw InputError("attention 'causal-linear' needs as many keys as queries; there are ",
                       k.size(1), " and ", q.size(1));
    }
    return DropQueries(Attend(q, k, v, mask.lengths), mask);
  }

 private:
  Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths) const {
    if (const auto fused = map_->fused()) {
      return ops::CausalLinearAttention(q, k, v, lengths, {*fused, true, eps_});
    }
    const Tensor phi_q = map_->Queries(q), phi_k = map_->Keys(k);
    const kernels::FeatureMap as_given = kernels::FeatureMap::kIdentity;
    if (!map_->floor()) {
      return ops::CausalLinearAttention(phi_q, phi_k, v, lengths, {as_given, true, eps_});
    }
    // The normaliser is the sum over values that are all one.
    const Tensor ones = torch::ones_like(v.narrow(3, 0, 1));
    const Tensor both = ops::CausalLinearAttention(phi_q, phi_k, torch::cat({v, ones}, 3), lengths,
                                                   {as_given, false, 0.0f});
    return map_->Divide(both.narrow(3, 0, v.size(3)), both.narrow(3, v.size(3), 1), eps_);
  }
};

}  // namespace

const AttentionKind kCausalLinearAttention = {
    "causal-linear", [](const AttentionSpec& spec, const AttentionSizes& sizes) -> Attention {
      return std::make_shared<CausalLinearAttentionImpl>(spec, sizes);
    }};

}  // namespace linnet::nn
