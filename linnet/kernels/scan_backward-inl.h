// The backward of scans that solve their values (all but ScanWrite::kAdd), compiled once for each
// instruction set.
//
// A segment starts from the state that the forward kept. A first pass recomputes the solved values
// and the state at the start of each cell of 16 positions. A second pass walks the cells from last
// to first, with the gradient G of the state after the cell. Within a block everything is a product
// of small dense matrices. As in scan_block-inl.h, rows q' and a' read the state S', and keys x
// write values u to it: given values v or solved values y. `do` is the gradient of out, and L()
// keeps the lower triangle: with the diagonal for q', without it for a'.
//
//   du  = x G + L(q' x^T)^T do + L(a' x^T)^T dy
//   dq' = do S'^T + sum_u L(do u^T) x
//   da' = dy S'^T + sum_u L(dy u^T) x
//   dx  = u G^T + L(do u^T)^T q' + L(dy u^T)^T a'
//   G   = e^(c_C) (G + q'^T do + a'^T dy)
//
// For u = y, dy stands on both sides of the first equation, which is solved from the last row to
// the first.
//
// The gradient of the first position's log decay is the row sum of S' * (gradient of S'). From one
// position to the next, the gradient of the log decay grows by x * dx and shrinks by q' * dq' and
// a' * da'.
#if defined(LINNET_KERNELS_SCAN_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_SCAN_BACKWARD_INL_H_
#undef LINNET_KERNELS_SCAN_BACKWARD_INL_H_
#else
#define LINNET_KERNELS_SCAN_BACKWARD_INL_H_
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

// to = from with column c multiplied by factors[c]; both [rows, columns], columns padded.
inline HWY_NOINLINE void ScaleColumns(size_t rows, size_t columns, const float* factors,
                                      const float* from, float* to) {
  const F32 d;
  for (size_t r = 0; r < rows; ++r, from += columns, to += columns) {
    for (size_t c = 0; c < columns; c += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, from + c), hn::Load(d, factors + c)), d, to + c);
    }
  }
}

// Multiplies row r of x by factors[r].
inline HWY_NOINLINE void ScaleByRows(size_t rows, size_t columns, const float* factors, float* x) {
  const F32 d;
  for (size_t r = 0; r < rows; ++r, x += columns) {
    const Vec factor = hn::Set(d, factors[r]);
    for (size_t c = 0; c < columns; c += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, x + c), factor), d, x + c);
    }
  }
}

class ScanBackwardHead {
 public:
  HWY_INLINE ScanBackwardHead(const ScanShape& shape, const ScanOptions& options,
                              const ScanBackwardArgs& args, float* scratch, size_t n, size_t h)
      : options_(options),
        args_(args),
        size_(shape, options),
        dp_(size_.dp),
        mp_(size_.mp),
        place_(shape, options, args.lengths, args.offsets, n, h),
        pieces_(size_, scratch),
        block_(shape, options, args.in, place_, pieces_.block) {
    Clear(pieces_.block.keys, kScanBlock * dp_);
    Clear(pieces_.block.values, kScanBlock * mp_);
    block_.AddKeysAndValues(ahead_);
    block_.AddQ(ahead_);
    ahead_.Add(place_.In(args.grad_out, size_.value_dim), size_.value_dim);
    const ScanWidths width(options, size_.dim, size_.value_dim);
    const auto add = [&](const Strided<float>& x, size_t row) {
      if (row > 0) behind_.Add(place_.In(x, row), row);
    };
    add(args.grad.q, size_.dim), add(args.grad.k, size_.dim), add(args.grad.v, size_.value_dim);
    add(args.grad.decay, width.decay), add(args.grad.erase, width.erase);
    add(args.grad.write, width.write);
  }

  HWY_INLINE void Run() {
    LoadFinalGradient();
    for (size_t s = ScanLayout::Of(place_.length); s-- > 0;) RunSegment(s);
    StoreInitialGradient();
  }

 private:
  static constexpr size_t kCell = kScanSolveBlock;

