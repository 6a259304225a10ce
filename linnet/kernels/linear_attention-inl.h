// The Highway body of linear_attention.h, compiled once for each instruction set. At each token, a
// sweep (sweep-inl.h) adds to a state and reads it. This kernel runs these two halves one after the
// other. In the forward, Accumulate() first adds all keys to the sums, then ReadOut() reads the
// sums for the queries. In the backward, the first pass is over the queries and the second over the
// keys.

// Shared by all targets.
#ifndef LINNET_KERNELS_LINEAR_ATTENTION_SHARE_
#define LINNET_KERNELS_LINEAR_ATTENTION_SHARE_

#include <cstddef>

namespace linnet::kernels {

// Part of one head's positions, from .. to - 1, and memory for sums. The first pass (over the keys
// in the forward, over the queries in the backward) writes the sums over the part's positions to
// `sums`. The caller then adds up the sums of all parts. The second pass reads these totals from
// `sums` and computes the results at the part's positions. In the forward, the sums are s, stored
// in strips (see sweep-inl.h), then z. In the backward, they are the sum of phi(q) g^T, stored in
// strips, then the sum of c phi(q), with g and c as in linear_attention.h.
struct Share {
  size_t from, to;
  float* sums;
  bool first;  // whether this is the head's first part
};

}  // namespace linnet::kernels

#endif  // LINNET_KERNELS_LINEAR_ATTENTION_SHARE_

#if defined(LINNET_KERNELS_LINEAR_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_LINEAR_ATTENTION_INL_H_
#undef LINNET_KERNELS_LINEAR_ATTENTION_INL_H_
#else
#define LINNET_KERNELS_LINEAR_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "linnet/kernels/linear_attention.h"
#include "linnet/kernels/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Tokens per block. Blocks are larger than in the causal kernel, because each half of the sweep
// uses only one state and fewer rows.
inline constexpr size_t kLinearBlock = 64;

// den_t = q_t . z.
HWY_NOINLINE void Dots(size_t tokens, size_t dp, Rows<const float> q, const float* z, float* den) {
  const F32 d;
  SumEach(tokens, den, [&](size_t t) HWY_ATTR {
    Vec sum = hn::Zero(d);
    for (size_t i = 0; i < dp; i += kLanes) {
      sum = hn::MulAdd(hn::LoadU(d, q.Row(t) + i), hn::Load(d, z + i), sum);
    }
    return sum;
  });
}

// to_t = factor_t z, or z if `factors` is null. z may have any alignment.
HWY_NOINLINE void FillRows(size_t tokens, size_t dp, const float* z, const float* factors,
                           float* HWY_RESTRICT to) {
  const F32 d;
  for (size_t t = 0; t < tokens; ++t) {
    const Vec factor = hn::Set(d, factors ? factors[t] : 1.0f);
    for (size_t i = 0; i < dp; i += kLanes) {
      hn::Store(hn::Mul(factor, hn::LoadU(d, z + i)), d, to + t * dp + i);
    }
  }
}

template <typename T>
HWY_INLINE HeadRows<T> HeadOf(const Strided<T>& x, size_t n, size_t h, size_t width) {
  return {x.data ? x.At(n, 0, h) : nullptr, x.time, width};
}

HWY_INLINE size_t ValidKeys(const LinearAttentionShape& shape, const int64_t* lengths, size_t n) {
  return lengths ? std::min(static_cast<size_t>(std::max<int64_t>(lengths[n], 0)), shape.keys)
                 : shape.keys;
}

// Names in the passes below: dp and mp are the padded D and M. d_pack and m_pack hold a block's
// rows of width D and M that are computed or cannot be used in place. d_sums and m_sums hold sums
// that become rows of a gradient. g_dm is the sum of phi(q) g^T and g_z the sum of c phi(q). s_md
// and g_md are s and g_dm, transposed.

