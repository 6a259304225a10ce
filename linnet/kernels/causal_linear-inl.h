// The Highway body of causal_linear.h, compiled once for each instruction set.
//
// Forward and backward use one operation, Sweep() of sweep-inl.h: for each token t of a block, it
// adds b_t v_t^T to a state s and outputs a_t s. The forward is Sweep(a = phi(q), b = phi(k), v).
// The gradients of q, k and v are the same sweep with permuted arguments. The sweeps for k and v
// run from the end of the sequence to its start.
#if defined(LINNET_KERNELS_CAUSAL_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_CAUSAL_LINEAR_INL_H_
#undef LINNET_KERNELS_CAUSAL_LINEAR_INL_H_
#else
#define LINNET_KERNELS_CAUSAL_LINEAR_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "linnet/kernels/bfloat16-inl.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/causal_linear_kept.h"
#include "linnet/kernels/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Tokens per block. At D = M = 32, a 48 kB first-level cache holds the padded copies of a block's
// rows (six arrays in the backward) and the two states that the sweeps for k and v use.
inline constexpr size_t kBlock = 32;

// Location of one head of one sequence in the tensors and in `kept`: batch index (0 for packed
// sequences), head, first row and number of rows.
struct Place {
  size_t n, h, first, length;
  size_t valid;         // keys at positions >= valid are masked out
  size_t states;        // index of the first state within `kept`
  size_t denominators;  // offset of the first denominator within `kept`, in floats

  Place(const CausalLinearShape& shape, const int64_t* lengths, const int64_t* offsets, size_t n,
        size_t h)
      : n(n), h(h), first(0), length(shape.length) {
    const size_t tokens =
        offsets ? static_cast<size_t>(offsets[shape.batch]) : shape.batch * shape.length;
    const Kept kept(shape, tokens, offsets != nullptr);
    denominators = kept.states * kept.state_size + (n * shape.heads + h) * length;
    if (offsets) {
      this->n = 0;
      first = static_cast<size_t>(offsets[n]);
      length = static_cast<size_t>(offsets[n + 1]) - first;
      denominators =
          kept.states * kept.state_size + h * static_cast<size_t>(offsets[shape.batch]) + first;
    }
    const size_t begin = Kept::First(shape, offsets, n);
    states = begin * shape.heads + h * (Kept::First(shape, offsets, n + 1) - begin);
    valid = lengths ? static_cast<size_t>(std::max<int64_t>(lengths[n], 0)) : length;
  }

  template <typename T>
  HeadRows<T> In(const Strided<T>& x, size_t width) const {
    return {x.data ? x.At(n, first, h) : nullptr, x.time, width};
  }
};

// For the tokens of a block, z_t = z + k_0 + .. + k_t and den_t = q_t . z_t, where q and k hold
// phi(q) and phi(k). Writes den, and sets z to the last z_t.
HWY_NOINLINE void Denominators(size_t tokens, size_t dp, Rows<const float> q, Rows<const float> k,
                               float* HWY_RESTRICT z, float* HWY_RESTRICT den) {
  const F32 d;
  HWY_ALIGN float part[kBlock * kLanes];
  for (size_t i = 0; i < dp; i += kLanes) {
    Vec z_t = hn::Load(d, z + i);
    for (size_t t = 0; t < tokens; ++t) {
      z_t = hn::Add(z_t, hn::LoadU(d, k.Row(t) + i));
      const Vec before = i == 0 ? hn::Zero(d) : hn::Load(d, part + t * kLanes);
      hn::Store(hn::MulAdd(z_t, hn::LoadU(d, q.Row(t) + i), before), d, part + t * kLanes);
    }
    hn::Store(z_t, d, z + i);
  }
  SumEach(tokens, den, [&](size_t t) HWY_ATTR { return hn::Load(d, part + t * kLanes); });
}