  // Rows as wide as a row of the state (Wide) or of its transpose (Deep).
  Rows<float> Wide(float* at) const { return {at, static_cast<ptrdiff_t>(mp_)}; }
  Rows<float> Deep(float* at) const { return {at, static_cast<ptrdiff_t>(dp_)}; }
  static Rows<const float> Const(Rows<float> x) { return ScanBlock::Const(x); }
  // The matrix x (Along) or its transpose (Across) as the first factor of a product.
  template <typename T>
  static Factors Along(Rows<T> x) {
    return {x.at, x.stride, 1};
  }
  template <typename T>
  static Factors Across(Rows<T> x) {
    return {x.at, 1, x.stride};
  }

  HWY_INLINE void LoadFinalGradient() {
    Clear(pieces_.g, dp_ * mp_);
    Clear(pieces_.g_t, dp_ * mp_);
    if (!args_.grad_s) return;
    const float* from = args_.grad_s + place_.index * size_.dim * size_.value_dim;
    for (size_t d = 0; d < size_.dim; ++d) {
      for (size_t c = 0; c < size_.value_dim; ++c, ++from) {
        pieces_.g[d * mp_ + c] = pieces_.g_t[c * dp_ + d] = *from;
      }
    }
  }
  HWY_INLINE void StoreInitialGradient() const {
    if (!args_.grad_s0) return;
    float* to = args_.grad_s0 + place_.index * size_.dim * size_.value_dim;
    for (size_t d = 0; d < size_.dim; ++d, to += size_.value_dim) {
      std::memcpy(to, pieces_.g + d * mp_, size_.value_dim * sizeof(float));
    }
  }

  HWY_INLINE void LoadKept(size_t segment) {
    const float* kept = args_.kept + (place_.states + segment) * size_.dim * size_.columns;
    Clear(pieces_.s, dp_ * mp_);
    for (size_t d = 0; d < size_.dim; ++d, kept += size_.columns) {
      std::memcpy(pieces_.s + d * mp_, kept, size_.columns * sizeof(float));
    }
  }

  HWY_INLINE void RunSegment(size_t segment) {
    const size_t state_size = dp_ * mp_;
    segment_ = segment * kScanSegment;
    const size_t end = std::min(segment_ + kScanSegment, place_.length);
    LoadKept(segment);
    for (size_t cell = segment_; cell < end; cell += kCell) {
      std::memcpy(pieces_.cells + (cell - segment_) / kCell * state_size, pieces_.s,
                  state_size * sizeof(float));
      const size_t cell_end = std::min(cell + kCell, end);
      for (size_t at = cell; at < cell_end; at += block_.tokens()) {
        block_.Start(at, cell_end - at);
        Advance(/*first_time=*/true);
      }
    }
    const size_t cells = (end - segment_ + kCell - 1) / kCell;
    for (size_t c = cells; c-- > 0;) {
      const size_t cell = segment_ + c * kCell;
      RunCell(cell, std::min(cell + kCell, end), pieces_.cells + c * state_size);
    }
  }

  // Differentiates the blocks of a cell from last to first. s: the state before the cell.
  HWY_INLINE void RunCell(size_t cell, size_t end, const float* s) {
    const size_t state_size = dp_ * mp_;
    size_t starts[kCell + 1], blocks = 0;
    const float* states[kCell];
    for (size_t at = cell; at < end; at += block_.tokens()) {
      starts[blocks] = at, states[blocks] = s;
      block_.Start(at, end - at);
      if (at + block_.tokens() < end) {
        if (blocks == 0) std::memcpy(pieces_.s, s, state_size * sizeof(float));
        Advance(/*first_time=*/false);
        float* next = pieces_.blocks + blocks * state_size;
        std::memcpy(next, pieces_.s, state_size * sizeof(float));
        s = next;
      }
      ++blocks;
    }
    starts[blocks] = end;
    for (size_t b = blocks; b-- > 0;) {
      block_.Restart(starts[b], starts[b + 1] - starts[b]);
      Differentiate(states[b]);
    }
  }

  // Solved values of the block, kept for the segment.
  Rows<float> Solved() const { return Wide(pieces_.solved + (block_.begin() - segment_) * mp_); }
  Rows<float> Keys(size_t w) const { return w == 0 ? block_.given_keys() : block_.solved_keys(); }
  Rows<float> Values(size_t w) const { return w == 0 ? block_.given_values() : Solved(); }
  // Calls body(w) for each writer w: 0, the given values (only if two()), and 1, the solved values.
  template <class Body>
  HWY_INLINE void ForWriters(const Body& body) {
    if (block_.two()) body(0);
    body(1);
  }

