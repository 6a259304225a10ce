#include "linnet/ops/linear_attention.h"

#include <torch/utils.h>

#include "linnet/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/lengths.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using torch::Tensor;

Tensor Plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
             const kernels::LinearAttentionOptions& options) {
  const auto phi = [&](const Tensor& x) {
    return options.feature_map == kernels::FeatureMap::kElu ? torch::elu(x) + 1 : x;
  };
  Tensor phi_k, values = v;
  if (lengths.defined()) {
    // Fills masked keys with 0, because multiplying a NaN by 0 would leave a NaN. Fills them also
    // before phi, because phi's derivative at NaN would make their gradients NaN.
    const Tensor unseen = (torch::arange(k.size(1), lengths.options()) >= lengths.unsqueeze(1))
                              .unsqueeze(2)
                              .unsqueeze(3);
    phi_k = phi(k.masked_fill(unseen, 0)).masked_fill(unseen, 0);
    values = v.masked_fill(unseen, 0);
  } else {
    phi_k = phi(k);
  }
  const Tensor phi_q = phi(q).transpose(1, 2), keys = phi_k.transpose(1, 2);  // [N, H, L or S, F]
  Tensor out = torch::matmul(phi_q, torch::matmul(keys.transpose(2, 3), values.transpose(1, 2)));
  if (options.normalize) {
    const Tensor denominator =
        torch::matmul(phi_q, keys.sum(2).unsqueeze(3)) + static_cast<double>(options.eps);
    // Makes out and its gradients 0 where the denominator is 0.
    const Tensor empty = denominator == 0;
    out = (out / denominator.masked_fill(empty, 1)).masked_fill(empty, 0);
  }
  return out.transpose(1, 2).contiguous();
}

}  // namespace

Tensor LinearAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                       const kernels::LinearAttentionOptions& options) {
  const auto same = [](const Tensor& x, const Tensor& y, std::initializer_list<int64_t> axes) {
    for (const int64_t axis : axes) {
      if (x.size(axis) != y.size(axis)) return false;
    }
    return true;
  };
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || !same(q, k, {0, 2, 3}) ||
      !same(k, v, {0, 1, 2}) || q.size(1) == 0 || k.size(1) == 0 || q.size(3) == 0 ||
      v.size(3) == 0) {
    throw InputError(
        "linear attention needs q [N, L, H, D], k [N, S, H, D] and v [N, S, H, M], L, S, D, M >= "
        "1; "
        "got q ",
        q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  }
  if (k.scalar_type() != q.scalar_type() || v.scalar_type() != q.scalar_type() ||
      k.device() != q.device() || v.device() != q.device()) {
    throw InputError("linear attention needs q, k and v of one type and device; got q ",
                     q.toString(), ", k ", k.toString(), ", v ", v.toString());
  }
  CheckLengths("linear attention", lengths, q);
  if constexpr (kHasFused) {
    if (FusedAttention(q)) {
      return FusedLinearAttention(q, k, v, lengths.defined() ? lengths.contiguous() : lengths,
                                  options);
    }
  }
  return Plain(q, k, v, lengths, options);
}

}  // namespace linnet::ops
