#include "linnet/ops/causal_linear.h"

#include <torch/utils.h>

#include "linnet/base/error.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using kernels::CausalLinearOptions;
using kernels::FeatureMap;
using torch::Tensor;

// Equations 8-12 in chunks. Within one, position i sees the chunk's keys up to i; before it stands
// the sum over all earlier chunks.
Tensor Plain(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& lengths,
             const CausalLinearOptions& options) {
  const int64_t length = q_in.size(1);
  const int64_t chunks = (length + kPlainChunk - 1) / kPlainChunk;
  const auto phi = [&](const Tensor& x) {
    return options.feature_map == FeatureMap::kElu ? torch::elu(x) + 1 : x;
  };
  // [N, L, H, dim] -> [N, H, chunks, C, dim], padded with zeros
  const auto cut = [&](const Tensor& x) {
    return torch::constant_pad_nd(x.transpose(1, 2), {0, 0, 0, chunks * kPlainChunk - length})
        .unflatten(2, {chunks, kPlainChunk});
  };
  Tensor phi_k = phi(k_in);
  if (lengths.defined()) {
    const Tensor seen = torch::arange(length, lengths.options()) < lengths.unsqueeze(1);
    phi_k = phi_k * seen.unsqueeze(2).unsqueeze(3);
  }
  const Tensor q = cut(phi(q_in)), k = cut(phi_k), v = cut(v_in);
  // States before each chunk: sums over the ones in front of it.
  const auto before = [](const Tensor& x) { return x.cumsum(2) - x; };
  const Tensor inside = torch::matmul(q, k.transpose(3, 4)).tril();
  const Tensor s = before(torch::matmul(k.transpose(3, 4), v));
  Tensor out = torch::matmul(inside, v) + torch::matmul(q, s);
  if (options.normalize) {
    const Tensor z = before(k.sum(3, true));
    out = out / (inside.sum(4, true) + (q * z).sum(4, true) + options.eps);
  }
  return out.flatten(2, 3).narrow(2, 0, length).transpose(1, 2).contiguous();
}

}  // namespace

Tensor CausalLinearAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& lengths, const CausalLinearOptions& options) {
  if (q.dim() != 4 || v.dim() != 4 || k.sizes() != q.sizes() ||
      v.sizes().slice(0, 3) != q.sizes().slice(0, 3)) {
    throw InputError("causal linear attention needs q, k [N, L, H, D] and v [N, L, H, M]; got q ",
                     q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  }
  if (lengths.defined() && (lengths.sizes() != q.sizes().slice(0, 1) ||
                            lengths.scalar_type() != torch::kInt64 || !lengths.is_contiguous())) {
    throw InputError("causal linear attention: lengths must be a dense int64 [", q.size(0), "]");
  }
  if constexpr (kHasFused) {
    if (Fused(q)) return FusedCausalLinear(q, k, v, lengths, options);
  }
  return Plain(q, k, v, lengths, options);
}

}  // namespace linnet::ops