  // Advances the state over the block. The first time, also computes the solved values.
  HWY_INLINE void Advance(bool first_time) {
    const size_t n = block_.tokens(), next = block_.begin() + n;
    const Rows<float> y = Solved();
    ahead_.First(next, first_time ? std::min(n, place_.length - next) : 0);
    block_.PackKeys();
    ahead_.Next(2);
    if (block_.two()) block_.PackGiven();
    if (first_time) block_.PackA();
    const Rows<float> a = block_.a();
    const Rows<const float> s = Const(Wide(pieces_.s));
    if (first_time && block_.two()) Product(1, dp_, mp_, Along(a), s, y, true);
    if (block_.decays()) ScaleByRows(dp_, mp_, block_.decay(), pieces_.s);
    if (first_time) {
      const size_t first = block_.two() ? 1 : 0;
      if (!block_.two()) block_.PackSolved(y);
      Product(n - first, dp_, mp_, {a.Row(first), a.stride, 1}, s, {y.Row(first), y.stride},
              /*set=*/block_.two());
      block_.SolveWithin(y);
    }
    ahead_.Next(2);
    ForWriters([&](size_t w) HWY_ATTR {
      ahead_.Next(2);
      Product(dp_, n, mp_, Across(Keys(w)), Const(Values(w)), Wide(pieces_.s));
    });
  }

  // Indices of a block's matrices for writer w: the products of the rows that read with the keys,
  // and the gradients of these products.
  static size_t AKeys(size_t w) { return w; }
  static size_t QKeys(size_t w) { return 2 + w; }
  static size_t GradAKeys(size_t w) { return 4 + w; }
  static size_t GradQKeys(size_t w) { return 6 + w; }
  float* ValuesT(size_t w) const { return pieces_.values_t + w * mp_ * kScanSolveBlock; }
  Rows<float> GradValues(size_t w) const { return Wide(w == 0 ? pieces_.dv : pieces_.dy); }
  Rows<float> GradKeys(size_t w) const { return Deep(w == 0 ? pieces_.dk : pieces_.db); }

  // Matrix `to` of the block = the lower triangle of `rows` times a panel [count, kSide].
  template <typename T>
  HWY_INLINE void LowerProduct(size_t count, Rows<T> rows, const float* panel, bool strict,
                               size_t to) {
    Product(block_.tokens(), count, kScanSolveBlock, Along(rows), {panel, kSide},
            {block_.product(to), kSide}, true);
    KeepLower(block_.tokens(), strict, block_.product(to));
  }

  // Computes the gradients of one block. state: the state before the block.
  HWY_INLINE void Differentiate(const float* state) {
    const size_t before = std::min(block_.begin(), kCell);
    behind_.First(block_.begin() - before, before);
    block_.PackQ();
    block_.PackKeys();
    if (block_.two()) block_.PackGiven();
    block_.PackA();
    out_gradients_ = place_.In(args_.grad_out, size_.value_dim)
                         .Read({block_.begin(), block_.tokens(), false}, pieces_.go);
    TransposeRows(dp_, mp_, {state, static_cast<ptrdiff_t>(mp_)}, Deep(pieces_.s_t));
    float* start_t = pieces_.s_t;
    if (block_.decays()) {
      ScaleColumns(mp_, dp_, block_.decay(), pieces_.s_t, pieces_.start_t);
      start_t = pieces_.start_t;
    }
    ForWriters([&](size_t w) HWY_ATTR {
      TransposeRows(block_.tokens(), dp_, Const(Keys(w)), {block_.panel(w), kSide});
      TransposeRows(block_.tokens(), mp_, Const(Values(w)), {ValuesT(w), kSide});
      LowerProduct(dp_, block_.q(), block_.panel(w), false, QKeys(w));
      LowerProduct(mp_, out_gradients_, ValuesT(w), false, GradQKeys(w));
      LowerProduct(dp_, block_.a(), block_.panel(w), true, AKeys(w));
    });
    behind_.Next(1);
    DifferentiateValues();
    behind_.Next(1);
    DifferentiateReaders(start_t);
    behind_.Next(1);
    DifferentiateKeys();
    behind_.Next(1);
    AddToG(block_.two() ? 1 : 0);
    if (block_.decays() && args_.grad.decay.data) StoreDecay(start_t);
    if (block_.decays()) {
      ScaleByRows(dp_, mp_, block_.decay(), pieces_.g);
      ScaleColumns(mp_, dp_, block_.decay(), pieces_.g_t, pieces_.g_t);
    }
    behind_.Next(16);
    if (block_.two()) AddFirstToG();
    StoreGradients();
  }