// to_t = g_t (z + k_0 + .. + k_t): gradient of phi(q) through the denominators. g_t is the gradient
// of the denominator of token t. Sets z to the last sum, z + k_0 + .. + k_t.
HWY_NOINLINE void FromFront(size_t tokens, size_t dp, Rows<const float> k, Rows<const float> g,
                            float* HWY_RESTRICT z, float* HWY_RESTRICT to) {
  const F32 d;
  for (size_t i = 0; i < dp; i += kLanes) {
    Vec z_t = hn::Load(d, z + i);
    for (size_t t = 0; t < tokens; ++t) {
      z_t = hn::Add(z_t, hn::LoadU(d, k.Row(t) + i));
      hn::Store(hn::Mul(z_t, hn::Set(d, *g.Row(t))), d, to + t * dp + i);
    }
    hn::Store(z_t, d, z + i);
  }
}

// to_t = z + g_0 q_0 + .. + g_t q_t: gradient of phi(k) through the denominators. The tokens of the
// block run backward. Sets z to the last sum.
HWY_NOINLINE void FromBehind(size_t tokens, size_t dp, Rows<const float> q, Rows<const float> g,
                             float* HWY_RESTRICT z, float* HWY_RESTRICT to) {
  const F32 d;
  for (size_t i = 0; i < dp; i += kLanes) {
    Vec z_t = hn::Load(d, z + i);
    for (size_t t = 0; t < tokens; ++t) {
      z_t = hn::MulAdd(hn::Set(d, *g.Row(t)), hn::LoadU(d, q.Row(t) + i), z_t);
      hn::Store(z_t, d, to + t * dp + i);
    }
    hn::Store(z_t, d, z + i);
  }
}

// Computes the sums s and z over one part of the sequence, starting from zero. Writes s in strips
// (sweep-inl.h), then z, to `state`.
template <typename T>
HWY_INLINE void ForwardSumsOf(const CausalLinearShape& shape, const CausalLinearOptions& options,
                              const CausalLinearForwardArgsOf<T>& args, float* scratch, size_t n,
                              size_t h, Part part, float* state) {
  const size_t dp = Padded(shape.dim), mp = Padded(shape.value_dim);
  const Place place(shape, args.lengths, args.offsets, n, h);
  const HeadRows<const T> k_rows = place.In(args.k, shape.dim);
  const HeadRows<const T> v_rows = place.In(args.v, shape.value_dim);
  Arena arena(scratch);
  float* k_pack = arena.Take(kBlock * dp);
  float* v_pack = arena.Take(kBlock * mp);
  float* s = arena.TakeZeroed(dp * mp);
  float* z = arena.TakeZeroed(dp);
  const size_t segment = SegmentLength(place.length);
  const size_t end = std::min({part.last * segment, place.length, place.valid});
  for (size_t begin = part.first * segment; begin < end; begin += kBlock) {
    const Block block{begin, std::min(kBlock, end - begin), false};
    const Rows<const float> k = k_rows.Read(options.feature_map, block, place.valid, k_pack);
    const Rows<const float> v = v_rows.Read(block, v_pack);
    if (options.normalize) AddRows(block.tokens, dp, k, nullptr, z);
    Ahead ahead(k.at);
    k_rows.Prefetch({begin + kBlock, kBlock, false}, ahead);
    v_rows.Prefetch({begin + kBlock, kBlock, false}, ahead);
    Accumulate(block.tokens, k, v, dp, mp, s, ahead);
  }
  std::memcpy(state, s, dp * mp * sizeof(float));
  std::memcpy(state + dp * mp, z, dp * sizeof(float));
}

