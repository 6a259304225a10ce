// The Highway body of lstm_cell.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_LSTM_CELL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_LSTM_CELL_INL_H_
#undef LINNET_KERNELS_LSTM_CELL_INL_H_
#else
#define LINNET_KERNELS_LSTM_CELL_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "linnet/kernels/lstm_cell.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

HWY_INLINE Vec One() { return hn::Set(F32(), 1.0f); }

// For large negative x, exp(-x) is infinite and the quotient is 0.
HWY_INLINE Vec Sigmoid(Vec x) {
  const F32 d;
  return hn::Div(One(), hn::Add(One(), hn::Exp(d, hn::Neg(x))));
}
HWY_INLINE Vec TanhOf(Vec x) {
  const F32 d;
  return hn::Tanh(d, x);
}
// The derivative of the sigmoid, from its value x: x (1 - x).
HWY_INLINE Vec SigmoidSlope(Vec x) { return hn::NegMulAdd(x, x, x); }
// The derivative of tanh, from its value x: 1 - x^2.
HWY_INLINE Vec TanhSlope(Vec x) { return hn::NegMulAdd(x, x, One()); }

// Whether the row is present: its sequence has not ended before this step.
template <class Args>
HWY_INLINE bool There(const Args& args, size_t row) {
  return args.lengths == nullptr || args.at < args.lengths[row];
}

void LstmForward(size_t rows, size_t hidden, const LstmCellForwardArgs& args) {
  for (size_t r = 0; r < rows; ++r) {
    float* gates = args.gates + r * 4 * hidden;
    const bool there = There(args, r);
    ForVectors(hidden, [&](size_t c, size_t used) HWY_ATTR {
      const size_t at = r * hidden + c;
      if (!there) {
        StoreN(hn::Zero(F32()), args.cell + at, used);
        StoreN(hn::Zero(F32()), args.out + at, used);
        return;
      }
      const Vec i = Sigmoid(LoadN(gates + c, used));
      const Vec f = Sigmoid(LoadN(gates + hidden + c, used));
      const Vec g = TanhOf(LoadN(gates + 2 * hidden + c, used));
      const Vec o = Sigmoid(LoadN(gates + 3 * hidden + c, used));
      Vec cell = hn::Mul(i, g);
      if (args.cell_before != nullptr) {
        cell = hn::MulAdd(f, LoadN(args.cell_before + at, used), cell);
      }
      StoreN(i, gates + c, used);
      StoreN(f, gates + hidden + c, used);
      StoreN(g, gates + 2 * hidden + c, used);
      StoreN(o, gates + 3 * hidden + c, used);
      StoreN(cell, args.cell + at, used);
      StoreN(hn::Mul(o, TanhOf(cell)), args.out + at, used);
    });
  }
}

void LstmBackward(size_t rows, size_t hidden, const LstmCellBackwardArgs& args) {
  for (size_t r = 0; r < rows; ++r) {
    const float* gates = args.gates + r * 4 * hidden;
    float* grad_gates = args.grad_gates + r * 4 * hidden;
    const bool there = There(args, r);
    ForVectors(hidden, [&](size_t c, size_t used) HWY_ATTR {
      const size_t at = r * hidden + c;
      const auto store = [&](Vec di, Vec df, Vec dg, Vec d_o, Vec dcell) HWY_ATTR {
        StoreN(di, grad_gates + c, used);
        StoreN(df, grad_gates + hidden + c, used);
        StoreN(dg, grad_gates + 2 * hidden + c, used);
        StoreN(d_o, grad_gates + 3 * hidden + c, used);
        StoreN(dcell, args.grad_cell + at, used);
      };
      const Vec zero = hn::Zero(F32());
      if (!there) return store(zero, zero, zero, zero, zero);
      const Vec i = LoadN(gates + c, used), f = LoadN(gates + hidden + c, used);
      const Vec g = LoadN(gates + 2 * hidden + c, used), o = LoadN(gates + 3 * hidden + c, used);
      const Vec grad = LoadN(args.grad_out + at, used);
      const Vec squashed = TanhOf(LoadN(args.cell + at, used));
      const Vec before = args.cell_before == nullptr ? zero : LoadN(args.cell_before + at, used);
      const Vec dcell =
          hn::MulAdd(hn::Mul(grad, o), TanhSlope(squashed), LoadN(args.grad_cell + at, used));
      store(hn::Mul(hn::Mul(dcell, g), SigmoidSlope(i)),
            hn::Mul(hn::Mul(dcell, before), SigmoidSlope(f)),
            hn::Mul(hn::Mul(dcell, i), TanhSlope(g)),
            hn::Mul(hn::Mul(grad, squashed), SigmoidSlope(o)), hn::Mul(dcell, f));
    });
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LSTM_CELL_INL_H_
