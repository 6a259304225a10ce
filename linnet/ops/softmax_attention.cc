#include "linnet/ops/softmax_attention.h"

#include <torch/utils.h>
#include <torch/version.h>

#include <cmath>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/lengths.h"
#include "linnet/ops/lowest_score.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

Tensor Plain(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, double scale,
             const SoftmaxAttentionOptions& options) {
  const int64_t queries = q_in.size(1), keys = k_in.size(1);
  Tensor hidden = options.hidden;
  const auto hide = [&](const Tensor& more) {
    hidden = hidden.defined() ? hidden.logical_or(more) : more;
  };
  if (options.causal) {
    const Tensor all = torch::ones({queries, keys}, q_in.options().dtype(torch::kBool));
    hide(all.triu(options.offset + 1));
    if (options.window > 0) hide(all.tril(options.offset - options.window));
  }
  const int64_t readers = q_in.size(2) / k_in.size(2);  // query heads per key head
  const auto heads = [&](const Tensor& x) {
    return (readers == 1 ? x : x.repeat_interleave(readers, 2)).transpose(1, 2);
  };
  Tensor q = q_in.transpose(1, 2), k = heads(k_in), v = heads(v_in);
  if (options.lengths.defined()) {
    const Tensor beyond =
        (torch::arange(keys, options.lengths.options()) >= options.lengths.unsqueeze(1))
            .view({-1, 1, 1, keys});
    hide(beyond);
    // Masked keys and values may hold NaN, which a weight of 0 does not remove.
    k = k.masked_fill(beyond.transpose(2, 3), 0);
    v = v.masked_fill(beyond.transpose(2, 3), 0);
  }
  Tensor scores = torch::matmul(q * scale, k.transpose(2, 3));
  // Masks with the lowest finite score instead of -inf and sets the masked weights to 0 afterwards,
  // so that a query without keys has an output of 0, not NaN.
  if (hidden.defined()) scores = scores.masked_fill(hidden, LowestScore(scores.scalar_type()));
  Tensor weights = torch::softmax(scores, -1);
  if (hidden.defined()) weights = weights.masked_fill(hidden, 0);
  return torch::matmul(weights, v).transpose(1, 2);
}

#if TORCH_VERSION_MAJOR >= 2
// Whether libtorch's own fused attention, which stores no scores, supports this call.
bool LibtorchFuses(const Tensor& q, const Tensor& k, const SoftmaxAttentionOptions& options) {
  return q.is_cuda() && !PlainGuard::asked() && !options.hidden.defined() &&
         !options.lengths.defined() && options.window == 0 && q.size(2) == k.size(2) &&
         (!options.causal || (options.offset == 0 && q.size(1) == k.size(1)));
}
#endif

void Check(const Tensor& q, const Tensor& k, const Tensor& v,
           const SoftmaxAttentionOptions& options) {
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || q.size(0) != k.size(0) || k.size(2) == 0 ||
      q.size(2) % k.size(2) != 0 || q.size(3) != k.size(3) ||
      k.sizes().slice(0, 3) != v.sizes().slice(0, 3) || q.size(3) == 0 || v.size(3) == 0) {
    throw InputError("softmax attention needs q [N, L, H, D], k [N, S, G, D] and v [N, S, G, M], ",
                     "D, M >= 1, G a divisor of H; got q ", q.sizes(), ", k ", k.sizes(), ", v ",
                     v.sizes());
  }
  if (k.scalar_type() != q.scalar_type() || v.scalar_type() != q.scalar_type() ||
      k.device() != q.device() || v.device() != q.device()) {
    throw InputError("softmax attention needs q, k and v of one type and on one device; got q ",
                     q.toString(), ", k ", k.toString(), ", v ", v.toString());
  }
  if (options.offset < 0 || options.window < 0) {
    throw InputError("softmax attention: offset and window must be 0 or more; they are ",
                     options.offset, " and ", options.window);
  }
  CheckLengths("softmax attention", options.lengths, q);
}

}  // namespace

Tensor SoftmaxAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const SoftmaxAttentionOptions& options) {
  Check(q, k, v, options);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  if constexpr (kHasFused) {
    if (Fused(q) && !options.hidden.defined()) {
      return FusedSoftmaxAttention(q, k, v, scale, options);
    }
  }
#if TORCH_VERSION_MAJOR >= 2
  if (LibtorchFuses(q, k, options)) {
    return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                            /*attn_mask=*/{}, /*dropout_p=*/0.0, options.causal,
                                            scale)
        .transpose(1, 2);
  }
#endif
  return Plain(q, k, v, scale, options);
}

}  // namespace linnet::ops
