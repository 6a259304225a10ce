// A block of positions of one head of a scan: the rows that read the state, the rows that write to
// the state, and the values that are solved within the block. Used by scan-inl.h,
// scan_add_backward-inl.h and scan_backward-inl.h.
//
// Let c_i be the sum of the logarithms of decay up to and including position i = 1 .. C of the
// block. Everything is scaled to the block's end, where the scaled state equals the true state:
//
//   rows that write    k'_i = k_i e^(c_C - c_i)      <= k_i
//   rows that read     q'_i = q_i e^(c_i - c_C)      >= q_i
//   state at the start S'   = e^(c_C) S              <= S
//
// so that S'_i = S' + sum_{j <= i} k'_j v_j^T and out_i = q'_i S'_i is a recurrence without decay.
// A block ends before c_1 - c_C, which leaves out the first position's decay, would exceed kReach
// in any channel. So a strong decay always falls on a block's first position, where it only
// multiplies the state: no factor exceeds e^kReach, and no difference of two infinities appears.
//
// Solved values: y_i = f_i + a'_i S' + sum_{j < i} (a'_i . x'_j) y_j, where x are the keys with
// which y is written. This is a triangular system of the block's size. For the delta rules,
// f = w * v, a = -b * k and x = k. For kRwkv7, f_i = sum_{j < i} (a'_i . k'_j) v_j, and a and x = b
// are inputs.
#if defined(LINNET_KERNELS_SCAN_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_SCAN_BLOCK_INL_H_
#undef LINNET_KERNELS_SCAN_BLOCK_INL_H_
#else
#define LINNET_KERNELS_SCAN_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "hwy/highway.h"
#include "linnet/kernels/scan.h"
#include "linnet/kernels/scan_kept.h"
#include "linnet/kernels/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

inline constexpr float kReach = 16.0f;
inline constexpr ptrdiff_t kSide = kScanSolveBlock;  // rows and columns of a block's matrices

// e^x for x <= 88, with a relative error of at most 1.2e-7. The result is exactly 1 for x = 0, so
// that products of weak decays have no bias. It is 0 below -87 and NaN for NaN.
HWY_INLINE Vec DecayExp(Vec x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const Vec round = hn::Set(d, 12582912.0f);  // leaves the nearest integer in the lowest bits
  const Vec least = hn::Set(d, -87.0f);
  const auto vanishes = hn::Lt(x, least);
  x = hn::IfThenElse(vanishes, least, x);
  const Vec shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), round);
  const Vec n = hn::Sub(shifted, round);
  // ln 2 in two parts; n times the larger part is exact.
  const Vec f =
      hn::NegMulAdd(n, hn::Set(d, 0x1.7f7d1cp-20f), hn::NegMulAdd(n, hn::Set(d, 0x1.62e4p-1f), x));
  // p = (e^f - 1 - f) / f^2 for |f| <= ln(2) / 2, interpolated at the Chebyshev nodes.
  Vec p = hn::Set(d, 0x1.6d10fcp-10f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.120b62p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.55551ap-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.5554dep-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.5f));
  p = hn::Add(hn::MulAdd(hn::Mul(f, f), p, f), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::IfThenZeroElse(vanishes, hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent)));
}

// 1 / x for normal x, with a relative error of at most 1.2e-7.
HWY_INLINE Vec Inverse(Vec x) {
  const Vec two = hn::Set(F32(), 2.0f);
  Vec y = hn::ApproximateReciprocal(x);
  y = hn::Mul(y, hn::NegMulAdd(x, y, two));
  return hn::Mul(y, hn::NegMulAdd(x, y, two));
}

// A matrix whose element (i, j) is at[i * across + j * along].
struct Factors {
  const float* at;
  ptrdiff_t across, along;
};

// Which elements of a matrix are not zero: all, or only those with j <= i or with j >= i.
enum class Triangle { kNone, kLower, kUpper };