  HWY_INLINE void DifferentiateValues() {
    const size_t n = block_.tokens();
    const Rows<float> dy = Wide(pieces_.dy);
    const Rows<const float> g = Const(Wide(pieces_.g)), go = out_gradients_;
    ForWriters([&](size_t w) HWY_ATTR {
      Products(n, mp_, {{dp_, Along(Keys(w)), g}, block_.Upper(QKeys(w), go)}, GradValues(w), true);
    });
    // Solves from the last row to the first: in reverse order, the transposed matrix is lower
    // triangular.
    const float* last = block_.product(AKeys(1)) + (n - 1) * (kScanSolveBlock + 1);
    SolveLower(n, mp_, {last, -1, -kSide}, {dy.Row(n - 1), -dy.stride});
    if (block_.two()) Products(n, mp_, {block_.Upper(AKeys(0), Const(dy))}, GradValues(0));
    ForWriters([&](size_t w) HWY_ATTR { LowerProduct(mp_, dy, ValuesT(w), true, GradAKeys(w)); });
  }

  HWY_INLINE void DifferentiateReaders(float* start_t) {
    const size_t n = block_.tokens();
    const Rows<const float> start = Const(Deep(start_t));
    const Rows<const float> go = out_gradients_;
    const Rows<float> dy = Wide(pieces_.dy), dq = Deep(pieces_.dq), da = Deep(pieces_.da);
    const auto keys = [&](size_t matrix, size_t w)
                          HWY_ATTR { return block_.Lower(matrix, Const(Keys(w))); };
    if (!block_.two()) {
      Products(n, dp_, {{mp_, Along(go), start}, keys(GradQKeys(1), 1)}, dq, true);
      Products(n, dp_, {{mp_, Along(dy), start}, keys(GradAKeys(1), 1)}, da, true);
      return;
    }
    Products(n, dp_, {{mp_, Along(go), start}, keys(GradQKeys(0), 0), keys(GradQKeys(1), 1)}, dq,
             true);
    Products(n, dp_, {{mp_, Along(dy), start}, keys(GradAKeys(0), 0), keys(GradAKeys(1), 1)}, da,
             true);
    // The first row of a' reads the state before the decay, and none of its own block's writes.
    Product(1, mp_, dp_, Along(dy), Const(Deep(pieces_.s_t)), da, true);
  }

  HWY_INLINE void DifferentiateKeys() {
    const size_t n = block_.tokens();
    const Rows<const float> g_t = Const(Deep(pieces_.g_t)), q = Const(block_.q()),
                            a = Const(block_.a());
    ForWriters([&](size_t w) HWY_ATTR {
      Products(n, dp_,
               {{mp_, Along(Values(w)), g_t},
                block_.Upper(GradQKeys(w), q),
                block_.Upper(GradAKeys(w), a)},
               GradKeys(w), true);
    });
  }

  // G += q'^T do + a'^T dy, and its transpose, with the rows of a' and dy from `first` on.
  HWY_INLINE void AddToG(size_t first) {
    const size_t n = block_.tokens();
    Rows<float> a = block_.a(), dy = Wide(pieces_.dy);
    a.at = a.Row(first), dy.at = dy.Row(first);
    Products(dp_, mp_, {{n, Across(block_.q()), out_gradients_}, {n - first, Across(a), Const(dy)}},
             Wide(pieces_.g));
    TransposeRows(dp_, mp_, Const(Wide(pieces_.g)), Deep(pieces_.g_t));
  }
  // Adds to G the product of the first rows of a' and dy: this row of a' reads the state before the
  // block's decay.
  HWY_INLINE void AddFirstToG() {
    const Rows<float> a = block_.a(), dy = Wide(pieces_.dy);
    Product(dp_, 1, mp_, Across(a), Const(dy), Wide(pieces_.g));
    Product(mp_, 1, dp_, Across(dy), Const(a), Deep(pieces_.g_t));
  }

