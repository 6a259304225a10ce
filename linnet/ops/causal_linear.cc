#include "linnet/ops/causal_linear.h"

#include <torch/utils.h>

#include <vector>

#include "linnet/error.h"
#include "linnet/ops/causal_linear_parts.h"
#include "linnet/ops/cuda.h"
#include "linnet/ops/fused.h"
#include "linnet/ops/lengths.h"
#include "linnet/ops/narrow.h"
#include "linnet/ops/plain.h"

namespace linnet::ops {
namespace {

using kernels::CausalLinearOptions;
using kernels::FeatureMap;
using torch::Tensor;

// Computes the attention in chunks. Position i reads the keys of its own chunk up to i by explicit
// scores, and all earlier positions through one state: the initial state plus the sums over the
// earlier chunks.
Tensor Plain(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& lengths,
             const CausalLinearOptions& options, CausalLinearState* state) {
  const int64_t length = q_in.size(1);
  const int64_t chunks = (length + kPlainChunk - 1) / kPlainChunk;
  const auto phi = [&](const Tensor& x) {
    return options.feature_map == FeatureMap::kElu ? torch::elu(x) + 1 : x;
  };
  // [N, L, H, dim] -> [N, H, chunks, kPlainChunk, dim], padded with zeros
  const auto cut = [&](const Tensor& x) {
    return torch::constant_pad_nd(x.transpose(1, 2), {0, 0, 0, chunks * kPlainChunk - length})
        .unflatten(2, {chunks, kPlainChunk});
  };
  Tensor phi_k, v_seen = v_in;
  if (!lengths.defined()) {
    phi_k = phi(k_in);
  } else {
    // Fills masked keys with 0, because multiplying a NaN by 0 would leave a NaN. Fills them also
    // before phi, because phi's derivative at NaN would make their gradients NaN.
    const Tensor unseen = (torch::arange(length, lengths.options()) >= lengths.unsqueeze(1))
                              .unsqueeze(2)
                              .unsqueeze(3);
    phi_k = phi(k_in.masked_fill(unseen, 0)).masked_fill(unseen, 0);
    v_seen = v_in.masked_fill(unseen, 0);
  }
  const Tensor q = cut(phi(q_in)), k = cut(phi_k), v = cut(v_seen);
  // Returns prefix sums over chunks: entry c is `first` (the initial state) plus the sum of the
  // chunks before c, and the last entry is the final state. Does not compute entry c by subtracting
  // chunk c from the sum that includes it: large keys or values in the chunk would leave rounding
  // errors at its earlier positions.
  const auto before = [&](const Tensor& x, const Tensor& first) {
    const Tensor begin = first.defined() ? first : torch::zeros_like(x.narrow(2, 0, 1));
    return torch::cat({begin, x}, 2).cumsum_(2);
  };
  const Tensor inside = torch::matmul(q, k.transpose(3, 4)).tril();  // scores within a chunk
  const Tensor s0 = state && state->s.defined() ? state->s.unsqueeze(2) : Tensor();
  // s is [N, H, chunks + 1, F, M]; z, below, is [N, H, chunks + 1, 1, F].
  const Tensor s = before(torch::matmul(k.transpose(3, 4), v), s0);
  Tensor out = torch::matmul(inside, v) + torch::matmul(q, s.narrow(2, 0, chunks));
  if (state) state->s = s.select(2, chunks).clone();  // a view would keep all of s alive
  if (options.normalize) {
    const Tensor z0 = state && state->z.defined() ? state->z.unsqueeze(2).unsqueeze(3) : Tensor();
    const Tensor z = before(k.sum(3, true), z0);
    const Tensor denominator =
        inside.sum(4, true) + (q * z.narrow(2, 0, chunks)).sum(4, true) + options.eps;
    if (state) state->z = z.select(2, chunks).squeeze(2).clone();
    // Makes out and its gradients 0 where the denominator is 0, that is, if all keys are masked and
    // eps is 0.
    const Tensor empty = denominator == 0;
    out = (out / denominator.masked_fill(empty, 1)).masked_fill(empty, 0);
  }
  return out.flatten(2, 3).narrow(2, 0, length).transpose(1, 2).contiguous();
}

// Computes one sequence after the other, each from its own entry of the state.
Tensor PlainPacked(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                   const CausalLinearOptions& options, CausalLinearState* state) {
  std::vector<Tensor> outs, s, z;
  const bool with_z = state && options.normalize;
  for (int64_t n = 0; n + 1 < offsets.size(0); ++n) {
    const int64_t begin = offsets.data_ptr<int64_t>()[n];
    const int64_t length = offsets.data_ptr<int64_t>()[n + 1] - begin;
    CausalLinearState own;
    if (state) {
      own.s = state->s.defined() ? state->s.narrow(0, n, 1)
                                 : torch::zeros({1, q.size(1), q.size(2), v.size(2)}, v.options());
    }
    if (with_z) {
      own.z = state->z.defined() ? state->z.narrow(0, n, 1)
                                 : torch::zeros({1, q.size(1), q.size(2)}, v.options());
    }
    if (length > 0) {
      const auto rows = [&](const Tensor& x) { return x.narrow(0, begin, length).unsqueeze(0); };
      outs.push_back(
          Plain(rows(q), rows(k), rows(v), {}, options, state ? &own : nullptr).squeeze(0));
    }
    s.push_back(own.s), z.push_back(own.z);
  }
  if (state) {
    state->s =
        s.empty() ? torch::zeros({0, q.size(1), q.size(2), v.size(2)}, v.options()) : torch::cat(s);
  }
  if (with_z) {
    state->z = z.empty() ? torch::zeros({0, q.size(1), q.size(2)}, v.options()) : torch::cat(z);
  }
  return outs.empty() ? v.clone() : torch::cat(outs);
}

// Throws if q, k and v do not match each other; `shape` is the expected shape for the message.
void CheckRows(const Tensor& q, const Tensor& k, const Tensor& v, int64_t axes, const char* shape) {
  if (q.dim() != axes || v.dim() != axes || k.sizes() != q.sizes() ||
      v.sizes().slice(0, static_cast<size_t>(axes - 1)) !=
          q.sizes().slice(0, static_cast<size_t>(axes - 1)) ||
      q.size(-1) == 0 || v.size(-1) == 0) {
    throw InputError("causal linear attention needs q, k and v of ", shape, ", D, M >= 1; got q ",
                     q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  }
  if (k.scalar_type() != q.scalar_type() || v.scalar_type() != q.scalar_type() ||
      k.device() != q.device() || v.device() != q.device()) {
    throw InputError("causal linear attention needs q, k and v of one type and device; got q ",
                     q.toString(), ", k ", k.toString(), ", v ", v.toString());
  }
}

// Throws if a state does not match `batch` sequences of q [.., H, F] and v [.., H, M].
void CheckState(const Tensor& q, const Tensor& v, int64_t batch, bool normalize,
                const CausalLinearState& state) {
  const int64_t heads = q.size(-2), features = q.size(-1), dim = v.size(-1);
  const auto fits = [&](const Tensor& x, at::IntArrayRef sizes) {
    return !x.defined() ||
           (x.sizes() == sizes && x.scalar_type() == v.scalar_type() && x.device() == v.device());
  };
  if (normalize && state.s.defined() != state.z.defined()) {
    throw InputError("causal linear attention: a state needs both s and z, or neither");
  }
  if (!fits(state.s, {batch, heads, features, dim}) ||
      (normalize && !fits(state.z, {batch, heads, features}))) {
    throw InputError("causal linear attention: a state must be s ",
                     at::IntArrayRef({batch, heads, features, dim}), " and z ",
                     at::IntArrayRef({batch, heads, features}), ", of v's type and device; got s ",
                     state.s.defined() ? state.s.sizes() : at::IntArrayRef(), ", z ",
                     state.z.defined() ? state.z.sizes() : at::IntArrayRef());
  }
}

// Whether the GPU kernels take q, k and v. The kernels' state is fp32 and a carried state has v's
// type, so the kernels take only fp32 if a state is carried.
bool TakesCuda(const Tensor& q, const Tensor& v, const CausalLinearState* state) {
  if constexpr (kHasCuda) {
    return CudaAttention(q) && (!state || q.scalar_type() == torch::kFloat32) &&
           CudaCausalLinearTakes(q.size(-1), v.size(-1));
  }
  return false;
}

Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                 const CausalLinearOptions& options, CausalLinearState* state) {
  CheckCausalLinear(q, k, v, lengths, options, state);
  if constexpr (kHasFused) {
    // The kernel's state is fp32 and a carried state has v's type, so the kernel takes only fp32 if
    // a state is carried.
    if (state ? Fused(q) : FusedAttention(q)) {
      return FusedCausalLinear(q, k, v, lengths, {}, options, state);
    }
  }
  if constexpr (kHasCuda) {
    if (TakesCuda(q, v, state)) return CudaCausalLinear(q, k, v, lengths, {}, options, state);
  }
  return Plain(q, k, v, lengths, options, state);
}

Tensor Packed(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
              const CausalLinearOptions& options, CausalLinearState* state) {
  CheckCausalLinearPacked(q, k, v, cu_seqlens, options, state);
  const Tensor offsets = CausalLinearOffsets(cu_seqlens, q.size(0));
  if constexpr (kHasFused) {
    if (state ? Fused(q) : FusedAttention(q)) {
      return FusedCausalLinear(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), {}, offsets, options,
                               state)
          .squeeze(0);
    }
  }
  if constexpr (kHasCuda) {
    if (TakesCuda(q, v, state)) {
      return CudaCausalLinear(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), {},
                              offsets.to(q.device()), options, state)
          .squeeze(0);
    }
  }
  return PlainPacked(q, k, v, offsets, options, state);
}

}  // namespace