// A product of two matrices, whose row i is sum_{j < count} a_ij b_j.
struct Term {
  size_t count;
  Factors a;
  Rows<const float> b;
  Triangle triangle = Triangle::kNone;  // of a
};
using Terms = std::initializer_list<Term>;

// Computes a tile of Products(): kCount rows from `row` on, kVectors vectors from `column` on. The
// sums stay in registers over all terms.
template <size_t kCount, size_t kVectors>
HWY_INLINE void ProductTile(size_t row, size_t column, const Terms& terms, Rows<float> to,
                            bool set) {
  const F32 d;
  Vec sum[kCount][kVectors];
  float* const first = to.Row(row) + column;
  HWY_UNROLL(8)
  for (size_t r = 0; r < kCount; ++r) {
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      const float* at = first + static_cast<ptrdiff_t>(r) * to.stride + c * kLanes;
      sum[r][c] = set ? hn::Zero(d) : hn::LoadU(d, at);
    }
  }
  for (const Term& term : terms) {
    const ptrdiff_t across = term.a.across, along = term.a.along, b_stride = term.b.stride;
    const size_t begin = term.triangle == Triangle::kUpper ? row : 0;
    const size_t end =
        term.triangle == Triangle::kLower ? std::min(term.count, row + kCount) : term.count;
    const auto skipped = static_cast<ptrdiff_t>(begin);
    const float* a = term.a.at + static_cast<ptrdiff_t>(row) * across + skipped * along;
    const float* b = term.b.at + skipped * b_stride + column;
    for (size_t left = end - begin; left > 0; --left, a += along, b += b_stride) {
      Vec b_j[kVectors];
      HWY_UNROLL(2)
      for (size_t c = 0; c < kVectors; ++c) b_j[c] = hn::LoadU(d, b + c * kLanes);
      HWY_UNROLL(8)
      for (size_t r = 0; r < kCount; ++r) {
        const Vec a_r = hn::Set(d, a[static_cast<ptrdiff_t>(r) * across]);
        HWY_UNROLL(2)
        for (size_t c = 0; c < kVectors; ++c) sum[r][c] = hn::MulAdd(a_r, b_j[c], sum[r][c]);
      }
    }
  }
  HWY_UNROLL(8)
  for (size_t r = 0; r < kCount; ++r) {
    HWY_UNROLL(2)
    for (size_t c = 0; c < kVectors; ++c) {
      hn::StoreU(sum[r][c], d, first + static_cast<ptrdiff_t>(r) * to.stride + c * kLanes);
    }
  }
}

template <size_t kCount>
HWY_INLINE void ProductRows(size_t row, size_t columns, const Terms& terms, Rows<float> to,
                            bool set) {
  size_t c = 0;
  for (; c + kStrip <= columns; c += kStrip) ProductTile<kCount, 2>(row, c, terms, to, set);
  for (; c < columns; c += kLanes) ProductTile<kCount, 1>(row, c, terms, to, set);
}

// to_i += the sum of row i of all terms, for i < rows. Rows are `columns` floats wide, a padded
// width. `set` overwrites to_i instead.
inline HWY_NOINLINE void Products(size_t rows, size_t columns, const Terms& terms, Rows<float> to,
                                  bool set = false) {
  size_t i = 0;
  for (; i + kRows <= rows; i += kRows) ProductRows<kRows>(i, columns, terms, to, set);
  for (; i < rows; ++i) ProductRows<1>(i, columns, terms, to, set);
}
HWY_INLINE void Product(size_t rows, size_t count, size_t columns, Factors a, Rows<const float> b,
                        Rows<float> to, bool set = false) {
  Products(rows, columns, {{count, a, b}}, to, set);
}

