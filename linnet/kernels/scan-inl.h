// The Highway body of scan.h, compiled once for each instruction set: the forward and the step. The
// backward is in scan_backward-inl.h and scan_add_backward-inl.h.
//
// The forward walks over blocks of positions. The values that a block writes are inputs or are
// solved first, from a triangular system (see scan_block-inl.h). Then one Sweep() of sweep-inl.h
// adds them to the state and reads the state at each position, as in causal linear attention.
#if defined(LINNET_KERNELS_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_SCAN_INL_H_
#undef LINNET_KERNELS_SCAN_INL_H_
#else
#define LINNET_KERNELS_SCAN_INL_H_
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

// The forward of one head of one sequence.
class ScanForwardHead {
 public:
  HWY_INLINE ScanForwardHead(const ScanShape& shape, const ScanOptions& options,
                             const ScanForwardArgs& args, float* scratch, size_t n, size_t h)
      : options_(options),
        args_(args),
        size_(shape, options),
        place_(shape, options, args.lengths, args.offsets, n, h),
        pieces_(size_, scratch),
        block_(shape, options, args.in, place_, pieces_.block),
        q_rows_(place_.Shared(args.in.q, size_.dim)),
        k_rows_(place_.Shared(args.in.k, size_.dim)),
        v_rows_(place_.In(args.in.v, size_.value_dim)),
        decay_rows_(place_.In(args.in.decay, size_.dim)),
        out_rows_(place_.In(args.out, size_.value_dim)) {}

  HWY_INLINE void Run() {
    Clear(pieces_.s, size_.dp * size_.mp);
    if (args_.s) LoadInitial();
    for (size_t at = 0; at < place_.length; at += block_.tokens()) {
      if (args_.kept && at % kScanSegment == 0) {
        const size_t state = place_.states + at / kScanSegment;
        StoreState(pieces_.s, size_.dim, size_.columns,
                   args_.kept + state * size_.dim * size_.columns);
      }
      const size_t segment = (at / kScanSegment + 1) * kScanSegment;
      block_.Start(at, std::min(segment, place_.length) - at);
      RunBlock();
    }
    if (args_.s) StoreFinal();
  }

 private:
  // The caller's s [D, M] and z [D] are dense; here, z is the last column of the state.
  HWY_INLINE void LoadInitial() {
    const size_t m = size_.value_dim;
    const float* s = args_.s + place_.index * size_.dim * m;
    if (!options_.normalize) return LoadState(s, size_.dim, m, pieces_.s);
    for (size_t d = 0; d < size_.dim; ++d) {
      std::memcpy(pieces_.dense + d * (m + 1), s + d * m, m * sizeof(float));
      pieces_.dense[d * (m + 1) + m] = args_.z ? args_.z[place_.index * size_.dim + d] : 0.0f;
    }
    LoadState(pieces_.dense, size_.dim, m + 1, pieces_.s);
  }
  HWY_INLINE void StoreFinal() {
    const size_t m = size_.value_dim;
    float* s = args_.s + place_.index * size_.dim * m;
    if (!options_.normalize) return StoreState(pieces_.s, size_.dim, m, s);
    StoreState(pieces_.s, size_.dim, m + 1, pieces_.dense);
    for (size_t d = 0; d < size_.dim; ++d) {
      std::memcpy(s + d * m, pieces_.dense + d * (m + 1), m * sizeof(float));
      if (args_.z) args_.z[place_.index * size_.dim + d] = pieces_.dense[d * (m + 1) + m];
    }
  }

  HWY_INLINE void RunBlock() {
    if (Solves(options_)) block_.PackA();
    // The first position's y reads the state before this position's decay.
    if (block_.two()) ReadState(0, 1, /*set=*/true);
    if (block_.decays()) ScaleStrips(size_.dp, size_.mp, block_.decay(), pieces_.s);
    const Block own{block_.begin(), block_.tokens(), false};
    Rows<const float> keys{pieces_.block.keys, static_cast<ptrdiff_t>(size_.dp)};
    Rows<const float> values{pieces_.block.values, static_cast<ptrdiff_t>(size_.mp)};
    if (block_.decays() || Solves(options_)) {
      block_.PackKeys();
    } else {
      keys = k_rows_.Read(FeatureMap::kIdentity, own, place_.valid, pieces_.block.keys);
    }
    if (options_.write == ScanWrite::kAdd && !options_.normalize) {
      values = v_rows_.Read(FeatureMap::kIdentity, own, place_.valid, pieces_.block.values);
    } else if (Gives(options_)) {
      block_.PackGiven();
    }
    if (block_.two()) {
      if (block_.tokens() > 1) ReadState(1, block_.tokens() - 1, /*set=*/true);
    } else if (Solves(options_)) {
      block_.PackSolved(block_.solved_values());
      ReadState(0, block_.tokens(), /*set=*/false);
    }
    if (Solves(options_)) block_.SolveWithin(block_.solved_values());
    Read(own, keys, values);
  }

