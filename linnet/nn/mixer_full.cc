// Softmax attention (equation 2 of Katharopoulos et al. 2020), and its recurrent form with a cache
// of all past keys and values (supplementary C.1) or only of the keys and values in a window.
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "linnet/error.h"
#include "linnet/nn/cached_attention.h"
#include "linnet/nn/narrow_mixer.h"
#include "linnet/nn/rotary.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/softmax_attention.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class FullAttentionImpl : public CachedAttention, public NarrowMixer {
 public:
  explicit FullAttentionImpl(const MixerSpec& spec)
      : CachedAttention("full", spec.query_dim, KeyReaders(spec)),
        window_(spec.window),
        rotary_(spec.rotary),
        rotary_base_(spec.rotary_base) {
    if (spec.scale > 0) scale_ = spec.scale;
  }

  bool cross() const override { return window_ == 0 && !rotary_; }

  Tensor forward(const Tensor& q_in, const Tensor& k_in, const Tensor& v,
                 const Mask& mask_in) override {
    Mask mask = mask_in;
    mask.causal = mask.causal || window_ > 0;
    CheckAttention("full", q_in, k_in, v, mask, /*quadratic=*/true, query_dim(), readers());
    // The operation ignores keys behind the lengths, so k and v need no DropBehind().
    Tensor q = DropBehind(q_in, mask.query_lengths), k = k_in;
    if (rotary_) {
      if (q.size(1) != k.size(1)) {
        throw InputError("attention 'full': rotary positions are for self attention; got ",
                         q.size(1), " queries and ", k.size(1), " keys");
      }
      Rotate(0, rotary_base_, q, k);
    }
    ops::SoftmaxAttentionOptions options{
        .causal = mask.causal, .window = window_, .lengths = mask.lengths, .scale = scale_};
    if (mask.allowed.defined()) options.hidden = mask.allowed.logical_not();
    return DropQueries(ops::SoftmaxAttention(q, k, v, options), mask);
  }

  bool TakesBf16OnGpu(int64_t value_dim, const Mask& mask) const override {
    return value_dim == query_dim() && !mask.lengths.defined() && !mask.allowed.defined() &&
           window_ == 0 && !rotary_ && readers() == 1 && ops::kSoftmaxHasGpuKernels;
  }

  void Remember(const Tensor& k, const Tensor& v, const Tensor& lengths,
                MixerState& state) override {
    if (!cross()) {
      throw InputError(
          "attention 'full' with a window or rotary positions cannot attend to a memory; "
          "use Piece()");
    }
    CachedAttention::Remember(k, v, lengths, state);
  }

  Tensor Recall(const Tensor& q, const MixerState& state) override {
    if (!cross()) {
      throw InputError(
          "attention 'full' with a window or rotary positions cannot attend to a memory; "
          "use Piece()");
    }
    return CachedAttention::Recall(q, state);
  }

  Tensor Step(const Tensor& q, const Tensor& k, const Tensor& v, MixerState& state) override {
    if (cross() && readers() == 1) return CachedAttention::Step(q, k, v, state);
    return Piece(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), state).squeeze(1);
  }

  Tensor Piece(const Tensor& q_in, const Tensor& k_in, const Tensor& v,
               MixerState& state) override {
    Check(q_in, k_in, v, {}, state);
    Tensor q = q_in, k = k_in;
    if (rotary_) Rotate(state.length, rotary_base_, q, k);
    return window_ > 0 ? Slide(q, k, v, state) : Continue(q, k, v, state);
  }

 protected:
  Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& hidden,
                bool causal, int64_t offset) const override {
    return ops::SoftmaxAttention(
        q, k, v,
        {.causal = causal, .offset = offset, .window = window_, .hidden = hidden, .scale = scale_});
  }

 private:
  // Attention of the next positions over a window. state.tensors are the last window - 1 keys and
  // values (at the beginning, fewer): [N, G, positions, D or M].
  Tensor Slide(const Tensor& q, const Tensor& k, const Tensor& v, MixerState& state) const {
    Tensor seen[] = {k, v};
    const int64_t past = state.empty() ? 0 : state.tensors[0].size(2);
    const int64_t all = past + k.size(1), kept = std::min(window_ - 1, all);
    std::vector<Tensor> next;
    for (size_t i = 0; i < 2; ++i) {
      if (past > 0) seen[i] = torch::cat({state.tensors[i].transpose(1, 2), seen[i]}, 1);
      next.push_back(seen[i].narrow(1, all - kept, kept).transpose(1, 2).clone());
    }
    state.tensors = next;
    state.length += k.size(1);
    return Attend(q, seen[0], seen[1], {}, /*causal=*/true, past);
  }

  const int64_t window_;  // 0: all positions
  const bool rotary_;
  const double rotary_base_;
  std::optional<double> scale_;  // none: 1 / sqrt(query_dim)
};

}  // namespace

MixerKind FullMixerKind() {
  return {"full",
          [](const MixerSpec& spec) -> Mixer { return std::make_shared<FullAttentionImpl>(spec); }};
}

}  // namespace linnet::nn