// Solves one tile of SolveLower(), kRows rows, in registers, one column of vectors after another.
inline HWY_NOINLINE void SolveTile(size_t columns, Factors l, Rows<float> y) {
  const F32 d;
  for (size_t c = 0; c < columns; c += kLanes) {
    Vec row[kRows];
    HWY_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) row[i] = hn::LoadU(d, y.Row(i) + c);
    HWY_UNROLL(8)
    for (size_t j = 0; j + 1 < kRows; ++j) {
      HWY_UNROLL(8)
      for (size_t i = j + 1; i < kRows; ++i) {
        const float l_ij =
            l.at[static_cast<ptrdiff_t>(i) * l.across + static_cast<ptrdiff_t>(j) * l.along];
        row[i] = hn::MulAdd(hn::Set(d, l_ij), row[j], row[i]);
      }
    }
    HWY_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) hn::StoreU(row[i], d, y.Row(i) + c);
  }
}

// Solves y_i = f_i + sum_{j < i} l_ij y_j in place (y holds f), by forward substitution in tiles.
HWY_INLINE void SolveLower(size_t rows, size_t columns, Factors l, Rows<float> y) {
  for (size_t i = 0; i < rows; i += kRows) {
    const auto at = static_cast<ptrdiff_t>(i);
    const size_t tile = std::min(kRows, rows - i);
    const Factors below{l.at + at * l.across, l.across, l.along};
    const Rows<float> own{y.Row(i), y.stride};
    const Rows<const float> before{y.at, y.stride};
    if (i > 0) Product(tile, i, columns, below, before, own);
    if (tile == kRows) {
      SolveTile(columns, {below.at + at * l.along, l.across, l.along}, own);
      continue;
    }
    for (size_t r = 1; r < tile; ++r) {
      Product(1, r, columns,
              {below.at + static_cast<ptrdiff_t>(r) * l.across + at * l.along, 0, l.along},
              {own.at, own.stride}, {own.Row(r), 0});
    }
  }
}

// to = the transpose of `from` [rows, columns]; columns are padded. Rows are processed in groups of
// kLanes: `from` must have rows, and `to` columns, up to a multiple of kLanes. Those beyond `rows`
// have no meaning. The arrays must not overlap.
inline HWY_NOINLINE void TransposeRows(size_t rows, size_t columns, Rows<const float> from,
                                       Rows<float> to) {
#if HWY_TARGET == HWY_SCALAR || defined(__SANITIZE_THREAD__)  // GCC 12 fails on the other form
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) to.Row(c)[r] = from.Row(r)[c];
  }
#else
  // Four vectors hold kLanes rows of four columns: block b of vector i is from row 4 b + i.
  const F32 d;
  for (size_t r = 0; r < rows; r += kLanes) {
    for (size_t c = 0; c < columns; c += 4) {
      const auto four = [&](size_t row) HWY_ATTR {
        Vec x = hn::LoadDup128(d, from.Row(r + row) + c);
        HWY_UNROLL(4)
        for (size_t b = 4; b < kLanes; b += 4) {
          x = hn::IfThenElse(hn::FirstN(d, b), x, hn::LoadDup128(d, from.Row(r + b + row) + c));
        }
        return x;
      };
      const Vec r0 = four(0), r1 = four(1), r2 = four(2), r3 = four(3);
      const Vec even0 = hn::InterleaveLower(d, r0, r2), even1 = hn::InterleaveUpper(d, r0, r2);
      const Vec odd0 = hn::InterleaveLower(d, r1, r3), odd1 = hn::InterleaveUpper(d, r1, r3);
      hn::StoreU(hn::InterleaveLower(d, even0, odd0), d, to.Row(c) + r);
      hn::StoreU(hn::InterleaveUpper(d, even0, odd0), d, to.Row(c + 1) + r);
      hn::StoreU(hn::InterleaveLower(d, even1, odd1), d, to.Row(c + 2) + r);
      hn::StoreU(hn::InterleaveUpper(d, even1, odd1), d, to.Row(c + 3) + r);
    }
  }
#endif
}

