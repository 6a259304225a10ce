// Linear attention over the whole sequence (eqs. 4-6): cost O(L), every query sees every key.
#include <torch/types.h>

#include "linnet/base/error.h"
#include "linnet/nn/attention.h"
#include "linnet/nn/feature_map.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class LinearAttentionImpl : public AttentionImpl {
 public:
  explicit LinearAttentionImpl(const AttentionSpec& spec) : eps_(spec.eps) {}

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) override {
    if (mask.causal) {
      throw InputError("'linear' attention sees the whole sequence; use 'causal-linear'");
    }
    const Tensor phi_q = EluFeatureMap(q).permute({0, 2, 1, 3});  // [N, H, L, D]
    Tensor phi_k = EluFeatureMap(k);
    if (mask.lengths.defined()) {
      const Tensor valid = torch::arange(k.size(1)).unsqueeze(0) < mask.lengths.unsqueeze(1);
      phi_k = phi_k * valid.to(phi_k.dtype()).view({k.size(0), -1, 1, 1});
    }
    phi_k = phi_k.permute({0, 2, 3, 1});                                         // [N, H, D, S]
    const Tensor kv = torch::matmul(phi_k, v.permute({0, 2, 1, 3}));             // [N, H, D, M]
    const Tensor denominator = torch::matmul(phi_q, phi_k.sum(3, true)) + eps_;  // [N, H, L, 1]
    return (torch::matmul(phi_q, kv) / denominator).permute({0, 2, 1, 3});
  }

 private:
  double eps_;
};

}  // namespace

const AttentionKind kLinearAttention = {"linear",
                                        [](const AttentionSpec& spec) -> Attention {
                                          return std::make_shared<LinearAttentionImpl>(spec);
                                        },
                                        nullptr};

}  // namespace linnet::nn
