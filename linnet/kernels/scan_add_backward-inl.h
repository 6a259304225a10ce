// The backward of scans that write k v^T (ScanWrite::kAdd), compiled once for each instruction set.
//
// As in causal linear attention, sweeps with permuted arguments compute the gradients dq, dk, dv.
// For dq, a sweep runs forwards through a segment, from the state that the forward kept. For dk and
// dv, sweeps then run backwards through it, from dS, the gradient of the state after the segment.
// Blocks are scaled as in scan_block-inl.h. The gradients of the logarithms of decay are
//
//   dg_t = dg_{t+1} + q_t * dq_t - k_t * dk_t
//
// starting, after a segment's last position, from the row sums of S * dS.
#if defined(LINNET_KERNELS_SCAN_ADD_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_SCAN_ADD_BACKWARD_INL_H_
#undef LINNET_KERNELS_SCAN_ADD_BACKWARD_INL_H_
#else
#define LINNET_KERNELS_SCAN_ADD_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "linnet/kernels/scan.h"
#include "linnet/kernels/scan_block-inl.h"
#include "linnet/kernels/scan_kept.h"
#include "linnet/kernels/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Multiplies each column of a state, which is stored in strips, by its factor.
inline HWY_NOINLINE void ScaleStripColumns(size_t rows, size_t columns, const float* factors,
                                           float* s) {
  const F32 d;
  ForStrips(rows, columns, [&](size_t, size_t c, size_t width, size_t at) HWY_ATTR {
    for (size_t i = 0; i < width; i += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, s + at + i), hn::Load(d, factors + c + i)), d, s + at + i);
    }
  });
}

// to[c] = the sum over the rows of x * y, which are both stored in strips.
inline HWY_NOINLINE void SumProducts(size_t rows, size_t columns, const float* x, const float* y,
                                     float* to) {
  const F32 d;
  Clear(to, columns);
  ForStrips(rows, columns, [&](size_t, size_t c, size_t width, size_t at) HWY_ATTR {
    for (size_t i = 0; i < width; i += kLanes) {
      const Vec sum = hn::Load(d, to + c + i);
      hn::Store(hn::MulAdd(hn::Load(d, x + at + i), hn::Load(d, y + at + i), sum), d, to + c + i);
    }
  });
}

class ScanAddBackwardHead {
 public:
  HWY_INLINE ScanAddBackwardHead(const ScanShape& shape, const ScanOptions& options,
                                 const ScanBackwardArgs& args, float* scratch, size_t n, size_t h)
      : options_(options),
        args_(args),
        size_(shape, options),
        dp_(size_.dp),
        mp_(size_.mp),
        place_(shape, options, args.lengths, args.offsets, n, h),
        pieces_(size_, scratch),
        block_(shape, options, args.in, place_, pieces_.block),
        q_rows_(place_.Shared(args.in.q, size_.dim)),
        k_rows_(place_.Shared(args.in.k, size_.dim)),
        v_rows_(place_.In(args.in.v, size_.value_dim)),
        out_rows_(place_.In(args.out, size_.value_dim)),
        grad_out_rows_(place_.In(args.grad_out, size_.value_dim)),
        grad_q_rows_(place_.In(args.grad.q, size_.dim)),
        grad_k_rows_(place_.In(args.grad.k, size_.dim)),
        grad_v_rows_(place_.In(args.grad.v, size_.value_dim)) {}

  HWY_INLINE void Run() {
    LoadFinalGradient();
    for (size_t s = ScanLayout::Of(place_.length); s-- > 0;) {
      Forwards(s);
      for (size_t b = blocks_; b-- > 0;) {
        block_.Restart(starts_[b], starts_[b + 1] - starts_[b]);
        GradientsOfKAndV();
      }
    }
    StoreInitialGradient();
  }

 private:
  bool WantsDecay() const { return block_.decays() && args_.grad.decay.data != nullptr; }
  Block Own() const { return {block_.begin(), block_.tokens(), false}; }
  template <typename T>
  Rows<T> Reversed(Rows<T> x) const {
    return {x.Row(block_.tokens() - 1), -x.stride};
  }