// Zeroes element (i, j) of a matrix of kSide columns for j > i, or with `strict` for j >= i.
HWY_INLINE void KeepLower(size_t rows, bool strict, float* x) {
  const F32 d;
  for (size_t i = 0; i < rows; ++i) {
    const size_t keep = i + !strict;
    for (size_t j = 0; j < kScanSolveBlock; j += kLanes, x += kLanes) {
      const size_t used = keep > j ? std::min(kLanes, keep - j) : 0;
      hn::Store(ZeroBeyond(hn::Load(d, x), used), d, x);
    }
  }
}

// to_t = constant * scalars[t] * factors_t * times_t * from_t for each position t. factors_t is a
// row [padded], or, without kKeyed, a number. Null `scalars` count as 1. `times` is read only with
// kTimes.
template <bool kKeyed, bool kTimes>
HWY_NOINLINE void ScaleRows(size_t tokens, size_t width, size_t padded, Rows<const float> from,
                            Rows<const float> times, float constant, const float* scalars,
                            const float* factors, Rows<float> to) {
  const F32 d;
  const size_t whole = width / kLanes * kLanes;
  for (size_t t = 0; t < tokens; ++t) {
    const float* row = from.Row(t);
    const float* other = kTimes ? times.Row(t) : nullptr;
    float* out = to.Row(t);
    Vec scale = hn::Set(d, scalars ? constant * scalars[t] : constant);
    if (!kKeyed) scale = hn::Mul(scale, hn::Set(d, factors[t]));
    const auto scaled = [&](Vec x, size_t i) HWY_ATTR {
      x = hn::Mul(x, scale);
      return kKeyed ? hn::Mul(x, hn::Load(d, factors + t * padded + i)) : x;
    };
    for (size_t i = 0; i < whole; i += kLanes) {
      Vec x = hn::LoadU(d, row + i);
      if (kTimes) x = hn::Mul(x, hn::LoadU(d, other + i));
      hn::Store(scaled(x, i), d, out + i);
    }
    for (size_t i = whole; i < padded; i += kLanes) {
      Vec x = hn::Zero(d);
      if (i < width) x = scaled(LoadN(row + i, width - i), i);
      if (kTimes && i < width) x = hn::Mul(x, LoadN(other + i, width - i));
      hn::Store(x, d, out + i);
    }
  }
}

// Multiplies each row of a state, which is stored in strips, by its factor.
inline HWY_NOINLINE void ScaleStrips(size_t rows, size_t columns, const float* factors, float* s) {
  const F32 d;
  for (size_t c = 0; c < columns; c += kStrip) {
    const size_t width = std::min(kStrip, columns - c);
    for (size_t r = 0; r < rows; ++r, s += width) {
      const Vec factor = hn::Set(d, factors[r]);
      for (size_t i = 0; i < width; i += kLanes) {
        hn::Store(hn::Mul(hn::Load(d, s + i), factor), d, s + i);
      }
    }
  }
}

// Location of one head of one sequence.
struct ScanPlace {
  // first: the row of position 0. Packed sequences have no batch axis: n is 0 for all of them.
  size_t n, h, group, first, length;
  size_t valid;         // positions >= valid change nothing
  size_t index;         // of the head among all N x H
  size_t states;        // index of the first state within `kept`
  size_t denominators;  // offset of the first denominator within `kept`, in floats

  ScanPlace(const ScanShape& shape, const ScanOptions& options, const int64_t* lengths,
            const int64_t* offsets, size_t n, size_t h)
      : n(n), h(h), group(shape.group), first(0), length(shape.length) {
    index = n * shape.heads + h;
    const size_t tokens =
        offsets ? static_cast<size_t>(offsets[shape.batch]) : shape.batch * shape.length;
    const ScanLayout layout(shape, options, tokens, offsets != nullptr);
    denominators = layout.states * layout.state_size + index * length;
    if (offsets) {
      this->n = 0;
      first = static_cast<size_t>(offsets[n]);
      length = static_cast<size_t>(offsets[n + 1]) - first;
      denominators = layout.states * layout.state_size + h * tokens + first;
    }
    const size_t begin = ScanLayout::First(shape, offsets, n);
    states = begin * shape.heads + h * (ScanLayout::First(shape, offsets, n + 1) - begin);
    valid = lengths ? static_cast<size_t>(std::max<int64_t>(lengths[n], 0)) : length;
  }

