#include "linnet/nn/linear_state.h"

#include <torch/utils.h>

#include "linnet/base/error.h"

namespace linnet::nn {

using torch::Tensor;

LinearStateAttention::LinearStateAttention(const AttentionSpec& spec, const AttentionSizes& sizes)
    : eps_(spec.eps), map_(MakeFeatureMap(spec, sizes.query_dim)) {
  register_module("feature_map", map_);
}

void LinearStateAttention::Remember(const Tensor& k, const Tensor& v, const Tensor& lengths,
                                    AttentionState& state) {
  Tensor phi_k = map_->Keys(k);
  if (lengths.defined()) {
    phi_k =
        phi_k.masked_fill(Below(lengths, k.size(1)).logical_not().view({k.size(0), -1, 1, 1}), 0);
  }
  const Tensor keys = phi_k.permute({0, 2, 3, 1});  // [N, H, F, S]
  const Tensor s = torch::matmul(keys, v.transpose(1, 2)), z = keys.sum(3);
  if (state.empty()) {
    state.tensors = {s, z};
  } else {
    state.tensors = {state.tensors[0] + s, state.tensors[1] + z};
  }
  state.length += k.size(1);
}

Tensor LinearStateAttention::Recall(const Tensor& q, const AttentionState& state) {
  if (state.empty()) throw InputError("attention has nothing to recall: its state is empty");
  const Tensor phi_q = map_->Queries(q);
  const Tensor numerator = torch::matmul(phi_q.unsqueeze(2), state.tensors[0]).squeeze(2);
  return map_->Divide(numerator, (phi_q * state.tensors[1]).sum(2, true), eps_);
}

}  // namespace linnet::nn