  // The caller's grad_s [D, M] and grad_z [D] are dense; here, z is the last column of the state.
  HWY_INLINE void LoadFinalGradient() {
    const size_t m = size_.value_dim, columns = size_.columns;
    Clear(pieces_.behind_dm, dp_ * mp_);
    Clear(pieces_.behind_md, dp_ * mp_);
    if (!args_.grad_s && !(options_.normalize && args_.grad_z)) return;
    Clear(pieces_.dense, size_.dim * columns);
    for (size_t d = 0; d < size_.dim; ++d) {
      const size_t row = place_.index * size_.dim + d;
      if (args_.grad_s) {
        std::memcpy(pieces_.dense + d * columns, args_.grad_s + row * m, m * sizeof(float));
      }
      if (options_.normalize && args_.grad_z) pieces_.dense[d * columns + m] = args_.grad_z[row];
    }
    LoadState(pieces_.dense, size_.dim, columns, pieces_.behind_dm);
    LoadTransposed(pieces_.dense, size_.dim, columns, pieces_.behind_md);
  }
  HWY_INLINE void StoreInitialGradient() const {
    const size_t m = size_.value_dim, columns = size_.columns;
    StoreState(pieces_.behind_dm, size_.dim, columns, pieces_.dense);
    for (size_t d = 0; d < size_.dim; ++d) {
      const size_t row = place_.index * size_.dim + d;
      const float* g = pieces_.dense + d * columns;
      if (args_.grad_s0) std::memcpy(args_.grad_s0 + row * m, g, m * sizeof(float));
      if (args_.grad_z0 && options_.normalize) args_.grad_z0[row] = g[m];
    }
  }

  // Computes a segment's gradients of q and records where its blocks begin. With decays, also
  // computes the row sums of S * dS after the segment.
  HWY_INLINE void Forwards(size_t segment) {
    segment_ = segment * kScanSegment;
    const size_t end = std::min(segment_ + kScanSegment, place_.length);
    const float* kept = args_.kept + (place_.states + segment) * size_.dim * size_.columns;
    Clear(pieces_.front, dp_ * mp_);
    LoadTransposed(kept, size_.dim, size_.columns, pieces_.front);
    blocks_ = 0;
    for (size_t at = segment_; at < end; at += block_.tokens()) {
      block_.Start(at, end - at);
      starts_[blocks_++] = at;
      GradientsOfQ(end);
    }
    starts_[blocks_] = end;
    if (WantsDecay()) {
      SumProducts(mp_, dp_, pieces_.front, pieces_.behind_md, pieces_.decay_sums);
      for (size_t d = 1; d < dp_ && !block_.keyed(); ++d) {
        pieces_.decay_sums[0] += pieces_.decay_sums[d];
      }
    }
  }

  // The block's keys and values. These are the inputs' rows in place if the rows are whole vectors,
  // lie close together, and need no decay factors (keys) and no column for z (values). Otherwise
  // the rows are packed.
  HWY_INLINE Rows<const float> Keys() {
    if (!block_.decays()) {
      return k_rows_.Read(FeatureMap::kIdentity, Own(), place_.valid, pieces_.block.keys);
    }
    block_.PackKeys();
    return ScanBlock::Const(block_.given_keys());
  }
  HWY_INLINE Rows<const float> Values() {
    if (!options_.normalize) {
      return v_rows_.Read(FeatureMap::kIdentity, Own(), place_.valid, pieces_.block.values);
    }
    block_.PackGiven();
    return ScanBlock::Const(block_.given_values());
  }
  // Gradients of the numerators and, in the column of z, of the denominator.
  HWY_INLINE Rows<const float> OutGradients() {
    if (!options_.normalize) return grad_out_rows_.Read(Own(), pieces_.go);
    const size_t n = block_.tokens(), m = size_.value_dim;
    Reciprocals(n, args_.kept + place_.denominators + block_.begin(), scale_);
    const Rows<float> to{pieces_.go, static_cast<ptrdiff_t>(mp_)};
    ScaleRows<false, false>(n, m, mp_, grad_out_rows_.Of(Own()), {nullptr, 0}, 1.0f, scale_,
                            pieces_.block.ones, to);
    for (size_t t = 0; t < n; ++t) {
      const float* out = out_rows_.At(block_.begin() + t);
      Vec sum = hn::Zero(F32());
      ForVectors(m, [&](size_t i, size_t used) HWY_ATTR {
        sum = hn::NegMulAdd(hn::Load(F32(), to.Row(t) + i), LoadN(out + i, used), sum);
      });
      to.Row(t)[m] = SumOf(sum);
    }
    return ScanBlock::Const(to);
  }