  template <typename T>
  HeadRows<T> In(const Strided<T>& x, size_t width) const {
    return {x.data ? x.At(n, first, h) : nullptr, x.time, width};
  }
  HeadRows<const float> Shared(const Strided<const float>& x, size_t width) const {
    return {x.At(n, first, h / group), x.time, width};
  }
};

// Rows of several tensors, to prefetch a block ahead. The caller prefetches a few tensors at a
// time, between its computations, so that the requests do not queue up.
class ScanStreams {
 public:
  template <typename T>
  void Add(const HeadRows<T>& rows, size_t width) {
    const float* at = rows.At(0);
    if (at != nullptr) streams_[count_++] = {at, rows.At(1) - rows.At(0), width};
  }
  // First() sets the range of rows; each Next() prefetches these rows of the next `tensors`
  // tensors.
  HWY_INLINE void First(size_t begin, size_t tokens) {
    begin_ = begin, tokens_ = tokens, turn_ = 0;
  }
  HWY_INLINE void Next(size_t tensors) {
    for (; tensors > 0 && turn_ < count_; --tensors, ++turn_) {
      const Stream& x = streams_[turn_];
      for (size_t t = begin_; t < begin_ + tokens_; ++t) {
        const float* row = x.at + static_cast<ptrdiff_t>(t) * x.time;
        for (size_t i = 0; i < x.width; i += 16) hwy::Prefetch(row + i);
      }
    }
  }

 private:
  struct Stream {
    const float* at;
    ptrdiff_t time;
    size_t width;
  };
  Stream streams_[16];
  size_t count_ = 0, turn_ = 0, begin_ = 0, tokens_ = 0;
};

class ScanBlock {
 public:
  HWY_INLINE ScanBlock(const ScanShape& shape, const ScanOptions& options,
                       const ScanTensors<const float>& in, const ScanPlace& place,
                       const ScanBlockPieces& pieces)
      : options_(options),
        size_(shape, options),
        pieces_(pieces),
        valid_(place.valid),
        widths_(options, size_.dim, size_.value_dim),
        keyed_(options.decay == ScanDecay::kKey),
        two_(options.write == ScanWrite::kRwkv7),
        q_rows_(place.Shared(in.q, size_.dim)),
        k_rows_(place.Shared(in.k, size_.dim)),
        v_rows_(place.In(in.v, size_.value_dim)),
        decay_rows_(place.In(in.decay, widths_.decay)),
        erase_rows_(place.In(in.erase, widths_.erase)),
        write_rows_(place.In(in.write, widths_.write)) {
    std::fill_n(pieces_.ones, kScanBlock, 1.0f);
  }

  // Starts a block of at most `most` positions at `begin`: chooses their number and computes their
  // factors. Usually tries the factors of a full block. If strong decays cut the last block short,
  // finds the number first, because this block is likely to be cut short too.
  HWY_INLINE void Start(size_t begin, size_t most) {
    begin_ = begin;
    Resize(std::min(most, Solves(options_) ? kScanSolveBlock : kScanBlock));
    if (!decays() || (!cuts_ && Factorize())) return;
    const size_t within = Within();
    cuts_ = within < seen_;
    if (cuts_) Resize(within);
    Factorize();
  }
  // Starts a block again, with the same number of positions.
  HWY_INLINE void Restart(size_t begin, size_t tokens) {
    begin_ = begin;
    Resize(tokens);
    if (decays()) Factorize();
  }
  size_t begin() const { return begin_; }
  size_t tokens() const { return tokens_; }
  size_t seen() const { return seen_; }  // unmasked positions
  bool decays() const { return options_.decay != ScanDecay::kNone; }
  bool keyed() const { return keyed_; }
  bool two() const { return two_; }  // both given and solved values are written
  const ScanSizes& size() const { return size_; }
  const float* decay() const { return pieces_.decay; }  // [dp]: e^(c_C)
  // Factors of the rows that read and of the rows that write: [tokens, dp] if keyed(), else
  // [tokens].
  const float* read() const { return decays() ? pieces_.read : pieces_.ones; }
  const float* write() const { return decays() ? pieces_.write : pieces_.ones; }