// Computes the sums s and z over one share of the keys.
template <typename T>
HWY_INLINE void KeysForward(const LinearAttentionShape& shape,
                            const LinearAttentionOptions& options,
                            const LinearAttentionForwardArgsOf<T>& args, float* scratch, size_t n,
                            size_t h, Share share) {
  const size_t dp = Padded(shape.dim), mp = Padded(shape.value_dim);
  const HeadRows<const T> k_rows = HeadOf(args.k, n, h, shape.dim);
  const HeadRows<const T> v_rows = HeadOf(args.v, n, h, shape.value_dim);
  Arena arena(scratch);
  float* d_pack = arena.Take(kLinearBlock * dp);
  float* m_pack = arena.Take(kLinearBlock * mp);
  float* s = arena.TakeZeroed(dp * mp);
  float* z = arena.TakeZeroed(dp);
  const size_t end = std::min(share.to, ValidKeys(shape, args.lengths, n));
  for (size_t begin = share.from; begin < end; begin += kLinearBlock) {
    const Block block{begin, std::min(kLinearBlock, end - begin), false};
    const Rows<const float> k = k_rows.Read(options.feature_map, block, SIZE_MAX, d_pack);
    const Rows<const float> v = v_rows.Read(block, m_pack);
    if (options.normalize) AddRows(block.tokens, dp, k, nullptr, z);
    Ahead ahead(k.at);
    k_rows.Prefetch({begin + kLinearBlock, kLinearBlock, false}, ahead);
    v_rows.Prefetch({begin + kLinearBlock, kLinearBlock, false}, ahead);
    Accumulate(block.tokens, k, v, dp, mp, s, ahead);
  }
  std::memcpy(share.sums, s, dp * mp * sizeof(float));
  std::memcpy(share.sums + dp * mp, z, dp * sizeof(float));
}

// Computes the rows of out for one share of the queries.
template <typename T>
HWY_INLINE void QueriesForward(const LinearAttentionShape& shape,
                               const LinearAttentionOptions& options,
                               const LinearAttentionForwardArgsOf<T>& args, float* scratch,
                               size_t n, size_t h, Share share) {
  const size_t dp = Padded(shape.dim), mp = Padded(shape.value_dim), index = n * shape.heads + h;
  const HeadRows<const T> q_rows = HeadOf(args.q, n, h, shape.dim);
  const HeadRows<T> out_rows = HeadOf(args.out, n, h, shape.value_dim);
  Arena arena(scratch);
  float* d_pack = arena.Take(kLinearBlock * dp);
  float* m_pack = arena.Take(kLinearBlock * mp);
  float* s = arena.Take(dp * mp);
  float* z = arena.Take(dp);
  float den[kLinearBlock + 4], scale[kLinearBlock];
  std::memcpy(s, share.sums, dp * mp * sizeof(float));
  std::memcpy(z, share.sums + dp * mp, dp * sizeof(float));
  if (args.kept && share.first) {
    std::memcpy(args.kept + index * dp * (mp + 1), share.sums, dp * (mp + 1) * sizeof(float));
  }
  for (size_t begin = share.from; begin < share.to; begin += kLinearBlock) {
    const Block block{begin, std::min(kLinearBlock, share.to - begin), false};
    const Rows<const float> q = q_rows.Read(options.feature_map, block, SIZE_MAX, d_pack);
    if (options.normalize) {
      Dots(block.tokens, dp, q, z, den);
      for (size_t t = 0; t < block.tokens; ++t) den[t] += options.eps;
      Reciprocals(block.tokens, den, scale);
      if (args.kept) {
        const size_t denominators = shape.batch * shape.heads * dp * (mp + 1);
        std::memcpy(args.kept + denominators + index * shape.queries + begin, den,
                    block.tokens * sizeof(float));
      }
    }
    const Rows<float> to = out_rows.Results(block, m_pack);
    const Rows<float> sums{m_pack, static_cast<ptrdiff_t>(mp)};
    Ahead ahead(q.at);
    q_rows.Prefetch({begin + kLinearBlock, kLinearBlock, false}, ahead);
    out_rows.Prefetch({begin + kLinearBlock, kLinearBlock, false}, ahead);
    Operands x{block.tokens, q, q, q, out_rows.InPlace() ? to : sums, to};
    if (options.normalize) x.finish = Finish::kScale, x.scale = scale;
    ReadOut(x, dp, mp, /*set=*/true, s, ahead);
    out_rows.Store(block, to, m_pack);
  }
}