  // Destination of a gradient's finished rows: the tensor if possible, else `pack`.
  HWY_INLINE Rows<float> Results(const HeadRows<float>& rows, bool wanted, bool pack_only,
                                 size_t padded, float* pack) const {
    if (wanted && !pack_only) return rows.Results(Own(), pack);
    return {pack, static_cast<ptrdiff_t>(padded)};
  }

  HWY_INLINE void GradientsOfQ(size_t end) {
    const size_t n = block_.tokens();
    const bool wanted = args_.grad.q.data != nullptr;
    if (block_.decays()) ScaleStripColumns(mp_, dp_, block_.decay(), pieces_.front);
    const Rows<const float> k = Keys(), v = Values(), g = OutGradients();
    Ahead ahead(k.at);
    if (const size_t next = block_.begin() + n; next < end) {
      const Block rows{next, std::min(n, end - next), false};
      k_rows_.Prefetch(rows, ahead);
      v_rows_.Prefetch(rows, ahead);
      grad_out_rows_.Prefetch(rows, ahead);
      if (wanted) grad_q_rows_.Prefetch(rows, ahead);
    }
    const Rows<float> packed{pieces_.dq, static_cast<ptrdiff_t>(dp_)};
    const Rows<float> to =
        Results(grad_q_rows_, wanted, /*pack_only=*/block_.keyed(), dp_, pieces_.dq);
    const Rows<float> sums = to.at != packed.at && grad_q_rows_.InPlace() ? to : packed;
    if (block_.keyed()) {
      Sweep({n, g, v, k, sums, to}, mp_, dp_, /*set=*/true, pieces_.front, ahead);
      ScaleRows<true, false>(n, dp_, dp_, ScanBlock::Const(to), {nullptr, 0}, options_.scale,
                             nullptr, block_.read(), to);
    } else {
      for (size_t t = 0; t < n; ++t) scale_[t] = options_.scale * block_.read()[t];
      Sweep({n, g, v, k, sums, to, Finish::kScale, scale_}, mp_, dp_, /*set=*/true, pieces_.front,
            ahead);
    }
    if (wanted) grad_q_rows_.Store(Own(), to, pieces_.dq);
    if (WantsDecay()) KeepProducts(to);
  }

  // Keeps q * dq of the block's rows for the gradients of the decays.
  HWY_NOINLINE void KeepProducts(Rows<float> dq) {
    const F32 d;
    const Rows<const float> q = block_.q_in();
    for (size_t t = 0; t < block_.tokens(); ++t) {
      float* to = pieces_.products + (block_.begin() + t - segment_) * dp_;
      Vec sum = hn::Zero(d);
      ForVectors(size_.dim, [&](size_t i, size_t used) HWY_ATTR {
        const Vec product = hn::Mul(LoadN(q.Row(t) + i, used), LoadN(dq.Row(t) + i, used));
        sum = hn::Add(sum, product);
        hn::Store(product, d, to + i);
      });
      if (!block_.keyed()) to[0] = SumOf(sum);
    }
  }