template <typename T>
HWY_INLINE void ForwardOf(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearForwardArgsOf<T>& args, float* scratch, size_t n,
                          size_t h, Part part) {
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  const size_t dp = Padded(dim), mp = Padded(value_dim), index = n * shape.heads + h;
  const Place place(shape, args.lengths, args.offsets, n, h);
  const size_t length = place.length;
  const HeadRows<const T> q_rows = place.In(args.q, dim), k_rows = place.In(args.k, dim);
  const HeadRows<const T> v_rows = place.In(args.v, value_dim);
  const HeadRows<T> out_rows = place.In(args.out, value_dim);
  Arena arena(scratch);
  float* q_pack = arena.Take(kBlock * dp);
  float* k_pack = arena.Take(kBlock * dp);
  float* v_pack = arena.Take(kBlock * mp);
  float* out_pack = arena.Take(kBlock * mp);
  float* s = arena.TakeZeroed(dp * mp);
  float* z = arena.TakeZeroed(dp);
  float den[kBlock + 4], scale[kBlock];
  const auto padded_out = static_cast<ptrdiff_t>(mp);
  if (part.state) {
    std::memcpy(s, part.state, dp * mp * sizeof(float));
    std::memcpy(z, part.state + dp * mp, dp * sizeof(float));
  } else if (args.s) {
    LoadState(args.s + index * dim * value_dim, dim, value_dim, s);
    if (args.z) std::memcpy(z, args.z + index * dim, dim * sizeof(float));
  }

  const size_t segment = SegmentLength(length), state_size = dp * (mp + 1);
  const size_t end = std::min(part.last * segment, length);
  for (size_t begin = part.first * segment; begin < end; begin += kBlock) {
    if (args.kept && begin % segment == 0) {
      float* kept = args.kept + (place.states + begin / segment) * state_size;
      std::memcpy(kept, s, dp * mp * sizeof(float));
      std::memcpy(kept + dp * mp, z, dp * sizeof(float));
    }
    const Block block{begin, std::min(kBlock, end - begin), false};
    const Rows<const float> q = q_rows.Read(options.feature_map, block, SIZE_MAX, q_pack);
    const Rows<const float> k = k_rows.Read(options.feature_map, block, place.valid, k_pack);
    const Rows<const float> v = v_rows.Read(FeatureMap::kIdentity, block, place.valid, v_pack);
    const Rows<float> to = out_rows.Results(block, out_pack);
    const Rows<float> out = out_rows.InPlace() ? to : Rows<float>{out_pack, padded_out};
    Ahead ahead(k.at);
    if (const Block next{begin + kBlock, kBlock, false}; next.first < end) {
      q_rows.Prefetch(next, ahead);
      k_rows.Prefetch(next, ahead);
      v_rows.Prefetch(next, ahead);
      out_rows.Prefetch(next, ahead);
    }
    if (options.normalize) {
      Denominators(block.tokens, dp, q, k, z, den);
      for (size_t t = 0; t < block.tokens; ++t) den[t] += options.eps;
      Reciprocals(block.tokens, den, scale);
      if (args.kept) {
        std::memcpy(args.kept + place.denominators + begin, den, block.tokens * sizeof(float));
      }
    }
    Sweep(
        {block.tokens, q, k, v, out, to, options.normalize ? Finish::kScale : Finish::kNone, scale},
        dp, mp, /*set=*/true, s, ahead);
    out_rows.Store(block, to, out_pack);
  }

  if (args.s && end == length) {
    StoreState(s, dim, value_dim, args.s + index * dim * value_dim);
    if (args.z) std::memcpy(args.z + index * dim, z, dim * sizeof(float));
  }
}

// Inputs of the backward's sweeps. q and k hold phi(q) and phi(k). g is the gradient of the
// numerator, grad_out / den. g_den has one float per row: the gradient of the denominator,
// -(grad_out . out) / den.
struct BackwardRows {
  Rows<const float> q, k, v, g, g_den;

  BackwardRows From(size_t t) const {
    return {{q.Row(t), q.stride},
            {k.Row(t), k.stride},
            {v.Row(t), v.stride},
            {g.Row(t), g.stride},
            {g_den.Row(t), g_den.stride}};
  }
  BackwardRows Reversed() const {
    return {{q.at, -q.stride},
            {k.at, -k.stride},
            {v.at, -v.stride},
            {g.at, -g.stride},
            {g_den.at, -g_den.stride}};
  }
};

