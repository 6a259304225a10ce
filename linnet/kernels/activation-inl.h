// The Highway body of activation.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_ACTIVATION_INL_H_
#undef LINNET_KERNELS_ACTIVATION_INL_H_
#else
#define LINNET_KERNELS_ACTIVATION_INL_H_
#endif

#include "hwy/highway.h"
#include "linnet/kernels/activation.h"
#include "linnet/kernels/bfloat16-inl.h"
#include "linnet/kernels/exp-inl.h"
#include "linnet/kernels/sigmoid-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// max(x, 0), but NaN if x is NaN. hn::Max() treats NaN differently on different targets.
HWY_INLINE Vec Relu(Vec x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(F32())), x); }

// The value and the derivative of a function.
struct Dual {
  Vec value, slope;
};

// GELU is x Phi(x) = max(x, 0) - a Phi(-a) with a = |x|, so only the tail Phi(-a) needs a formula:
// Phi(-a) = exp(-a^2 / 2) t p(t) with t = 1 / (1 + 0.35 a). Here p is the minimax polynomial of
// degree 8 for 0 <= a <= 14; its relative error is 3.2e-8. For a > 10, where the tail is below
// 1e-23, it counts as zero: with subnormal numbers, which would follow, processors of Intel take
// fifty times as long.
// The derivative is Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi).
template <bool kSlope>
HWY_INLINE Dual GeluDual(Vec x) {
  const F32 d;
  const auto c = [d](float value) HWY_ATTR { return hn::Set(d, value); };
  const Vec size = hn::Abs(x), limit = c(10.0f);
  const auto far = hn::Gt(size, limit);
  const Vec a = hn::IfThenElse(far, limit, size);
  const Vec t = hn::Div(c(1.0f), hn::MulAdd(a, c(0.35f), c(1.0f)));
  Vec p = c(-0.0291459188f);
  p = hn::MulAdd(p, t, c(0.143971641f));
  p = hn::MulAdd(p, t, c(-0.255714135f));
  p = hn::MulAdd(p, t, c(0.159174024f));
  p = hn::MulAdd(p, t, c(-0.0231097413f));
  p = hn::MulAdd(p, t, c(0.105507965f));
  p = hn::MulAdd(p, t, c(0.119832877f));
  p = hn::MulAdd(p, t, c(0.139861868f));
  p = hn::MulAdd(p, t, c(0.139621404f));
  const Vec bell = hn::IfThenZeroElse(far, Exp(hn::Mul(hn::Mul(a, a), c(-0.5f))));
  Dual dual;
  dual.value = hn::NegMulAdd(hn::Mul(hn::Mul(a, bell), t), p, Relu(x));
  if constexpr (kSlope) {
    const Vec tail = hn::Mul(hn::Mul(bell, t), p);
    const Vec phi = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(c(1.0f), tail));
    const Vec density = hn::Mul(bell, c(0.398942280f));
    dual.slope = hn::MulAdd(hn::CopySign(a, x), density, phi);
  }
  return dual;
}

HWY_INLINE Vec Gelu(Vec x) { return GeluDual<false>(x).value; }

HWY_INLINE Dual ReluDual(Vec x) {
  const F32 d;
  return {Relu(x), hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), hn::Set(d, 1.0f))};
}

template <class T, class Function>
HWY_INLINE void Map(size_t n, const T* x, T* out, Function function) {
  ForVectors(n, [&](size_t i, size_t used)
                    HWY_ATTR { StoreN(function(LoadN(x + i, used)), out + i, used); });
}

template <class T>
HWY_INLINE void ActivateTo(Activation activation, size_t n, const T* x, T* out) {
  if (activation == Activation::kRelu) {
    Map(n, x, out, [](Vec v) HWY_ATTR { return Relu(v); });
  } else {
    Map(n, x, out, [](Vec v) HWY_ATTR { return Gelu(v); });
  }
}
void ActivateF32(Activation activation, size_t n, const float* x, float* out) {
  ActivateTo(activation, n, x, out);
}
void ActivateBf16(Activation activation, size_t n, const BFloat16* x, BFloat16* out) {
  ActivateTo(activation, n, x, out);
}

void SquaredReluBody(size_t n, float* x) {
  Map(n, x, x, [](Vec v) HWY_ATTR {
    const Vec relu = Relu(v);
    return hn::Mul(relu, relu);
  });
}

void GatedSiluBody(size_t rows, size_t width, const float* x, float* out) {
  for (size_t r = 0; r < rows; ++r, x += 2 * width, out += width) {
    ForVectors(width, [&](size_t i, size_t used) HWY_ATTR {
      StoreN(hn::Mul(Silu(LoadN(x + i, used)), LoadN(x + width + i, used)), out + i, used);
    });
  }
}

template <class T, class Function>
HWY_INLINE void MapBackward(size_t rows, size_t columns, const ActivationBackwardArgs<T>& args,
                            Function function) {
  const size_t stride = args.stride != 0 ? args.stride : columns;
  for (size_t r = 0; r < rows; ++r) {
    ForVectors(columns, [&](size_t c, size_t used) HWY_ATTR {
      const size_t i = r * stride + c;
      const Dual dual = function(LoadN(args.x + r * columns + c, used));
      const Vec grad = hn::Mul(LoadN(args.grad_out + i, used), dual.slope);
      StoreN(dual.value, args.out + i, used);
      StoreN(grad, args.grad + i, used);
      if (args.column_sums != nullptr) {
        float* sum = args.column_sums + c;
        StoreN(hn::Add(LoadN(sum, used), grad), sum, used);
      }
    });
  }
}

template <class T>
HWY_INLINE void ActivateBackwardTo(Activation activation, size_t rows, size_t columns,
                                   const ActivationBackwardArgs<T>& args) {
  if (activation == Activation::kRelu) {
    MapBackward(rows, columns, args, [](Vec v) HWY_ATTR { return ReluDual(v); });
  } else {
    MapBackward(rows, columns, args, [](Vec v) HWY_ATTR { return GeluDual<true>(v); });
  }
}
void ActivateBackwardF32(Activation activation, size_t rows, size_t columns,
                         const ActivationBackwardArgs<float>& args) {
  ActivateBackwardTo(activation, rows, columns, args);
}
void ActivateBackwardBf16(Activation activation, size_t rows, size_t columns,
                          const ActivationBackwardArgs<BFloat16>& args) {
  ActivateBackwardTo(activation, rows, columns, args);
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_ACTIVATION_INL_H_
