#include "linnet/nn/mixer.h"

#include <torch/utils.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "linnet/error.h"
#include "linnet/model/registry.h"

namespace linnet::nn {

#define LINNET_MIXER(Name) MixerKind Name##MixerKind();
#include "linnet/model/mixers/list.h"

namespace {

using torch::Tensor;

Registry<MixerKind>& Kinds() {
#define LINNET_MIXER(Name) Name##MixerKind(),
  static Registry<MixerKind> kinds("attention module", {
#include "linnet/model/mixers/list.h"
                                                       });
  return kinds;
}

[[noreturn]] void NoRecurrentForm() {
  throw InputError("this attention has no recurrent form; use forward()");
}

// Throws unless q and k are [N, H, D] and v [N, H, M] (axes = 3), or q and k [N, L, H, D] and
// v [N, L, H, M] with L >= 1 (axes = 4).
void CheckStep(const Tensor& q, const Tensor& k, const Tensor& v, int64_t axes) {
  const auto outer = static_cast<size_t>(axes - 1);
  if (q.dim() != axes || v.dim() != axes || k.sizes() != q.sizes() ||
      v.sizes().slice(0, outer) != q.sizes().slice(0, outer) || (axes == 4 && q.size(1) == 0)) {
    throw InputError(
        "attention: a ", axes == 4 ? "piece" : "step", " takes q and k ",
        axes == 4 ? "[N, L, H, D] and v [N, L, H, M], L >= 1" : "[N, H, D] and v [N, H, M]",
        "; got q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  }
}

}  // namespace

Tensor MixerImpl::Mix(const std::vector<Tensor>& in, const Mask& mask) {
  return forward(in.at(0), in.at(1), in.at(2), mask);
}

Tensor MixerImpl::MixPiece(const std::vector<Tensor>& in, MixerState& state) {
  return Piece(in.at(0), in.at(1), in.at(2), state);
}

Tensor MixerImpl::MixStep(const std::vector<Tensor>& in, MixerState& state) {
  return Step(in.at(0), in.at(1), in.at(2), state);
}

void MixerImpl::Remember(const Tensor&, const Tensor&, const Tensor&, MixerState&) {
  NoRecurrentForm();
}

Tensor MixerImpl::Recall(const Tensor&, const MixerState&) { NoRecurrentForm(); }

Tensor MixerImpl::Step(const Tensor& q, const Tensor& k, const Tensor& v, MixerState& state) {
  CheckStep(q, k, v, 3);
  Remember(k.unsqueeze(1), v.unsqueeze(1), {}, state);
  return Recall(q, state);
}

Tensor MixerImpl::Piece(const Tensor& q, const Tensor& k, const Tensor& v, MixerState& state) {
  CheckStep(q, k, v, 4);
  std::vector<Tensor> out;
  for (int64_t t = 0; t < q.size(1); ++t) {
    out.push_back(Step(q.select(1, t), k.select(1, t), v.select(1, t), state));
  }
  return torch::stack(out, 1);
}

Mixer MakeMixer(const MixerSpec& spec) {
  constexpr int kMost = 1 << 20;
  for (const auto& [name, size] : {std::pair<const char*, int>("heads", spec.heads),
                                   {"query_dim", spec.query_dim},
                                   {"value_dim", spec.value_dim}}) {
    if (size < 1 || size > kMost) {
      throw InputError("attention: ", name, " is ", size, "; it must be between 1 and ", kMost);
    }
  }
  Validate(spec, spec.query_dim, "attention");
  return Kinds().Find(spec.kind).make(spec);
}

Mixer MakeMixer(MixerSpec spec, const MixerSizes& sizes) {
  const auto narrow = [](int64_t size) {  // clamps, so that MakeMixer() rejects huge sizes
    using Int = std::numeric_limits<int>;
    return static_cast<int>(std::clamp<int64_t>(size, Int::min(), Int::max()));
  };
  spec.heads = narrow(sizes.heads);
  spec.query_dim = narrow(sizes.query_dim);
  spec.value_dim = narrow(sizes.value_dim);
  return MakeMixer(spec);
}

void CheckRecurrent(const char* kind, int64_t query_dim, const Tensor& q, const Tensor& k,
                    const Tensor& v, const Tensor& lengths, const Tensor& values, int64_t readers) {
  const Tensor& any = q.defined() ? q : k;
  CheckAttention(kind, any, k.defined() ? k : q, v.defined() ? v : q,
                 {.causal = true, .lengths = lengths}, /*quadratic=*/false, query_dim,
                 q.defined() && k.defined() ? readers : 1);
  if (!values.defined()) return;
  if (values.size(0) != any.size(0) ||
      values.size(1) * (q.defined() ? readers : 1) != any.size(2) ||
      (v.defined() && values.size(3) != v.size(3)) || values.scalar_type() != any.scalar_type() ||
      values.device() != any.device()) {
    throw InputError("attention '", kind, "': the state has ", values.size(0), " sequences, ",
                     values.size(1), " heads and value_dim ", values.size(3), " in ",
                     values.toString(), "; got ", v.defined() ? "v " : "q ",
                     v.defined() ? v.sizes() : q.sizes(), " in ", any.toString());
  }
}

void RegisterMixer(const MixerInfo& info, Mixer (*make)(const MixerSpec& spec)) {
  AddMixer(info);
  Kinds().Add({info.name, make});
}

}  // namespace linnet::nn
