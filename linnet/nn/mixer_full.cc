// Softmax attention (the paper's equation 2), and its recurrent form with a cache of all past keys
// and values (supplementary C.1).
#include <torch/types.h>
#include <torch/utils.h>

#include <optional>

#include "linnet/nn/cached_attention.h"
#include "linnet/nn/narrow_mixer.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/softmax_attention.h"

namespace linnet::nn {
namespace {

using torch::Tensor;

class FullAttentionImpl : public CachedAttention, public NarrowMixer {
 public:
  explicit FullAttentionImpl(const MixerSpec& spec) : CachedAttention("full", spec.query_dim) {
    if (spec.scale > 0) scale_ = spec.scale;
  }

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask) override {
    CheckAttention("full", q, k, v, mask, /*quadratic=*/true, query_dim());
    ops::SoftmaxAttentionOptions options{
        .causal = mask.causal, .lengths = mask.lengths, .scale = scale_};
    if (mask.allowed.defined()) options.hidden = mask.allowed.logical_not();
    // The operation ignores keys behind the lengths, so k and v need no DropBehind().
    return DropQueries(ops::SoftmaxAttention(DropBehind(q, mask.query_lengths), k, v, options),
                       mask);
  }

  bool TakesBf16OnGpu(int64_t value_dim, const Mask& mask) const override {
    return value_dim == query_dim() && !mask.lengths.defined() && !mask.allowed.defined() &&
           ops::kSoftmaxHasGpuKernels;
  }

 protected:
  Tensor Attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& hidden,
                bool causal, int64_t offset) const override {
    return ops::SoftmaxAttention(
        q, k, v, {.causal = causal, .offset = offset, .hidden = hidden, .scale = scale_});
  }

 private:
  std::optional<double> scale_;  // none: 1 / sqrt(query_dim)
};

}  // namespace

MixerKind FullMixerKind() {
  return {"full",
          [](const MixerSpec& spec) -> Mixer { return std::make_shared<FullAttentionImpl>(spec); }};
}

}  // namespace linnet::nn