// Returns the rows in which a gradient is accumulated. These are the gradient's own rows, `to`, if
// they can be used in place and there is no first term to add to (`begin_there`). Otherwise they
// are `sums`, which may hold a first term.
template <typename T>
HWY_INLINE Rows<float> Summed(const HeadRows<T>& rows, bool begin_there, Rows<float> to,
                              float* sums, size_t padded) {
  return begin_there && rows.InPlace() ? to : Rows<float>{sums, static_cast<ptrdiff_t>(padded)};
}

// Computes grad_q for one share of the queries, and the sums over the share for grad_k and grad_v.
template <typename T>
HWY_INLINE void QueriesBackward(const LinearAttentionShape& shape,
                                const LinearAttentionOptions& options,
                                const LinearAttentionBackwardArgsOf<T>& args, float* scratch,
                                size_t n, size_t h, Share share) {
  const bool normalize = options.normalize;
  const size_t dp = Padded(shape.dim), mp = Padded(shape.value_dim), index = n * shape.heads + h;
  const HeadRows<const T> q_rows = HeadOf(args.q, n, h, shape.dim);
  const HeadRows<const T> out_rows = HeadOf(args.out, n, h, shape.value_dim);
  const HeadRows<const T> grad_out_rows = HeadOf(args.grad_out, n, h, shape.value_dim);
  const HeadRows<T> grad_q_rows = HeadOf(args.grad_q, n, h, shape.dim);
  Arena arena(scratch);
  float* d_pack = arena.Take(kLinearBlock * dp);
  float* m_pack = arena.Take(kLinearBlock * mp);
  float* d_sums = arena.Take(kLinearBlock * dp);
  float* s_md = arena.Take(dp * mp);
  float* g_dm = arena.TakeZeroed(dp * mp);
  float* g_z = arena.TakeZeroed(dp);
  float c[kLinearBlock + 4], scale[kLinearBlock];

  const float* kept = args.kept + index * dp * (mp + 1);
  const float* z = kept + dp * mp;
  const float* den = args.kept + shape.batch * shape.heads * dp * (mp + 1) + index * shape.queries;
  Transpose(kept, dp, mp, s_md);
  const Finish at_x = options.feature_map == FeatureMap::kElu ? Finish::kDerivative : Finish::kNone;
  for (size_t begin = share.from; begin < share.to; begin += kLinearBlock) {
    const Block block{begin, std::min(kLinearBlock, share.to - begin), false};
    const Rows<const float> q = q_rows.Read(options.feature_map, block, SIZE_MAX, d_pack);
    Rows<const float> g{m_pack, static_cast<ptrdiff_t>(mp)};
    if (normalize) {
      Reciprocals(block.tokens, den + begin, scale);
      NumeratorGradients<T>(block.tokens, shape.value_dim, grad_out_rows.Of(block),
                            out_rows.Of(block), scale, m_pack, c);
      AddRows(block.tokens, dp, q, c, g_z);
      FillRows(block.tokens, dp, z, c, d_sums);
    } else {
      g = grad_out_rows.Read(block, m_pack);
    }
    const Rows<float> to = grad_q_rows.Results(block, d_sums);
    Ahead ahead(q.at);
    const Block next{begin + kLinearBlock, kLinearBlock, false};
    q_rows.Prefetch(next, ahead);
    grad_out_rows.Prefetch(next, ahead);
    if (normalize) out_rows.Prefetch(next, ahead);
    grad_q_rows.Prefetch(next, ahead);
    ReadOut({block.tokens, g, g, g, Summed(grad_q_rows, !normalize, to, d_sums, dp), to, at_x,
             nullptr, q},
            mp, dp, /*set=*/!normalize, s_md, ahead);
    Accumulate(block.tokens, q, g, dp, mp, g_dm, ahead);
    grad_q_rows.Store(block, to, d_sums);
  }
  std::memcpy(share.sums, g_dm, dp * mp * sizeof(float));
  std::memcpy(share.sums + dp * mp, g_z, dp * sizeof(float));
}