// Computes the backward sums over one part of the sequence, starting from zero. Writes the sum of
// phi(q) g^T in strips, then the sum of g_den phi(q), to `state`.
template <typename T>
HWY_INLINE void BackwardSumsOf(const CausalLinearShape& shape, const CausalLinearOptions& options,
                               const CausalLinearBackwardArgsOf<T>& args, float* scratch, size_t n,
                               size_t h, Part part, float* state) {
  const size_t dp = Padded(shape.dim), mp = Padded(shape.value_dim);
  const Place place(shape, args.lengths, args.offsets, n, h);
  const HeadRows<const T> q_rows = place.In(args.q, shape.dim);
  const HeadRows<const T> out_rows = place.In(args.out, shape.value_dim);
  const HeadRows<const T> grad_out_rows = place.In(args.grad_out, shape.value_dim);
  Arena arena(scratch);
  float* q_pack = arena.Take(kBlock * dp);
  float* g_pack = arena.Take(kBlock * mp);
  float* s = arena.TakeZeroed(dp * mp);
  float* z = arena.TakeZeroed(dp);
  float g_den[kBlock + 4], scale[kBlock];
  const size_t segment = SegmentLength(place.length);
  const size_t end = std::min(part.last * segment, place.length);
  for (size_t begin = part.first * segment; begin < end; begin += kBlock) {
    const Block block{begin, std::min(kBlock, end - begin), false};
    const Rows<const float> q = q_rows.Read(options.feature_map, block, SIZE_MAX, q_pack);
    Rows<const float> g{g_pack, static_cast<ptrdiff_t>(mp)};
    if (options.normalize) {
      Reciprocals(block.tokens, args.kept + place.denominators + begin, scale);
      NumeratorGradients<T>(block.tokens, shape.value_dim, grad_out_rows.Of(block),
                            out_rows.Of(block), scale, g_pack, g_den);
      AddRows(block.tokens, dp, q, g_den, z);
    } else {
      g = grad_out_rows.Read(block, g_pack);
    }
    Ahead ahead(q.at);
    const Block next{begin + kBlock, kBlock, false};
    q_rows.Prefetch(next, ahead);
    grad_out_rows.Prefetch(next, ahead);
    if (options.normalize) out_rows.Prefetch(next, ahead);
    Accumulate(block.tokens, q, g, dp, mp, s, ahead);
  }
  std::memcpy(state, s, dp * mp * sizeof(float));
  std::memcpy(state + dp * mp, z, dp * sizeof(float));
}

// Computes the backward of one head, one segment at a time, from the last to the first. The
// gradients of q come from sums over earlier positions (`front`). The gradients of k and v come
// from sums over later positions (`behind`).
template <typename T>
class HeadBackward {
 public:
  HWY_INLINE HeadBackward(const CausalLinearShape& shape, const CausalLinearOptions& options,
                          const CausalLinearBackwardArgsOf<T>& args, float* scratch, size_t n,
                          size_t h)
      : args_(args),
        map_(options.feature_map),
        normalize_(options.normalize),
        dim_(shape.dim),
        value_dim_(shape.value_dim),
        dp_(Padded(dim_)),
        mp_(Padded(value_dim_)),
        index_(n * shape.heads + h),
        place_(shape, args.lengths, args.offsets, n, h),
        segment_(SegmentLength(place_.length)),
        q_rows_(place_.In(args.q, dim_)),
        k_rows_(place_.In(args.k, dim_)),
        v_rows_(place_.In(args.v, value_dim_)),
        out_rows_(place_.In(args.out, value_dim_)),
        grad_out_rows_(place_.In(args.grad_out, value_dim_)),
        grad_q_rows_(place_.In(args.grad_q, dim_)),
        grad_k_rows_(place_.In(args.grad_k, dim_)),
        grad_v_rows_(place_.In(args.grad_v, value_dim_)),
        arena_(scratch),
        q_pack_(arena_.Take(kKeptRows * dp_)),
        k_pack_(arena_.Take(kKeptRows * dp_)),
        v_pack_(arena_.Take(kKeptRows * mp_)),
        g_pack_(arena_.Take(kKeptRows * mp_)),
        d_pack_(arena_.Take(kBlock * dp_)),
        m_pack_(arena_.Take(kBlock * mp_)),
        front_(arena_.TakeZeroed(dp_ * mp_)),
        behind_md_(arena_.TakeZeroed(dp_ * mp_)),
        behind_dm_(arena_.TakeZeroed(dp_ * mp_)),
        front_z_(arena_.TakeZeroed(dp_)),
        behind_z_(arena_.TakeZeroed(dp_)) {}