  // y_t (+)= a'_t S for positions first .. first + tokens - 1 of the block. `set` overwrites y_t.
  HWY_INLINE void ReadState(size_t first, size_t tokens, bool set) {
    const Rows<float> a = block_.a(), y = block_.solved_values();
    for (size_t c = 0; c < size_.mp; c += kStrip) {
      const size_t width = std::min(kStrip, size_.mp - c);
      Product(tokens, size_.dp, width, {a.Row(first), a.stride, 1},
              {pieces_.s + c * size_.dp, static_cast<ptrdiff_t>(width)},
              {y.Row(first) + c, y.stride}, set);
    }
  }

  // Adds the block's writes to the state, and reads it at each position.
  HWY_INLINE void Read(const Block& own, Rows<const float> keys, Rows<const float> values) {
    // If each row of q has a single decay factor, it is applied to the result instead of q.
    const bool scale_out = !block_.keyed() && !block_.two();
    Rows<const float> q{pieces_.block.q, static_cast<ptrdiff_t>(size_.dp)};
    float scale[kScanBlock];
    if (scale_out) {
      q = q_rows_.Read(own, pieces_.block.q);
      for (size_t t = 0; t < own.tokens; ++t) scale[t] = options_.scale * block_.read()[t];
    } else {
      block_.PackQ();
    }
    Ahead ahead(q.at);
    Prefetch({own.first + own.tokens, own.tokens, false}, ahead);
    const Rows<float> packed{pieces_.out, static_cast<ptrdiff_t>(size_.mp)};
    const bool direct = !options_.normalize && !block_.two();
    const Rows<float> to = direct ? out_rows_.Results(own, pieces_.out) : packed;
    const Rows<float> sums = direct && out_rows_.InPlace() ? to : packed;
    const size_t rows = block_.two() ? 2 * own.tokens : own.tokens;
    const bool finish = scale_out && !options_.normalize;
    Sweep({rows, q, keys, values, sums, to, finish ? Finish::kScale : Finish::kNone, scale},
          size_.dp, size_.mp, /*set=*/true, pieces_.s, ahead);
    if (direct) {
      out_rows_.Store(own, to, pieces_.out);
    } else if (block_.two()) {
      const Rows<float> own_rows{packed.Row(1), 2 * packed.stride};
      out_rows_.Store(own, own_rows, own_rows.at);
    } else {
      Normalize(own, scale_out ? scale : nullptr, packed);
    }
  }

  // out_t = scale[t] numerator_t / (scale[t] denominator_t + eps). A null scale means 1.
  HWY_INLINE void Normalize(const Block& own, const float* scale, Rows<float> sums) const {
    for (size_t t = 0; t < own.tokens; ++t) {
      const float factor = scale ? scale[t] : 1.0f;
      const float den = factor * sums.Row(t)[size_.value_dim] + options_.eps;
      if (args_.kept) args_.kept[place_.denominators + own.first + t] = den;
      const Vec weight = hn::Set(F32(), factor * Reciprocal(den));
      float* to = out_rows_.At(own.first + t);
      const float* from = sums.Row(t);
      ForVectors(size_.value_dim, [&](size_t i, size_t used) HWY_ATTR {
        StoreN(hn::Mul(hn::Load(F32(), from + i), weight), to + i, used);
      });
    }
  }

  HWY_INLINE void Prefetch(Block next, Ahead& ahead) const {
    if (next.first >= place_.length) return;
    next.tokens = std::min(next.tokens, place_.length - next.first);
    q_rows_.Prefetch(next, ahead);
    k_rows_.Prefetch(next, ahead);
    v_rows_.Prefetch(next, ahead);
    if (block_.keyed()) decay_rows_.Prefetch(next, ahead);
    out_rows_.Prefetch(next, ahead);
  }

  const ScanOptions& options_;
  const ScanForwardArgs& args_;
  const ScanSizes size_;
  const ScanPlace place_;
  const ScanForwardPieces pieces_;
  ScanBlock block_;
  const HeadRows<const float> q_rows_, k_rows_, v_rows_, decay_rows_;
  const HeadRows<float> out_rows_;
};

void ScanForwardBody(const ScanShape& shape, const ScanOptions& options,
                     const ScanForwardArgs& args, float* scratch, size_t n, size_t h) {
  ScanForwardHead(shape, options, args, scratch, n, h).Run();
}