void CheckCausalLinear(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lengths,
                       const CausalLinearOptions& options, const CausalLinearState* state) {
  CheckRows(q, k, v, 4, "[N, L, H, D] and [N, L, H, M]");
  if (q.size(1) == 0) {
    throw InputError("causal linear attention: the sequences are empty (L = 0); q is ", q.sizes());
  }
  CheckLengths("causal linear attention", lengths, q, /*dense=*/true);
  if (state) CheckState(q, v, q.size(0), options.normalize, *state);
}

void CheckCausalLinearPacked(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& cu_seqlens, const CausalLinearOptions& options,
                             const CausalLinearState* state) {
  CheckRows(q, k, v, 3, "[T, H, D] and [T, H, M]");
  if (!cu_seqlens.defined() || cu_seqlens.dim() != 1 || cu_seqlens.size(0) == 0 ||
      cu_seqlens.scalar_type() != torch::kInt64) {
    throw InputError("causal linear attention: cu_seqlens must be int64 [N + 1]");
  }
  if (state) CheckState(q, v, cu_seqlens.size(0) - 1, options.normalize, *state);
}

bool CausalLinearHasGpuKernels(int64_t dim, int64_t value_dim) {
  if constexpr (kHasCuda) return CudaCausalLinearTakes(dim, value_dim);
  return false;
}

