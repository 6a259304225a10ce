// The Highway bodies of head_norm.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_HEAD_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_HEAD_NORM_INL_H_
#undef LINNET_KERNELS_HEAD_NORM_INL_H_
#else
#define LINNET_KERNELS_HEAD_NORM_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "linnet/kernels/head_norm.h"
#include "linnet/kernels/sigmoid-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// The derivative of silu(x) = x s, where s = sigmoid(x): s + x s (1 - s).
HWY_INLINE Vec SiluSlope(Vec x, Vec s) {
  const Vec rest = hn::Sub(hn::Set(F32(), 1.0f), s);
  return hn::MulAdd(hn::Mul(x, s), rest, s);
}

void L2NormBody(size_t rows, size_t width, float eps, float* x) {
  const F32 d;
  for (size_t r = 0; r < rows; ++r, x += width) {
    Vec squares = hn::Zero(d);
    ForVectors(width, [&](size_t i, size_t used) HWY_ATTR {
      const Vec v = LoadN(x + i, used);
      squares = hn::MulAdd(v, v, squares);
    });
    const Vec inverse = hn::Set(d, 1.0f / std::sqrt(SumOf(squares) + eps));
    ForVectors(width, [&](size_t i, size_t used)
                          HWY_ATTR { StoreN(hn::Mul(LoadN(x + i, used), inverse), x + i, used); });
  }
}

// Rows [begin, end).
void SiluL2NormRange(const SiluL2NormShape& shape, const float* x, float* y, size_t begin,
                     size_t end) {
  const F32 d;
  for (size_t r = begin; r < end; ++r) {
    const float* from = x + r * shape.columns;
    float* to = y + r * shape.columns;
    for (size_t g = 0; g < shape.normed; g += shape.width) {
      Vec squares = hn::Zero(d);
      ForVectors(shape.width, [&](size_t i, size_t used) HWY_ATTR {
        const Vec s = Silu(LoadN(from + g + i, used));
        squares = hn::MulAdd(s, s, squares);
        StoreN(s, to + g + i, used);
      });
      const Vec inverse = hn::Set(d, 1.0f / std::sqrt(SumOf(squares) + shape.eps));
      ForVectors(shape.width, [&](size_t i, size_t used) HWY_ATTR {
        StoreN(hn::Mul(LoadN(to + g + i, used), inverse), to + g + i, used);
      });
    }
    ForVectors(shape.columns - shape.normed, [&](size_t i, size_t used) HWY_ATTR {
      StoreN(Silu(LoadN(from + shape.normed + i, used)), to + shape.normed + i, used);
    });
  }
}

// With n = s / length and g = grad_y, the gradient of s is (g - n (n . g)) / length.
void SiluL2NormBackwardRange(const SiluL2NormShape& shape, const float* x, const float* grad_y,
                             float* grad_x, size_t begin, size_t end) {
  const F32 d;
  for (size_t r = begin; r < end; ++r) {
    const float* from = x + r * shape.columns;
    const float* grad = grad_y + r * shape.columns;
    float* to = grad_x + r * shape.columns;
    for (size_t g = 0; g < shape.normed; g += shape.width) {
      Vec squares = hn::Zero(d), product = hn::Zero(d);
      ForVectors(shape.width, [&](size_t i, size_t used) HWY_ATTR {
        const Vec s = Silu(LoadN(from + g + i, used));
        squares = hn::MulAdd(s, s, squares);
        product = hn::MulAdd(s, LoadN(grad + g + i, used), product);
      });
      const float inverse = 1.0f / std::sqrt(SumOf(squares) + shape.eps);
      const Vec scale = hn::Set(d, inverse);
      const Vec along = hn::Set(d, SumOf(product) * inverse * inverse);
      ForVectors(shape.width, [&](size_t i, size_t used) HWY_ATTR {
        const Vec v = LoadN(from + g + i, used), s = Sigmoid(v);
        const Vec across = hn::NegMulAdd(hn::Mul(v, s), along, LoadN(grad + g + i, used));
        StoreN(hn::Mul(hn::Mul(across, scale), SiluSlope(v, s)), to + g + i, used);
      });
    }
    ForVectors(shape.columns - shape.normed, [&](size_t i, size_t used) HWY_ATTR {
      const Vec v = LoadN(from + shape.normed + i, used);
      const Vec g = LoadN(grad + shape.normed + i, used);
      StoreN(hn::Mul(g, SiluSlope(v, Sigmoid(v))), to + shape.normed + i, used);
    });
  }
}