// The rows of one position of one head with which a step updates and reads the state S. The step
// writes k y^T (kRwkv7: b y^T + k v^T).
struct StepRows {
  const float *q, *k, *v;
  const float* decay;     // [D]: e^g
  const float* erase;     // [D]: y includes S^T erase, with S before the decay; if null, y is v
  const float* strength;  // kTwoSided: [M], the factors w of v; else null
  const float* b;         // kRwkv7: [D]; else null
  float beta;             // kDelta: the factor of v; else 1
};

// Steps kVectors vectors of columns from `column` on; the last one has `used` columns.
template <size_t kVectors>
HWY_INLINE void StepColumns(const StepRows& x, size_t dim, size_t value_dim, size_t column,
                            size_t used, float scale, float* HWY_RESTRICT s,
                            float* HWY_RESTRICT out) {
  const F32 d;
  const auto width = [&](size_t c) { return c + 1 == kVectors ? used : kLanes; };
  Vec v[kVectors], y[kVectors], sum[kVectors];
  for (size_t c = 0; c < kVectors; ++c) {
    v[c] = LoadN(x.v + column + c * kLanes, width(c));
    y[c] = x.b ? hn::Zero(d) : hn::Mul(v[c], hn::Set(d, x.beta));
    if (x.strength) y[c] = hn::Mul(v[c], LoadN(x.strength + column + c * kLanes, width(c)));
    sum[c] = hn::Zero(d);
  }
  for (size_t r = 0; r < dim && x.erase; ++r) {
    const Vec a = hn::Set(d, x.erase[r]);
    for (size_t c = 0; c < kVectors; ++c) {
      y[c] = hn::MulAdd(a, LoadN(s + r * value_dim + column + c * kLanes, width(c)), y[c]);
    }
  }
  for (size_t r = 0; r < dim; ++r) {
    const Vec decay = hn::Set(d, x.decay[r]), k = hn::Set(d, x.k[r]), q = hn::Set(d, x.q[r]);
    for (size_t c = 0; c < kVectors; ++c) {
      float* at = s + r * value_dim + column + c * kLanes;
      Vec next = hn::Mul(LoadN(at, width(c)), decay);
      next = hn::MulAdd(hn::Set(d, x.b ? x.b[r] : x.k[r]), y[c], next);
      if (x.b) next = hn::MulAdd(k, v[c], next);
      StoreN(next, at, width(c));
      sum[c] = hn::MulAdd(q, next, sum[c]);
    }
  }
  for (size_t c = 0; c < kVectors; ++c) {
    StoreN(hn::Mul(sum[c], hn::Set(d, scale)), out + column + c * kLanes, width(c));
  }
}

// Fills `decay` [D] and `erase` [D] of one position.
HWY_INLINE void StepFactors(const ScanShape& shape, const ScanOptions& options,
                            const ScanTensors<const float>& in, size_t n, size_t h, const float* k,
                            float* HWY_RESTRICT decay, float* HWY_RESTRICT erase) {
  const F32 d;
  const bool keyed = options.decay == ScanDecay::kKey;
  const float* g = options.decay == ScanDecay::kNone ? nullptr : in.decay.At(n, 0, h);
  const float* e = Solves(options) ? in.erase.At(n, 0, h) : nullptr;
  const bool two_sided = options.write == ScanWrite::kTwoSided;
  ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
    const Vec x = g ? DecayExp(keyed ? LoadN(g + i, used) : hn::Set(d, *g)) : hn::Set(d, 1.0f);
    StoreN(x, decay + i, used);
    if (!e) return;
    Vec a = options.write == ScanWrite::kDelta ? hn::Set(d, *e) : LoadN(e + i, used);
    if (options.write == ScanWrite::kDelta || two_sided) {
      a = hn::Neg(hn::Mul(hn::Mul(a, x), LoadN(k + i, used)));
    }
    StoreN(a, erase + i, used);
  });
}

// z = decay * z + k. Returns scale / (scale q . z + eps).
HWY_INLINE float StepNormalizer(const StepRows& x, size_t dim, const ScanOptions& options,
                                float* HWY_RESTRICT z) {
  float den = 0;
  for (size_t i = 0; i < dim; ++i) {
    z[i] = x.decay[i] * z[i] + x.k[i];
    den += x.q[i] * z[i];
  }
  return options.scale * Reciprocal(options.scale * den + options.eps);
}