  // Loads the sums over the positions after those that RunSegment() will process: `state` or, if it
  // is null, the gradient of the final state.
  HWY_INLINE void LoadBehind(const float* state) {
    if (state) {
      std::memcpy(behind_dm_, state, dp_ * mp_ * sizeof(float));
      Transpose(state, dp_, mp_, behind_md_);
      std::memcpy(behind_z_, state + dp_ * mp_, dp_ * sizeof(float));
      return;
    }
    if (args_.grad_s) {
      const float* grad_s = args_.grad_s + index_ * dim_ * value_dim_;
      LoadTransposed(grad_s, dim_, value_dim_, behind_md_);
      LoadState(grad_s, dim_, value_dim_, behind_dm_);
    }
    if (args_.grad_z && normalize_) {
      std::memcpy(behind_z_, args_.grad_z + index_ * dim_, dim_ * sizeof(float));
    }
  }

  // Runs the backward of segment s: a forward sweep from the state kept at the segment's start,
  // then reverse sweeps while the segment's rows are in cache.
  HWY_INLINE void RunSegment(size_t s) {
    const size_t begin = s * segment_, end = std::min(begin + segment_, place_.length);
    const float* kept = args_.kept + (place_.states + s) * dp_ * (mp_ + 1);
    Transpose(kept, dp_, mp_, front_);
    std::memcpy(front_z_, kept + dp_ * mp_, dp_ * sizeof(float));
    Segment segment{begin, end, end - begin <= kKeptRows, {}};
    if (segment.keep) segment.rows = Read({begin, end - begin, false});
    GradientsOfQ(segment);
    GradientsOfKAndV(segment);
  }

  // Stores the gradient of the initial state: the sums over all positions.
  HWY_INLINE void StoreInitialGradient() const {
    if (args_.grad_s0) {
      StoreState(behind_dm_, dim_, value_dim_, args_.grad_s0 + index_ * dim_ * value_dim_);
    }
    if (args_.grad_z0 && normalize_) {
      std::memcpy(args_.grad_z0 + index_ * dim_, behind_z_, dim_ * sizeof(float));
    }
  }

 private:
  struct Segment {
    size_t begin, end;
    bool keep;  // whether `rows` holds all rows of the segment, read at once
    BackwardRows rows;
  };

  HWY_INLINE Rows<const float> ReadG(const Block& block) {
    if (!normalize_) return grad_out_rows_.Read(block, g_pack_);
    const size_t low = block.backwards ? block.first + 1 - block.tokens : block.first;
    Reciprocals(block.tokens, args_.kept + place_.denominators + low, scale_);
    if (block.backwards) std::reverse(scale_, scale_ + block.tokens);
    NumeratorGradients<T>(block.tokens, value_dim_, grad_out_rows_.Of(block), out_rows_.Of(block),
                          scale_, g_pack_, g_den_pack_);
    return {g_pack_, static_cast<ptrdiff_t>(mp_)};
  }

  HWY_INLINE BackwardRows Read(const Block& block) {
    return {q_rows_.Read(map_, block, SIZE_MAX, q_pack_),
            k_rows_.Read(map_, block, place_.valid, k_pack_),
            v_rows_.Read(FeatureMap::kIdentity, block, place_.valid, v_pack_),
            ReadG(block),
            {g_den_pack_, 1}};
  }

  HWY_INLINE void PrefetchInputs(const Block& next, Ahead& ahead) const {
    k_rows_.Prefetch(next, ahead);
    v_rows_.Prefetch(next, ahead);
    grad_out_rows_.Prefetch(next, ahead);
    if (normalize_) out_rows_.Prefetch(next, ahead);
    q_rows_.Prefetch(next, ahead);
  }

