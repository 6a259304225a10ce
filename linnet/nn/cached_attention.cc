#include "linnet/nn/cached_attention.h"

#include <c10/core/InferenceMode.h>
#include <torch/utils.h>

#include <algorithm>

#include "linnet/error.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

constexpr int64_t kFirstCapacity = 64;  // positions

// The keys (which = 0) or values (which = 1) in a state: [N, S, H, D or M]. If autograd is
// recording but the cache requires no gradient, returns an alias with its own version counter and
// use count. Autograd can save this alias while Append() goes on writing later rows into the same
// memory.
Tensor Seen(const MixerState& state, size_t which) {
  const Tensor& cache = state.tensors[which];
  const bool apart =
      torch::GradMode::is_enabled() && !cache.requires_grad() && !cache.is_inference();
  return (apart ? cache.variable_data() : cache).narrow(2, 0, state.length).transpose(1, 2);
}

// Appends x [N, H, S, dim] to tensor `which` of the state.
void Append(const Tensor& x, MixerState& state, size_t which) {
  std::vector<Tensor>& tensors = state.tensors;
  const int64_t length = state.length, needed = length + x.size(2);
  tensors.resize(2);
  Tensor& cache = tensors[which];
  const bool gradient = torch::GradMode::is_enabled() &&
                        (x.requires_grad() || (cache.defined() && cache.requires_grad()));
  if (gradient) {  // copies: autograd history forbids writing in place
    cache = length > 0 ? torch::cat({cache.narrow(2, 0, length), x}, 2) : x.clone();
    return;
  }
  // Writes in place only if the cache has room and no copy of this state shares it. Otherwise
  // copies the cache first.
  const bool room = cache.defined() && cache.size(2) >= needed && !cache.requires_grad() &&
                    (!cache.is_inference() || c10::InferenceMode::is_enabled());
  if (!room || cache.use_count() > 1) {
    const int64_t capacity =
        std::max({needed, state.capacity, kFirstCapacity, room ? cache.size(2) : 2 * length});
    const Tensor larger = torch::empty({x.size(0), x.size(1), capacity, x.size(3)}, x.options());
    if (length > 0) larger.narrow(2, 0, length).copy_(cache.narrow(2, 0, length).detach());
    cache = larger;
  }
  cache.narrow(2, length, x.size(2)).copy_(x.detach());
}

}  // namespace

void CachedAttention::Check(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& lengths, const MixerState& state) const {
  CheckRecurrent(kind_, query_dim_, q, k, v, lengths, state.empty() ? Tensor() : state.tensors[1],
                 readers_);
  if (!state.empty() && state.lengths.defined()) {
    throw InputError("attention '", kind_, "' cannot add positions to a state with lengths");
  }
}

void CachedAttention::Remember(const Tensor& k, const Tensor& v, const Tensor& lengths,
                               MixerState& state) {
  Check({}, k, v, lengths, state);
  if (lengths.defined()) {
    if (!state.empty()) {
      throw InputError("attention '", kind_, "' takes lengths only for an empty state");
    }
    state.lengths = lengths.clone();
  }
  Append(DropBehind(k, lengths).transpose(1, 2), state, 0);  // [N, H, S, D]
  Append(DropBehind(v, lengths).transpose(1, 2), state, 1);
  state.length += k.size(1);
}

Tensor CachedAttention::Recall(const Tensor& q, const MixerState& state) {
  if (state.empty()) throw InputError("attention has nothing to recall: its state is empty");
  CheckRecurrent(kind_, query_dim_, q.unsqueeze(1), {}, {}, {}, state.tensors[1], readers_);
  // Passes a mask instead of lengths, because the plain form of SoftmaxAttention() copies the keys
  // if it gets lengths.
  Tensor hidden;
  if (state.lengths.defined()) {
    hidden = Below(state.lengths, state.length).logical_not().view({q.size(0), 1, 1, -1});
  }
  return Attend(q.unsqueeze(1), Seen(state, 0), Seen(state, 1), hidden, /*causal=*/false, 0)
      .squeeze(1);
}

Tensor CachedAttention::Piece(const Tensor& q, const Tensor& k, const Tensor& v,
                              MixerState& state) {
  Check(q, k, v, {}, state);
  return Continue(q, k, v, state);
}

Tensor CachedAttention::Continue(const Tensor& q, const Tensor& k, const Tensor& v,
                                 MixerState& state) const {
  const int64_t before = state.length;
  Append(k.transpose(1, 2), state, 0);
  Append(v.transpose(1, 2), state, 1);
  state.length += k.size(1);
  return Attend(q, Seen(state, 0), Seen(state, 1), {}, /*causal=*/true, before);
}

}  // namespace linnet::nn