void ScanStepBody(const ScanShape& shape, const ScanOptions& options, const ScanStepArgs& args) {
  const size_t dim = shape.dim, value_dim = shape.value_dim;
  float* const decay = args.scratch;
  float* const erase = args.scratch + RoundUp(dim, 16);
  for (size_t n = 0; n < shape.batch; ++n) {
    const auto state = static_cast<ptrdiff_t>(args.sequences ? args.sequences[n] : n);
    for (size_t h = 0; h < shape.heads; ++h) {
      StepRows x{.q = args.in.q.At(n, 0, h / shape.group),
                 .k = args.in.k.At(n, 0, h / shape.group),
                 .v = args.in.v.At(n, 0, h),
                 .decay = decay,
                 .erase = Solves(options) ? erase : nullptr,
                 .strength = nullptr,
                 .b = nullptr,
                 .beta = 1.0f};
      if (options.write == ScanWrite::kDelta) x.beta = *args.in.erase.At(n, 0, h);
      if (options.write == ScanWrite::kTwoSided) x.strength = args.in.write.At(n, 0, h);
      if (options.write == ScanWrite::kRwkv7) x.b = args.in.write.At(n, 0, h);
      StepFactors(shape, options, args.in, n, h, x.k, decay, erase);
      float* const s = args.s + state * args.s_stride + h * dim * value_dim;
      float scale = options.scale;
      if (options.normalize) {
        scale = StepNormalizer(x, dim, options, args.z + state * args.z_stride + h * dim);
      }
      float* const out = args.out.At(n, 0, h);
      size_t c = 0;
      for (; c + 4 * kLanes <= value_dim; c += 4 * kLanes) {
        StepColumns<4>(x, dim, value_dim, c, kLanes, scale, s, out);
      }
      for (; c + 2 * kLanes <= value_dim; c += 2 * kLanes) {
        StepColumns<2>(x, dim, value_dim, c, kLanes, scale, s, out);
      }
      for (; c < value_dim; c += kLanes) {
        StepColumns<1>(x, dim, value_dim, c, std::min(kLanes, value_dim - c), scale, s, out);
      }
    }
  }
}

// Rows of one sequence of an elementwise scan.
struct ChannelPlace {
  size_t n, first, length, valid;

  ChannelPlace(const ChannelScanShape& shape, const int64_t* lengths, const int64_t* offsets,
               size_t n)
      : n(offsets ? 0 : n), first(0), length(shape.length) {
    if (offsets) {
      first = static_cast<size_t>(offsets[n]);
      length = static_cast<size_t>(offsets[n + 1]) - first;
    }
    valid =
        lengths ? std::min(length, static_cast<size_t>(std::max<int64_t>(lengths[n], 0))) : length;
  }
  template <typename T>
  T* At(const Strided<T>& x, size_t t, size_t c) const {
    return x.At(n, first + t, 0) + c;
  }
};

// Computes channels [begin, end) of sequence n.
void ChannelScanForwardBody(const ChannelScanShape& shape, const ChannelScanArgs& args, size_t n,
                            size_t begin, size_t end) {
  const ChannelPlace place(shape, args.lengths, args.offsets, n);
  for (size_t c = begin; c < end; c += kLanes) {
    const size_t used = std::min(kLanes, end - c);
    Vec h = args.h ? LoadN(args.h + n * shape.channels + c, used) : hn::Zero(F32());
    for (size_t t = 0; t < place.length; ++t) {
      if (t < place.valid) {
        const Vec decay = DecayExp(LoadN(place.At(args.g, t, c), used));
        h = hn::MulAdd(decay, h, LoadN(place.At(args.x, t, c), used));
      }
      StoreN(h, place.At(args.out, t, c), used);
    }
    if (args.h) StoreN(h, args.h + n * shape.channels + c, used);
  }
}

void ChannelScanBackwardBody(const ChannelScanShape& shape, const ChannelScanBackwardArgs& args,
                             size_t n, size_t begin, size_t end) {
  const ChannelPlace place(shape, args.lengths, args.offsets, n);
  const Vec zero = hn::Zero(F32());
  for (size_t c = begin; c < end; c += kLanes) {
    const size_t used = std::min(kLanes, end - c), at = n * shape.channels + c;
    Vec grad = args.grad_h ? LoadN(args.grad_h + at, used) : zero;
    for (size_t t = place.length; t-- > 0;) {
      grad = hn::Add(grad, LoadN(place.At(args.grad_out, t, c), used));
      const bool seen = t < place.valid;
      StoreN(seen ? grad : zero, place.At(args.grad_x, t, c), used);
      Vec grad_g = zero;
      if (seen) {
        Vec before = zero;
        if (t > 0) before = LoadN(place.At(args.out, t - 1, c), used);
        if (t == 0 && args.h0) before = LoadN(args.h0 + at, used);
        grad = hn::Mul(grad, DecayExp(LoadN(place.At(args.g, t, c), used)));
        grad_g = hn::Mul(grad, before);
      }
      StoreN(grad_g, place.At(args.grad_g, t, c), used);
    }
    if (args.grad_h0) StoreN(grad, args.grad_h0 + at, used);
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_SCAN_INL_H_
