// LSH attention (Reformer): a query attends only to keys that hashing places near it; see
// ops/lsh_attention.h. While training, every forward pass draws new hash planes from libtorch's
// default generator. In evaluation the planes are fixed, so that outputs are reproducible.
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "linnet/error.h"
#include "linnet/nn/mixer.h"
#include "linnet/ops/lsh_attention.h"

namespace linnet::nn {
namespace {

using ops::LshOptions;
using torch::Tensor;

class ReformerAttentionImpl : public MixerImpl {
 public:
  explicit ReformerAttentionImpl(const MixerSpec& spec)
      : spec_(spec),
        query_dim_(spec.query_dim),
        rounds_(spec.lsh_rounds),
        simple_(spec.lsh_variant == LshVariant::kSimple),
        options_{.buckets = spec.lsh_buckets, .chunk = spec.lsh_chunk} {}

  // The keys are the normalized queries. k is ignored, but its shape, type and device are checked.
  Tensor forward(const Tensor& q_in, const Tensor& k, const Tensor& v_in,
                 const Mask& mask) override {
    CheckAttention("reformer", q_in, k, v_in, mask, /*quadratic=*/false, query_dim_);
    if (q_in.size(1) != k.size(1)) {
      throw InputError("attention 'reformer' uses its queries as keys and needs as many keys as ",
                       "queries; got ", q_in.size(1), " queries and ", k.size(1), " keys");
    }
    const Tensor lengths = LengthsOf(mask);
    const Tensor q = Scaled(DropBehind(q_in, lengths)), v = DropBehind(v_in, lengths);
    LshOptions options = options_;
    options.causal = mask.causal;
    const Tensor planes = Planes(q);
    if (!simple_) return ops::LshAttention(q, v, lengths, planes, options);
    Tensor buckets = ops::LshBuckets(q, planes, options.buckets);
    if (lengths.defined()) {
      const Tensor counts = Below(lengths, q.size(1)).view({1, q.size(0), 1, -1});
      buckets = buckets.masked_fill(counts.logical_not(), options.buckets);
    }
    return ops::SimpleLshAttention(q, v, lengths, ops::LshOrder(buckets), options);
  }

  bool cross() const override { return false; }

 private:
  // The number of positions of each sequence; undefined: L. Each position is a query and a key, so
  // positions behind mask.lengths or mask.query_lengths are padding. Their outputs are 0.
  static Tensor LengthsOf(const Mask& mask) {
    if (!mask.query_lengths.defined()) return mask.lengths;
    if (!mask.lengths.defined()) return mask.query_lengths;
    return torch::minimum(mask.lengths, mask.query_lengths);
  }

  // Scales q so that the scores are spec_.scale q . k, though the operations multiply q . k by
  // 1 / sqrt(D). Keys (q / |q|) and buckets do not depend on |q|, so this scales only the scores.
  Tensor Scaled(const Tensor& q) const {
    if (spec_.scale == 0) return q;
    return q * (spec_.scale * std::sqrt(static_cast<double>(query_dim_)));
  }

  Tensor Planes(const Tensor& q) const {
    const std::vector<int64_t> sizes = {rounds_, q.size(3), (options_.buckets + 1) / 2};
    const Tensor planes =
        is_training() ? torch::randn(sizes)
                      : torch::tensor(LshPlanes(spec_, static_cast<int>(q.size(3)))).view(sizes);
    return planes.to(q.options().requires_grad(false));
  }

  MixerSpec spec_;
  int64_t query_dim_, rounds_;
  bool simple_;
  LshOptions options_;
};

}  // namespace

MixerKind ReformerMixerKind() {
  return {"reformer", [](const MixerSpec& spec) -> Mixer {
            return std::make_shared<ReformerAttentionImpl>(spec);
          }};
}

}  // namespace linnet::nn