  // Eq. 13: grad phi(q)_i = sum_{j <= i} (g_i . v_j + g_den_i) phi(k)_j, plus the initial state's
  // contribution.
  HWY_INLINE void GradientsOfQ(const Segment& segment) {
    for (size_t at = segment.begin; at < segment.end; at += kBlock) {
      const Block block{at, std::min(kBlock, segment.end - at), false};
      const BackwardRows x = segment.keep ? segment.rows.From(at - segment.begin) : Read(block);
      const Rows<float> grad_q = grad_q_rows_.Results(block, d_pack_);
      if (normalize_) FromFront(block.tokens, dp_, x.k, x.g_den, front_z_, d_pack_);
      Ahead ahead(x.k.at);
      grad_q_rows_.Prefetch({at + kBlock, kBlock, false}, ahead);
      if (!segment.keep) {
        PrefetchInputs({at + kBlock, kBlock, false}, ahead);
      } else if (segment.begin > 0) {
        PrefetchInputs({at - segment_, kBlock, false}, ahead);
      }
      const bool direct = !normalize_ && grad_q_rows_.InPlace();
      const Rows<float> sums = direct ? grad_q : Rows<float>{d_pack_, static_cast<ptrdiff_t>(dp_)};
      Sweep({block.tokens, x.g, x.v, x.k, sums, grad_q, FinishAtX(), nullptr, x.q}, mp_, dp_,
            /*set=*/!normalize_, front_, ahead);
      grad_q_rows_.Store(block, grad_q, d_pack_);
    }
  }

  // Eqs. 14 and 15: grad phi(k)_i = sum_{j >= i} (v_i . g_j + g_den_j) phi(q)_j and grad v_i =
  // sum_{j >= i} (phi(k)_i . phi(q)_j) g_j.
  HWY_INLINE void GradientsOfKAndV(const Segment& segment) {
    for (size_t left = segment.end; left > segment.begin;) {
      const Block block{left - 1, std::min(kBlock, left - segment.begin), true};
      left -= block.tokens;
      const BackwardRows x =
          segment.keep ? segment.rows.From(block.first - segment.begin).Reversed() : Read(block);
      const Rows<float> grad_k = grad_k_rows_.Results(block, d_pack_);
      const Rows<float> grad_v = grad_v_rows_.Results(block, m_pack_);
      if (normalize_) FromBehind(block.tokens, dp_, x.q, x.g_den, behind_z_, d_pack_);
      Ahead ahead(x.k.at);
      if (left > 0) {
        const Block next{left - 1, kBlock, true};
        grad_k_rows_.Prefetch(next, ahead);
        grad_v_rows_.Prefetch(next, ahead);
        if (!segment.keep) PrefetchInputs(next, ahead);
      }
      const bool direct = !normalize_ && grad_k_rows_.InPlace();
      const Rows<float> k_sums =
          direct ? grad_k : Rows<float>{d_pack_, static_cast<ptrdiff_t>(dp_)};
      const Rows<float> v_sums =
          grad_v_rows_.InPlace() ? grad_v : Rows<float>{m_pack_, static_cast<ptrdiff_t>(mp_)};
      Sweep({block.tokens, x.v, x.g, x.q, k_sums, grad_k, FinishAtX(), nullptr, x.k}, mp_, dp_,
            /*set=*/!normalize_, behind_md_, ahead);
      Sweep({block.tokens, x.k, x.q, x.g, v_sums, grad_v}, dp_, mp_, /*set=*/true, behind_dm_,
            ahead);
      grad_k_rows_.Store(block, grad_k, d_pack_);
      grad_v_rows_.Store(block, grad_v, m_pack_);
      // The sweep also writes sums to the rows of masked keys. Their gradients must be 0.
      for (size_t t = 0; t < block.tokens && block.At(t) >= place_.valid; ++t) {
        std::fill_n(grad_k_rows_.At(block.At(t)), dim_, T{});
      }
    }
  }

  HWY_INLINE Finish FinishAtX() const {
    return map_ == FeatureMap::kElu ? Finish::kDerivative : Finish::kNone;
  }

