// Attention over the keys that locality-sensitive hashing finds near: see ops/lsh_attention.h. While
// training, every forward pass hashes with planes of its own, drawn from libtorch's default
// generator; otherwise with the same ones always, so that a model's answers repeat.
#include <torch/types.h>
#include <torch/utils.h>

#include "linnet/base/error.h"
#include "linnet/nn/attention.h"
#include "linnet/ops/lsh_attention.h"

namespace linnet::nn {
namespace {

using ops::LshOptions;
using torch::Tensor;

class ReformerAttentionImpl : public AttentionImpl {
 public:
  ReformerAttentionImpl(const AttentionSpec& spec, const AttentionSizes& sizes)
      : spec_(spec),
        query_dim_(sizes.query_dim),
        rounds_(spec.lsh_rounds),
        simple_(spec.lsh_variant == "simple"),
        options_{.buckets = spec.lsh_buckets, .chunk = spec.lsh_chunk} {}

  // The keys are the queries: k is not looked at.
  Tensor forward(const Tensor& q_in, const Tensor& k, const Tensor& v_in,
                 const Mask& mask) override {
    CheckAttention("reformer", q_in, k, v_in, mask, /*quadratic=*/false, query_dim_);
    if (q_in.size(1) != k.size(1)) {
      throw InputError("attention 'reformer' takes its queries as keys: there must be as many of ",
                       "both, not ", q_in.size(1), " and ", k.size(1));
    }
    // Queries behind query_lengths may yet be keys.
    const Tensor q = DropBehind(q_in, mask.lengths), v = DropBehind(v_in, mask.lengths);
    LshOptions options = options_;
    options.causal = mask.causal;
    const Tensor planes = Planes(q);
    if (!simple_) return DropQueries(ops::LshAttention(q, v, mask.lengths, planes, options), mask);
    Tensor buckets = ops::LshBuckets(q, planes, options.buckets);
    if (mask.lengths.defined()) {
      const Tensor counts = Below(mask.lengths, q.size(1)).view({1, q.size(0), 1, -1});
      buckets = buckets.masked_fill(counts.logical_not(), options.buckets);
    }
    return DropQueries(ops::SimpleLshAttention(q, v, mask.lengths, ops::LshOrder(buckets), options),
                       mask);
  }

  bool cross() const override { return false; }

 private:
  Tensor Planes(const Tensor& q) const {
    const std::vector<int64_t> sizes = {rounds_, q.size(3), (options_.buckets + 1) / 2};
    const Tensor planes =
        is_training() ? torch::randn(sizes)
                      : torch::tensor(LshPlanes(spec_, static_cast<int>(q.size(3)))).view(sizes);
    return planes.to(q.options().requires_grad(false));
  }

  AttentionSpec spec_;
  int64_t query_dim_, rounds_;
  bool simple_;
  LshOptions options_;
};

}  // namespace

const AttentionKind kReformerAttention = {
    "reformer", [](const AttentionSpec& spec, const AttentionSizes& sizes) -> Attention {
      return std::make_shared<ReformerAttentionImpl>(spec, sizes);
    }};

}  // namespace linnet::nn