  HWY_INLINE void GradientsOfKAndV() {
    const size_t n = block_.tokens();
    const bool wants_k = args_.grad.k.data != nullptr, wants_v = args_.grad.v.data != nullptr;
    const Rows<const float> k = Reversed(Keys()), v = Reversed(Values()),
                            g = Reversed(OutGradients());
    block_.PackQ();
    const Rows<const float> q = Reversed(ScanBlock::Const(block_.q()));
    Ahead ahead(k.at);
    if (block_.begin() > 0) {
      const Block rows{block_.begin() - 1, std::min(n, block_.begin()), true};
      if (wants_k) grad_k_rows_.Prefetch(rows, ahead);
      if (wants_v) grad_v_rows_.Prefetch(rows, ahead);
      q_rows_.Prefetch(rows, ahead);
    }
    const Rows<float> k_packed{pieces_.dk, static_cast<ptrdiff_t>(dp_)};
    const Rows<float> dk = Results(grad_k_rows_, wants_k, block_.keyed(), dp_, pieces_.dk);
    const Rows<float> k_sums = dk.at != k_packed.at && grad_k_rows_.InPlace() ? dk : k_packed;
    const bool scales = block_.decays() && !block_.keyed();
    for (size_t t = 0; t < n && scales; ++t) scale_[t] = block_.write()[n - 1 - t];
    Sweep({n, v, g, q, Reversed(k_sums), Reversed(dk), scales ? Finish::kScale : Finish::kNone,
           scale_},
          mp_, dp_, /*set=*/true, pieces_.behind_md, ahead);
    if (block_.keyed()) {
      ScaleRows<true, false>(n, dp_, dp_, ScanBlock::Const(dk), {nullptr, 0}, 1.0f, nullptr,
                             block_.write(), dk);
    }
    const Rows<float> v_packed{pieces_.dv, static_cast<ptrdiff_t>(mp_)};
    const Rows<float> dv = Results(grad_v_rows_, wants_v, options_.normalize, mp_, pieces_.dv);
    const Rows<float> v_sums = dv.at != v_packed.at && grad_v_rows_.InPlace() ? dv : v_packed;
    Sweep({n, k, q, g, Reversed(v_sums), Reversed(dv)}, dp_, mp_, /*set=*/true, pieces_.behind_dm,
          ahead);
    if (WantsDecay()) StoreDecay(dk);
    Finish(grad_k_rows_, wants_k, size_.dim, dk, pieces_.dk);
    Finish(grad_v_rows_, wants_v, size_.value_dim, dv, pieces_.dv);
    if (!block_.decays()) return;
    ScaleStrips(dp_, mp_, block_.decay(), pieces_.behind_dm);
    ScaleStripColumns(mp_, dp_, block_.decay(), pieces_.behind_md);
  }

  // Stores packed rows, and zeros for masked positions.
  HWY_INLINE void Finish(const HeadRows<float>& rows, bool wanted, size_t width, Rows<float> from,
                         const float* pack) const {
    if (!wanted) return;
    rows.Store(Own(), from, pack);
    for (size_t t = block_.seen(); t < block_.tokens(); ++t) {
      std::fill_n(rows.At(block_.begin() + t), width, 0.0f);
    }
  }

  // Computes and stores dg_t from the block's last position to its first.
  HWY_NOINLINE void StoreDecay(Rows<float> dk) {
    const F32 d;
    const size_t width = block_.keyed() ? size_.dim : 1;
    const HeadRows<float> rows = place_.In(args_.grad.decay, width);
    const Rows<const float> k = block_.k_in();
    float* const sums = pieces_.decay_sums;
    for (size_t t = block_.tokens(); t-- > 0;) {
      const bool seen = t < block_.seen();
      const float* products = pieces_.products + (block_.begin() + t - segment_) * dp_;
      float* to = rows.At(block_.begin() + t);
      if (!seen) std::fill_n(to, width, 0.0f);
      Vec all = hn::Zero(d);
      ForVectors(size_.dim, [&](size_t i, size_t used) HWY_ATTR {
        Vec change = hn::Zero(d);
        if (seen) change = hn::Neg(hn::Mul(LoadN(k.Row(t) + i, used), LoadN(dk.Row(t) + i, used)));
        all = hn::Add(all, change);
        if (!block_.keyed()) return;
        const Vec sum = hn::Add(hn::Load(d, sums + i), hn::Add(change, hn::Load(d, products + i)));
        hn::Store(sum, d, sums + i);
        if (seen) StoreN(sum, to + i, used);
      });
      if (block_.keyed()) continue;
      sums[0] += products[0] + SumOf(all);
      if (seen) *to = sums[0];
    }
  }

  const ScanOptions& options_;
  const ScanBackwardArgs& args_;
  const ScanSizes size_;
  const size_t dp_, mp_;
  const ScanPlace place_;
  const ScanAddBackwardPieces pieces_;
  ScanBlock block_;
  const HeadRows<const float> q_rows_, k_rows_, v_rows_, out_rows_, grad_out_rows_;
  const HeadRows<float> grad_q_rows_, grad_k_rows_, grad_v_rows_;
  float scale_[kScanBlock + kPad];
  size_t segment_ = 0;  // first position of the segment
  size_t blocks_ = 0, starts_[kScanSegment + 1];
};

void ScanAddBackwardBody(const ScanShape& shape, const ScanOptions& options,
                         const ScanBackwardArgs& args, float* scratch, size_t n, size_t h) {
  ScanAddBackwardHead(shape, options, args, scratch, n, h).Run();
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_SCAN_ADD_BACKWARD_INL_H_