  const CausalLinearBackwardArgsOf<T>& args_;
  const FeatureMap map_;
  const bool normalize_;
  const size_t dim_, value_dim_, dp_, mp_, index_;
  const Place place_;
  const size_t segment_;
  const HeadRows<const T> q_rows_, k_rows_, v_rows_, out_rows_, grad_out_rows_;
  const HeadRows<T> grad_q_rows_, grad_k_rows_, grad_v_rows_;
  Arena arena_;
  float *const q_pack_, *const k_pack_, *const v_pack_, *const g_pack_;  // rows of a segment
  float *const d_pack_, *const m_pack_;                                  // results of a block
  float* const front_;  // sum of v phi(k)^T [M, D] over earlier positions
  // Sums over later positions: g phi(q)^T [M, D] and phi(q) g^T [D, M].
  float *const behind_md_, *const behind_dm_;
  float *const front_z_, *const behind_z_;
  float g_den_pack_[kKeptRows + 4], scale_[kKeptRows];
};

template <typename T>
HWY_INLINE void BackwardOf(const CausalLinearShape& shape, const CausalLinearOptions& options,
                           const CausalLinearBackwardArgsOf<T>& args, float* scratch, size_t n,
                           size_t h, Part part) {
  HeadBackward<T> head(shape, options, args, scratch, n, h);
  head.LoadBehind(part.state);
  for (size_t s = part.last; s-- > part.first;) head.RunSegment(s);
  if (part.first == 0) head.StoreInitialGradient();
}

// Turns the sums of each part into exclusive prefix sums, in place. Row p of states [parts + 1,
// state size] becomes the sum over the parts before part p or, if `backwards`, after it. The prefix
// sums start from the dense arrays s [D, M] and z [D]; null means zero. The last row holds the
// running sum.
void ChainStates(const CausalLinearShape& shape, const float* s, const float* z, size_t parts,
                 bool backwards, float* states) {
  const size_t dp = Padded(shape.dim), mp = Padded(shape.value_dim), size = dp * (mp + 1);
  float* const last = states + parts * size;  // the running sum
  Clear(last, size);
  if (s) LoadState(s, shape.dim, shape.value_dim, last);
  if (z) std::memcpy(last + dp * mp, z, shape.dim * sizeof(float));
  for (size_t p = 0; p < parts; ++p) {
    float* const state = states + (backwards ? parts - 1 - p : p) * size;
    for (size_t i = 0; i < size; ++i) {
      const float own = state[i];
      state[i] = last[i];
      last[i] += own;
    }
  }
}

// Instances for the dispatcher, which cannot take templates.
#define LINNET_CAUSAL_LINEAR_OF(Suffix, T)                                                       \
  void ForwardSums##Suffix(const CausalLinearShape& shape, const CausalLinearOptions& options,   \
                           const CausalLinearForwardArgsOf<T>& args, float* scratch, size_t n,   \
                           size_t h, Part part, float* state) {                                  \
    ForwardSumsOf<T>(shape, options, args, scratch, n, h, part, state);                          \
  }                                                                                              \
  void Forward##Suffix(const CausalLinearShape& shape, const CausalLinearOptions& options,       \
                       const CausalLinearForwardArgsOf<T>& args, float* scratch, size_t n,       \
                       size_t h, Part part) {                                                    \
    ForwardOf<T>(shape, options, args, scratch, n, h, part);                                     \
  }                                                                                              \
  void BackwardSums##Suffix(const CausalLinearShape& shape, const CausalLinearOptions& options,  \
                            const CausalLinearBackwardArgsOf<T>& args, float* scratch, size_t n, \
                            size_t h, Part part, float* state) {                                 \
    BackwardSumsOf<T>(shape, options, args, scratch, n, h, part, state);                         \
  }                                                                                              \
  void Backward##Suffix(const CausalLinearShape& shape, const CausalLinearOptions& options,      \
                        const CausalLinearBackwardArgsOf<T>& args, float* scratch, size_t n,     \
                        size_t h, Part part) {                                                   \
    BackwardOf<T>(shape, options, args, scratch, n, h, part);                                    \
  }
LINNET_CAUSAL_LINEAR_OF(F32, float)
LINNET_CAUSAL_LINEAR_OF(Bf16, BFloat16)
#undef LINNET_CAUSAL_LINEAR_OF

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_CAUSAL_LINEAR_INL_H_