int64_t CausalLinearKeptSize(const Tensor& q, const Tensor& v, int64_t sequences) {
  if constexpr (!kHasFused) return 0;
  const auto size = [](const Tensor& x, int64_t axis) { return static_cast<size_t>(x.size(axis)); };
  const size_t batch = sequences > 0 ? static_cast<size_t>(sequences) : size(q, 0);
  return static_cast<int64_t>(kernels::CausalLinearKept(
      {batch, size(q, 1), size(q, 2), size(q, 3), size(v, 3)}, sequences > 0));
}

Tensor CausalLinearOffsets(const Tensor& cu_seqlens, int64_t rows) {
  const Tensor offsets = cu_seqlens.to(torch::kCPU).contiguous();
  if (!offsets.has_storage() || !offsets.storage().data()) {
    throw InputError(
        "causal linear attention: cu_seqlens has a shape but no data (it is traced); pass its "
        "values");
  }
  const auto* at = offsets.data_ptr<int64_t>();
  const int64_t batch = offsets.size(0) - 1;
  for (int64_t n = 0; n < batch; ++n) {
    if (at[n + 1] < at[n]) {
      throw InputError("causal linear attention: cu_seqlens decreases from ", at[n], " to ",
                       at[n + 1], " at sequence ", n);
    }
  }
  if (at[0] != 0 || at[batch] != rows) {
    throw InputError("causal linear attention: cu_seqlens must go from 0 to T = ", rows,
                     "; it goes from ", at[0], " to ", at[batch]);
  }
  return offsets;
}

Tensor CausalLinearAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& lengths, const CausalLinearOptions& options) {
  return Attention(q, k, v, lengths, options, nullptr);
}

Tensor CausalLinearAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& lengths, const CausalLinearOptions& options,
                             CausalLinearState& state) {
  return Attention(q, k, v, lengths, options, &state);
}

Tensor CausalLinearAttentionPacked(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& cu_seqlens, const CausalLinearOptions& options) {
  return Packed(q, k, v, cu_seqlens, options, nullptr);
}

Tensor CausalLinearAttentionPacked(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& cu_seqlens, const CausalLinearOptions& options,
                                   CausalLinearState& state) {
  return Packed(q, k, v, cu_seqlens, options, &state);
}

}  // namespace linnet::ops