  // Adds the inputs that the options use to `streams`.
  HWY_INLINE void AddKeysAndValues(ScanStreams& streams) const {
    streams.Add(k_rows_, size_.dim);
    streams.Add(v_rows_, size_.value_dim);
    if (widths_.decay) streams.Add(decay_rows_, widths_.decay);
    if (widths_.erase) streams.Add(erase_rows_, widths_.erase);
    if (widths_.write) streams.Add(write_rows_, widths_.write);
  }
  HWY_INLINE void AddQ(ScanStreams& streams) const { streams.Add(q_rows_, size_.dim); }

  // Rows of the block's inputs.
  Rows<const float> q_in() const { return q_rows_.Of({begin_, tokens_, false}); }
  Rows<const float> k_in() const { return k_rows_.Of({begin_, tokens_, false}); }
  Rows<const float> v_in() const { return v_rows_.Of({begin_, tokens_, false}); }
  Rows<const float> erase_in() const { return erase_rows_.Of({begin_, tokens_, false}); }
  Rows<const float> write_in() const { return write_rows_.Of({begin_, tokens_, false}); }

  // Packed rows. If two(), solved and given rows alternate, and each row of q is placed like the
  // given row of its position.
  Rows<float> q() const { return Packed(pieces_.q, two_, size_.dp); }
  Rows<float> a() const { return {pieces_.a, static_cast<ptrdiff_t>(size_.dp)}; }
  Rows<float> given_keys() const { return Packed(pieces_.keys, two_, size_.dp); }
  Rows<float> solved_keys() const { return Packed(pieces_.keys, false, size_.dp); }
  Rows<float> given_values() const { return Packed(pieces_.values, two_, size_.mp); }
  Rows<float> solved_values() const { return Packed(pieces_.values, false, size_.mp); }

  HWY_INLINE void PackQ() {
    Scale(tokens_, size_.dim, size_.dp, q_in(), {nullptr, 0}, options_.scale, nullptr, read(), q());
  }
  HWY_INLINE void PackKeys() {
    PackWriting(k_in(), two_ ? given_keys() : solved_keys());
    if (two_) PackWriting(write_in(), solved_keys());
  }
  // Packs the rows a' with which y reads the state.
  HWY_INLINE void PackA() {
    const Rows<float> to = a();
    if (two_) {  // row t reads the state before the decay of position t
      const Rows<const float> from = erase_in();
      const Rows<float> later{to.Row(1), to.stride};
      const size_t first = std::min<size_t>(seen_, 1);
      ScaleRows<false, false>(first, size_.dim, size_.dp, from, {nullptr, 0}, 1.0f, nullptr,
                              pieces_.ones, to);
      Scale(seen_ - first, size_.dim, size_.dp, {from.Row(1), from.stride}, {nullptr, 0}, 1.0f,
            nullptr, read(), later);
    } else if (options_.write == ScanWrite::kDelta) {
      Scale(seen_, size_.dim, size_.dp, k_in(), {nullptr, 0}, -1.0f, Betas(), read(), to);
    } else {
      Scale(seen_, size_.dim, size_.dp, k_in(), erase_in(), -1.0f, nullptr, read(), to);
    }
    ClearMasked(to, size_.dp);
  }
  // Packs the given values, with 1 in the column of z (see ScanSizes).
  HWY_INLINE void PackGiven() {
    const Rows<float> to = given_values();
    ScaleRows<false, false>(seen_, size_.value_dim, size_.mp, v_in(), {nullptr, 0}, 1.0f, nullptr,
                            pieces_.ones, to);
    ClearMasked(to, size_.mp);
    for (size_t t = 0; t < seen_ && options_.normalize; ++t) to.Row(t)[size_.value_dim] = 1.0f;
  }
  // Packs f = w * v, the part of the solved values that does not depend on the state.
  HWY_INLINE void PackSolved(Rows<float> to) {
    if (options_.write == ScanWrite::kDelta) {
      ScaleRows<false, false>(seen_, size_.value_dim, size_.mp, v_in(), {nullptr, 0}, 1.0f, Betas(),
                              pieces_.ones, to);
    } else {
      ScaleRows<false, true>(seen_, size_.value_dim, size_.mp, v_in(), write_in(), 1.0f, nullptr,
                             pieces_.ones, to);
    }
    ClearMasked(to, size_.mp);
  }