// f(gate) and its derivative; 1 and 0 without a gate.
struct Gated {
  Vec value, slope;
};
HWY_INLINE Gated GateOf(const float* gate, size_t used, GateFunction function) {
  const Vec one = hn::Set(F32(), 1.0f);
  if (gate == nullptr) return {one, hn::Zero(F32())};
  const Vec z = LoadN(gate, used), s = Sigmoid(z);
  if (function == GateFunction::kSilu) return {hn::Mul(z, s), SiluSlope(z, s)};
  return {s, hn::Mul(s, hn::Sub(one, s))};
}

HWY_INLINE const float* GateAt(const GatedRmsNormShape& shape, const GatedRmsNormArgs& args,
                               size_t row, size_t head) {
  return args.gate == nullptr ? nullptr : args.gate + row * args.gate_stride + head * shape.width;
}

void GatedRmsNormRange(const GatedRmsNormShape& shape, const GatedRmsNormArgs& args, float* y,
                       size_t begin, size_t end) {
  const F32 d;
  const float share = 1.0f / static_cast<float>(shape.width);
  for (size_t r = begin; r < end; ++r) {
    for (size_t h = 0; h < shape.heads; ++h) {
      const size_t at = (r * shape.heads + h) * shape.width;
      const float* x = args.x + at;
      const float* gate = GateAt(shape, args, r, h);
      Vec squares = hn::Zero(d);
      ForVectors(shape.width, [&](size_t i, size_t used) HWY_ATTR {
        const Vec v = LoadN(x + i, used);
        squares = hn::MulAdd(v, v, squares);
      });
      const Vec inverse = hn::Set(d, 1.0f / std::sqrt(SumOf(squares) * share + shape.eps));
      ForVectors(shape.width, [&](size_t i, size_t used) HWY_ATTR {
        const Vec n = hn::Mul(LoadN(x + i, used), inverse);
        const Vec f = GateOf(gate == nullptr ? nullptr : gate + i, used, shape.function).value;
        StoreN(hn::Mul(hn::Mul(n, LoadN(args.weight + i, used)), f), y + at + i, used);
      });
    }
  }
}

// With n = x / rms and a = grad_y weight f(gate), the gradient of x is (a - n mean(n a)) / rms. The
// weight's gradient over the rows [begin, end) is written to grad_weight.
void GatedRmsNormBackwardRange(const GatedRmsNormShape& shape, const GatedRmsNormArgs& args,
                               const float* grad_y, const GatedRmsNormGradients& gradients,
                               float* grad_weight, size_t begin, size_t end) {
  const F32 d;
  const float share = 1.0f / static_cast<float>(shape.width);
  std::fill_n(grad_weight, shape.width, 0.0f);
  for (size_t r = begin; r < end; ++r) {
    for (size_t h = 0; h < shape.heads; ++h) {
      const size_t at = (r * shape.heads + h) * shape.width;
      const float* x = args.x + at;
      const float* gate = GateAt(shape, args, r, h);
      const auto gate_at = [&](size_t i) { return gate == nullptr ? nullptr : gate + i; };
      Vec squares = hn::Zero(d), product = hn::Zero(d);
      ForVectors(shape.width, [&](size_t i, size_t used) HWY_ATTR {
        const Vec v = LoadN(x + i, used), f = GateOf(gate_at(i), used, shape.function).value;
        const Vec a =
            hn::Mul(hn::Mul(LoadN(grad_y + at + i, used), f), LoadN(args.weight + i, used));
        squares = hn::MulAdd(v, v, squares);
        product = hn::MulAdd(v, a, product);
      });
      const float inverse = 1.0f / std::sqrt(SumOf(squares) * share + shape.eps);
      const Vec scale = hn::Set(d, inverse);
      const Vec along = hn::Set(d, SumOf(product) * share * inverse * inverse);
      ForVectors(shape.width, [&](size_t i, size_t used) HWY_ATTR {
        const Vec v = LoadN(x + i, used), w = LoadN(args.weight + i, used);
        const Vec g = LoadN(grad_y + at + i, used), n = hn::Mul(v, scale);
        const Gated gated = GateOf(gate_at(i), used, shape.function);
        const Vec gf = hn::Mul(g, gated.value), gn = hn::Mul(g, n);
        float* sum = grad_weight + i;
        StoreN(hn::MulAdd(gf, n, LoadN(sum, used)), sum, used);
        if (gate != nullptr) {
          StoreN(hn::Mul(hn::Mul(gn, w), gated.slope), gradients.gate + at + i, used);
        }
        const Vec across = hn::NegMulAdd(v, along, hn::Mul(gf, w));
        StoreN(hn::Mul(across, scale), gradients.x + at + i, used);
      });
    }
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_HEAD_NORM_INL_H_