  // Computes the gradients of the log decays, position by position from the block's start, and
  // stores them. G holds the gradient of S' here.
  HWY_NOINLINE void StoreDecay(const float* start_t) const {
    const F32 d;
    const size_t n = block_.tokens(), width = block_.keyed() ? size_.dim : 1;
    const HeadRows<float> to = place_.In(args_.grad.decay, width);
    float sums[kCell] = {};
    for (size_t i = 0; i < dp_; i += kLanes) {
      Vec grad = hn::Zero(d);
      for (size_t c = 0; c < mp_; ++c) {
        grad = hn::MulAdd(hn::Load(d, start_t + c * dp_ + i),
                          hn::Load(d, pieces_.g_t + c * dp_ + i), grad);
      }
      for (size_t t = 0; t < block_.seen(); ++t) {
        if (block_.keyed() && i < size_.dim) {
          StoreN(grad, to.At(block_.begin() + t) + i, std::min(kLanes, size_.dim - i));
        }
        if (!block_.keyed()) sums[t] += SumOf(grad);
        grad = hn::Add(grad, DecayStep(t, i));
      }
    }
    for (size_t t = 0; t < n; ++t) {
      if (t >= block_.seen()) std::fill_n(to.At(block_.begin() + t), width, 0.0f);
      if (t < block_.seen() && !block_.keyed()) *to.At(block_.begin() + t) = sums[t];
    }
  }
  // The gradient of the log decay at position t + 1 minus that at t, for the channels from i on.
  HWY_INLINE Vec DecayStep(size_t t, size_t i) const {
    const F32 d;
    const auto product = [&](Rows<float> x, Rows<float> y, size_t row) HWY_ATTR {
      return hn::Mul(hn::Load(d, x.Row(row) + i), hn::Load(d, y.Row(row) + i));
    };
    Vec sum = hn::Neg(product(block_.q(), Deep(pieces_.dq), t));
    if (block_.two()) sum = hn::Add(sum, product(Keys(0), GradKeys(0), t));
    sum = hn::Add(sum, product(Keys(1), GradKeys(1), t));
    // If two(), row t + 1 of a' reads the state after position t.
    const size_t row = block_.two() ? t + 1 : t;
    if (row >= block_.tokens()) return sum;
    return hn::Sub(sum, product(block_.a(), Deep(pieces_.da), row));
  }

  // Writes the rows of a gradient; zeros for masked positions if `masks`.
  HWY_INLINE void Store(const Strided<float>& to, size_t width, Rows<float> from,
                        bool masks = true) {
    if (!to.data) return;
    const HeadRows<float> rows = place_.In(to, width);
    const size_t tokens = masks ? block_.seen() : block_.tokens();
    rows.Store({block_.begin(), tokens, false}, from, from.at);
    for (size_t t = tokens; t < block_.tokens(); ++t) {
      std::fill_n(rows.At(block_.begin() + t), width, 0.0f);
    }
  }

  // Computes and stores the gradients of the inputs, from the gradients of the block's scaled rows.
  HWY_INLINE void StoreGradients() {
    const size_t n = block_.tokens();
    const Rows<float> dq = Deep(pieces_.dq), da = Deep(pieces_.da);
    Scale(n, dp_, dq, block_.read(), options_.scale, dq);
    Store(args_.grad.q, size_.dim, dq, /*masks=*/false);
    ForWriters([&](size_t w)
                   HWY_ATTR { Scale(n, dp_, GradKeys(w), block_.write(), 1.0f, GradKeys(w)); });
    if (block_.two()) {
      Scale(n - 1, dp_, {da.Row(1), da.stride}, block_.read(), 1.0f, {da.Row(1), da.stride});
      Store(args_.grad.erase, size_.dim, da);
      Store(args_.grad.write, size_.dim, GradKeys(1));
    } else {
      Scale(n, dp_, da, block_.read(), 1.0f, da);
      DifferentiateErase();
      DifferentiateStrength();
    }
    Store(args_.grad.k, size_.dim, GradKeys(block_.two() ? 0 : 1));
    Store(args_.grad.v, size_.value_dim, GradValues(block_.two() ? 0 : 1));
  }
  HWY_INLINE void Scale(size_t tokens, size_t width, Rows<float> from, const float* factors,
                        float constant, Rows<float> to) {
    const auto scale = block_.keyed() ? ScaleRows<true, false> : ScaleRows<false, false>;
    scale(tokens, width, width, Const(from), {nullptr, 0}, constant, nullptr, factors, to);
  }