  // panel(i): transposed keys (0: given, 1: solved). product(i): matrix i of the block.
  float* panel(size_t i) const { return pieces_.panels + i * size_.dp * kScanSolveBlock; }
  float* product(size_t i) const {
    return pieces_.products + i * kScanSolveBlock * kScanSolveBlock;
  }
  // The product of lower triangular matrix i, or of its transpose, with rows of the block.
  Term Lower(size_t i, Rows<const float> rows) const {
    return {tokens_, {product(i), kSide, 1}, rows, Triangle::kLower};
  }
  Term Upper(size_t i, Rows<const float> rows) const {
    return {tokens_, {product(i), 1, kSide}, rows, Triangle::kUpper};
  }

  // Computes the products of the rows a' with the keys: matrix 0 with the given keys, if there are
  // any (strictly lower triangle), and matrix 1 with the solved keys.
  HWY_INLINE void MultiplyA() {
    const Factors rows{pieces_.a, static_cast<ptrdiff_t>(size_.dp), 1};
    if (two_) {
      TransposeRows(tokens_, size_.dp, Const(given_keys()), {panel(0), kSide});
      Product(tokens_, size_.dp, kScanSolveBlock, rows, {panel(0), kSide}, {product(0), kSide},
              true);
      KeepLower(tokens_, /*strict=*/true, product(0));
    }
    TransposeRows(tokens_, size_.dp, Const(solved_keys()), {panel(1), kSide});
    Product(tokens_, size_.dp, kScanSolveBlock, rows, {panel(1), kSide}, {product(1), kSide}, true);
  }
  // Adds to y the part that comes from the block's own writes. On entry, y holds f plus the part
  // from the state at the block's start.
  HWY_INLINE void SolveWithin(Rows<float> y) {
    MultiplyA();
    if (two_) Products(tokens_, size_.mp, {Lower(0, Const(given_values()))}, y);
    SolveLower(tokens_, size_.mp, {product(1), kSide, 1}, y);
  }

  static Rows<const float> Const(Rows<float> x) { return {x.at, x.stride}; }

 private:
  Rows<float> Packed(float* at, bool second, size_t padded) const {
    return {at + (second ? padded : 0), static_cast<ptrdiff_t>((two_ ? 2 : 1) * padded)};
  }

  HWY_INLINE void PackWriting(Rows<const float> from, Rows<float> to) {
    Scale(seen_, size_.dim, size_.dp, from, {nullptr, 0}, 1.0f, nullptr, write(), to);
    ClearMasked(to, size_.dp);
  }
  HWY_INLINE void Scale(size_t tokens, size_t width, size_t padded, Rows<const float> from,
                        Rows<const float> times, float constant, const float* scalars,
                        const float* factors, Rows<float> to) {
    const auto scale = times.at ? (keyed_ ? ScaleRows<true, true> : ScaleRows<false, true>)
                                : (keyed_ ? ScaleRows<true, false> : ScaleRows<false, false>);
    scale(tokens, width, padded, from, times, constant, scalars, factors, to);
  }
  HWY_INLINE void ClearMasked(Rows<float> rows, size_t padded) const {
    for (size_t t = seen_; t < tokens_; ++t) Clear(rows.Row(t), padded);
  }
  const float* Betas() {
    for (size_t t = 0; t < seen_; ++t) betas_[t] = *erase_rows_.At(begin_ + t);
    return betas_;
  }

