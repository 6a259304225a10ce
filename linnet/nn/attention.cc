#include "linnet/nn/attention.h"

#include <torch/utils.h>

#include "linnet/nn/registry.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

Registry<AttentionKind>& Kinds() {
  static Registry<AttentionKind> kinds{kFullAttention, kKernelAttention, kLinearAttention,
                                       kCausalLinearAttention, kReformerAttention};
  return kinds;
}

[[noreturn]] void NoRecurrentForm() {
  throw InputError("this attention has no recurrent form: it cannot go on position by position");
}

}  // namespace

void AttentionImpl::Remember(const Tensor&, const Tensor&, const Tensor&, AttentionState&) {
  NoRecurrentForm();
}

Tensor AttentionImpl::Recall(const Tensor&, const AttentionState&) { NoRecurrentForm(); }

Tensor AttentionImpl::Step(const Tensor& q, const Tensor& k, const Tensor& v,
                           AttentionState& state) {
  Remember(k.unsqueeze(1), v.unsqueeze(1), {}, state);
  return Recall(q, state);
}

Tensor AttentionImpl::Piece(const Tensor& q, const Tensor& k, const Tensor& v,
                            AttentionState& state) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < q.size(1); ++t) {
    out.push_back(Step(q.select(1, t), k.select(1, t), v.select(1, t), state));
  }
  return torch::stack(out, 1);
}

Attention MakeAttention(const AttentionSpec& spec, const AttentionSizes& sizes) {
  Validate(spec, static_cast<int>(sizes.query_dim), "attention");
  return Kinds().Find(spec.kind)(spec, sizes);
}

void RegisterAttention(const AttentionKindInfo& info,
                       Attention (*make)(const AttentionSpec& spec, const AttentionSizes& sizes)) {
  AddAttentionKind(info);
  Kinds().Add(info.name, make);
}

}  // namespace linnet::nn