// Computes grad_k and grad_v for one share of the keys.
template <typename T>
HWY_INLINE void KeysBackward(const LinearAttentionShape& shape,
                             const LinearAttentionOptions& options,
                             const LinearAttentionBackwardArgsOf<T>& args, float* scratch, size_t n,
                             size_t h, Share share) {
  const bool normalize = options.normalize;
  const size_t dp = Padded(shape.dim), mp = Padded(shape.value_dim);
  const HeadRows<const T> k_rows = HeadOf(args.k, n, h, shape.dim);
  const HeadRows<const T> v_rows = HeadOf(args.v, n, h, shape.value_dim);
  const HeadRows<T> grad_k_rows = HeadOf(args.grad_k, n, h, shape.dim);
  const HeadRows<T> grad_v_rows = HeadOf(args.grad_v, n, h, shape.value_dim);
  Arena arena(scratch);
  float* d_pack = arena.Take(kLinearBlock * dp);
  float* m_pack = arena.Take(kLinearBlock * mp);
  float* d_sums = arena.Take(kLinearBlock * dp);
  float* m_sums = arena.Take(kLinearBlock * mp);
  float* g_dm = arena.Take(dp * mp);
  float* g_md = arena.Take(dp * mp);
  float* g_z = arena.Take(dp);
  std::memcpy(g_dm, share.sums, dp * mp * sizeof(float));
  std::memcpy(g_z, share.sums + dp * mp, dp * sizeof(float));
  Transpose(g_dm, dp, mp, g_md);
  const Finish at_x = options.feature_map == FeatureMap::kElu ? Finish::kDerivative : Finish::kNone;
  const size_t valid = ValidKeys(shape, args.lengths, n), end = std::min(share.to, valid);
  for (size_t begin = share.from; begin < end; begin += kLinearBlock) {
    const Block block{begin, std::min(kLinearBlock, end - begin), false};
    const Rows<const float> k = k_rows.Read(options.feature_map, block, SIZE_MAX, d_pack);
    const Rows<const float> v = v_rows.Read(block, m_pack);
    if (normalize) FillRows(block.tokens, dp, g_z, nullptr, d_sums);
    const Rows<float> to_k = grad_k_rows.Results(block, d_sums);
    const Rows<float> to_v = grad_v_rows.Results(block, m_sums);
    Ahead ahead(k.at);
    const Block next{begin + kLinearBlock, kLinearBlock, false};
    k_rows.Prefetch(next, ahead);
    v_rows.Prefetch(next, ahead);
    grad_k_rows.Prefetch(next, ahead);
    grad_v_rows.Prefetch(next, ahead);
    ReadOut({block.tokens, v, v, v, Summed(grad_k_rows, !normalize, to_k, d_sums, dp), to_k, at_x,
             nullptr, k},
            mp, dp, /*set=*/!normalize, g_md, ahead);
    ReadOut({block.tokens, k, k, k, Summed(grad_v_rows, true, to_v, m_sums, mp), to_v}, dp, mp,
            /*set=*/true, g_dm, ahead);
    grad_k_rows.Store(block, to_k, d_sums);
    grad_v_rows.Store(block, to_v, m_sums);
  }
  for (size_t j = std::max(share.from, valid); j < share.to; ++j) {
    std::fill_n(grad_k_rows.At(j), shape.dim, T{});
    std::fill_n(grad_v_rows.At(j), shape.value_dim, T{});
  }
}

// Instances for the dispatcher, which cannot take templates.
#define LINNET_LINEAR_ATTENTION_PASS(Pass, Direction, Suffix, T)                               \
  void Linear##Pass##Suffix(const LinearAttentionShape& shape,                                 \
                            const LinearAttentionOptions& options,                             \
                            const LinearAttention##Direction##ArgsOf<T>& args, float* scratch, \
                            size_t n, size_t h, Share share) {                                 \
    Pass<T>(shape, options, args, scratch, n, h, share);                                       \
  }
#define LINNET_LINEAR_ATTENTION_OF(Suffix, T)                        \
  LINNET_LINEAR_ATTENTION_PASS(KeysForward, Forward, Suffix, T)      \
  LINNET_LINEAR_ATTENTION_PASS(QueriesForward, Forward, Suffix, T)   \
  LINNET_LINEAR_ATTENTION_PASS(QueriesBackward, Backward, Suffix, T) \
  LINNET_LINEAR_ATTENTION_PASS(KeysBackward, Backward, Suffix, T)
LINNET_LINEAR_ATTENTION_OF(F32, float)
LINNET_LINEAR_ATTENTION_OF(Bf16, BFloat16)
#undef LINNET_LINEAR_ATTENTION_OF
#undef LINNET_LINEAR_ATTENTION_PASS

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LINEAR_ATTENTION_INL_H_