  void Resize(size_t tokens) {
    tokens_ = tokens;
    seen_ = std::min(tokens, begin_ < valid_ ? valid_ - begin_ : 0);
  }
  // Computes the factors. Returns whether the log decays after the first position add up to at most
  // kReach in magnitude. If not, the factors are invalid.
  bool Factorize() { return keyed_ ? KeyFactors() : HeadFactors(); }

  // The largest number of unmasked positions for which the log decays, without the first
  // position's, add up to at most kReach in magnitude.
  HWY_NOINLINE size_t Within() const {
    const F32 d;
    const Vec reach = hn::Set(d, -kReach);
    const size_t width = keyed_ ? size_.dim : 1;
    Clear(pieces_.sums, size_.dp);
    size_t t = 1;
    for (; t < seen_; ++t) {
      const float* row = decay_rows_.At(begin_ + t);
      bool beyond = false;
      for (size_t i = 0; i < width; i += kLanes) {
        const Vec g = LoadN(row + i, std::min(kLanes, width - i));
        const Vec sum = hn::Add(hn::Load(d, pieces_.sums + i), g);
        hn::Store(sum, d, pieces_.sums + i);
        beyond = beyond || !hn::AllFalse(d, hn::Lt(sum, reach));
      }
      if (beyond) break;
    }
    return t;
  }

  HWY_NOINLINE bool KeyFactors() {
    const F32 d;
    const size_t dp = size_.dp;
    Vec least = hn::Zero(d);
    for (size_t i = 0; i < dp; i += kLanes) {
      const size_t used = i < size_.dim ? std::min(kLanes, size_.dim - i) : 0;
      Vec sum = hn::Zero(d);  // c_C - c_t
      for (size_t t = tokens_; t-- > 0;) {
        const Vec factor = DecayExp(sum);
        hn::Store(factor, d, pieces_.write + t * dp + i);
        hn::Store(Inverse(factor), d, pieces_.read + t * dp + i);
        if (t == 0) least = hn::Min(least, sum);
        if (t < seen_ && used > 0) sum = hn::Add(sum, LoadN(decay_rows_.At(begin_ + t) + i, used));
      }
      hn::Store(DecayExp(sum), d, pieces_.decay + i);
    }
    return hn::AllFalse(d, hn::Lt(least, hn::Set(d, -kReach)));
  }
  HWY_NOINLINE bool HeadFactors() {
    const F32 d;
    float* sums = pieces_.write;
    float sum = 0;
    for (size_t t = tokens_; t-- > 0;) {
      sums[t] = sum;
      if (t < seen_) sum += *decay_rows_.At(begin_ + t);
    }
    const bool within = !(sums[0] < -kReach);
    for (size_t t = 0; t < tokens_; t += kLanes) {
      const Vec factor = DecayExp(hn::Load(d, sums + t));
      hn::Store(Inverse(factor), d, pieces_.read + t);
      hn::Store(factor, d, pieces_.write + t);
    }
    std::fill_n(pieces_.decay, size_.dp, hn::GetLane(DecayExp(hn::Set(d, sum))));
    return within;
  }

  const ScanOptions& options_;
  const ScanSizes size_;
  const ScanBlockPieces pieces_;
  const size_t valid_;
  const ScanWidths widths_;
  const bool keyed_, two_;
  const HeadRows<const float> q_rows_, k_rows_, v_rows_, decay_rows_, erase_rows_, write_rows_;
  size_t begin_ = 0, tokens_ = 0, seen_ = 0;
  bool cuts_ = false;  // whether the last block was cut short
  float betas_[kScanBlock];
};

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_SCAN_BLOCK_INL_H_
