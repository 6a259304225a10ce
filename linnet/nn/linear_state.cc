#include "linnet/nn/linear_state.h"

#include <torch/utils.h>

#include "linnet/error.h"

namespace linnet::nn {

using torch::Tensor;

LinearStateAttention::LinearStateAttention(const MixerSpec& spec)
    : query_dim_(spec.query_dim),
      eps_(spec.eps),
      map_(MakeFeatureMap(spec, spec.query_dim)),
      kind_(spec.kind) {
  register_module("feature_map", map_);
}

void LinearStateAttention::Remember(const Tensor& k, const Tensor& v, const Tensor& lengths,
                                    MixerState& state) {
  CheckRecurrent(kind_.c_str(), query_dim_, {}, k, v, lengths,
                 state.empty() ? Tensor() : state.tensors[0]);
  const Tensor phi_k = DropBehind(map_->Keys(DropBehind(k, lengths)), lengths);
  const Tensor keys = phi_k.permute({0, 2, 3, 1});  // [N, H, F, S]
  const Tensor s = torch::matmul(keys, DropBehind(v, lengths).transpose(1, 2)), z = keys.sum(3);
  if (state.empty()) {
    state.tensors = {s, z};
  } else {
    state.tensors = {state.tensors[0] + s, state.tensors[1] + z};
  }
  state.length += k.size(1);
}

Tensor LinearStateAttention::Recall(const Tensor& q, const MixerState& state) {
  if (state.empty()) throw InputError("attention has nothing to recall: its state is empty");
  const Tensor &s = state.tensors[0], &z = state.tensors[1];
  CheckRecurrent(kind_.c_str(), query_dim_, q.unsqueeze(1), {}, {}, {}, s);
  const Tensor phi_q = map_->Queries(q);
  const Tensor numerator = torch::matmul(phi_q.unsqueeze(2), s).squeeze(2);
  return map_->Divide(numerator, (phi_q * z).sum(2, true), z, eps_);
}

}  // namespace linnet::nn