  // Backward of a = -b * k: adds to the gradient of k, and replaces the gradient of a by the
  // gradient of b. For the delta rule, b is the scalar beta, whose gradient is the sum over the
  // channels.
  HWY_NOINLINE void DifferentiateErase() {
    const F32 d;
    const bool number = options_.write == ScanWrite::kDelta;
    for (size_t t = 0; t < block_.seen(); ++t) {
      const float *k = block_.k_in().Row(t), *b = block_.erase_in().Row(t);
      float *da = pieces_.da + t * dp_, *dk = pieces_.db + t * dp_;
      Vec sum = hn::Zero(d);
      ForVectors(size_.dim, [&](size_t i, size_t used) HWY_ATTR {
        const Vec grad = hn::Neg(hn::Load(d, da + i));
        const Vec strength = number ? hn::Set(d, *b) : LoadN(b + i, used);
        hn::Store(hn::MulAdd(grad, strength, hn::Load(d, dk + i)), d, dk + i);
        const Vec grad_b = hn::Mul(grad, LoadN(k + i, used));
        hn::Store(grad_b, d, da + i);
        sum = hn::Add(sum, grad_b);
      });
      if (number) betas_[t * kPad] = SumOf(sum);
    }
    if (!number) Store(args_.grad.erase, size_.dim, Deep(pieces_.da));
  }
  // Backward of f = w * v: dy, the gradient of f, gives the gradients of w and v. For the delta
  // rule, w is beta.
  HWY_NOINLINE void DifferentiateStrength() {
    const F32 d;
    const bool number = options_.write == ScanWrite::kDelta;
    for (size_t t = 0; t < block_.seen(); ++t) {
      const float* v = block_.v_in().Row(t);
      const float* w = number ? block_.erase_in().Row(t) : block_.write_in().Row(t);
      float *dy = pieces_.dy + t * mp_, *dw = pieces_.dv + t * mp_;
      Vec sum = hn::Zero(d);
      ForVectors(size_.value_dim, [&](size_t i, size_t used) HWY_ATTR {
        const Vec grad = hn::Load(d, dy + i);
        const Vec grad_w = hn::Mul(grad, LoadN(v + i, used));
        hn::Store(hn::Mul(grad, number ? hn::Set(d, *w) : LoadN(w + i, used)), d, dy + i);
        hn::Store(grad_w, d, dw + i);
        sum = hn::Add(sum, grad_w);
      });
      if (number) betas_[t * kPad] += SumOf(sum);
    }
    if (number) return Store(args_.grad.erase, 1, {betas_, kPad});
    Store(args_.grad.write, size_.value_dim, Wide(pieces_.dv));
  }

  const ScanOptions& options_;
  const ScanBackwardArgs& args_;
  const ScanSizes size_;
  const size_t dp_, mp_;
  const ScanPlace place_;
  const ScanBackwardPieces pieces_;
  ScanBlock block_;
  ScanStreams ahead_, behind_;                   // prefetch rows of inputs and of gradients
  Rows<const float> out_gradients_{nullptr, 0};  // of the block
  size_t segment_ = 0;                           // first position of the segment
  HWY_ALIGN float betas_[kCell * kPad] = {};     // gradients of beta, kPad floats apart
};

void ScanBackwardBody(const ScanShape& shape, const ScanOptions& options,
                      const ScanBackwardArgs& args, float* scratch, size_t n, size_t h) {
  ScanBackwardHead(shape, options, args, scratch, n, h).Run();
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_SCAN_BACKWARD_INL_H_
