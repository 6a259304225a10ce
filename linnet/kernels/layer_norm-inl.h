// The Highway body of layer_norm.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_LAYER_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_LAYER_NORM_INL_H_
#undef LINNET_KERNELS_LAYER_NORM_INL_H_
#else
#define LINNET_KERNELS_LAYER_NORM_INL_H_
#endif

#include <cmath>

#include "hwy/highway.h"
#include "linnet/kernels/layer_norm.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

void LayerNormBody(const LayerNormShape& shape, const LayerNormInput& input,
                   const LayerNormParameters& parameters, float* y, size_t y_stride) {
  const F32 d;
  const float scale = 1.0f / static_cast<float>(shape.dim);
  for (size_t r = 0; r < shape.rows; ++r, y += y_stride) {
    const float* x = input.x + r * input.x_stride;
    const float* residual = input.residual ? input.residual + r * input.residual_stride : nullptr;
    float* kept = input.sum ? input.sum + r * input.residual_stride : nullptr;
    Vec sum = hn::Zero(d);
    ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
      Vec t = LoadN(x + i, used);
      for (size_t part = 1; part < input.parts; ++part) {
        t = hn::Add(t, LoadN(x + part * input.part_stride + i, used));
      }
      if (input.factors) t = hn::Mul(t, hn::Set(d, input.factors[r]));
      if (residual) t = hn::Add(t, LoadN(residual + i, used));
      sum = hn::Add(sum, t);
      StoreN(t, y + i, used);
      if (kept) StoreN(t, kept + i, used);
    });
    const bool rms = parameters.bias == nullptr;
    const Vec mean = rms ? hn::Zero(d) : hn::Mul(hn::SumOfLanes(d, sum), hn::Set(d, scale));
    Vec squares = hn::Zero(d);
    ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
      Vec t = hn::Sub(LoadN(y + i, used), mean);
      if (used != hn::Lanes(d)) t = ZeroBeyond(t, used);
      squares = hn::MulAdd(t, t, squares);
    });
    const float variance = SumOf(squares) * scale;
    const Vec inverse = hn::Set(d, 1.0f / std::sqrt(variance + shape.eps));
    ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec t = hn::Mul(hn::Sub(LoadN(y + i, used), mean), inverse);
      const Vec bias = rms ? hn::Zero(d) : LoadN(parameters.bias + i, used);
      StoreN(hn::MulAdd(t, LoadN(parameters.weight + i, used), bias), y + i, used);
    });
  }
}

// With std = sqrt(var + eps), n = (x - mean) / std and g = grad_y * weight:
//   grad_x = (g - mean(g) - n * mean(g * n)) / std
void LayerNormBackwardBody(const LayerNormShape& shape, const LayerNormBackwardArgs& args) {
  const F32 d;
  const float scale = 1.0f / static_cast<float>(shape.dim);
  for (size_t r = 0; r < shape.rows; ++r) {
    const float* x = args.x + r * shape.dim;
    const float* grad_y = args.grad_y + r * shape.dim;
    float* grad_x = args.grad_x + r * shape.dim;
    Vec sum = hn::Zero(d);
    ForVectors(shape.dim,
               [&](size_t i, size_t used) HWY_ATTR { sum = hn::Add(sum, LoadN(x + i, used)); });
    const Vec mean = hn::Mul(hn::SumOfLanes(d, sum), hn::Set(d, scale));
    Vec squares = hn::Zero(d), g_sum = hn::Zero(d), gx_sum = hn::Zero(d);
    ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
      Vec t = hn::Sub(LoadN(x + i, used), mean);
      if (used != hn::Lanes(d)) t = ZeroBeyond(t, used);
      const Vec g = hn::Mul(LoadN(grad_y + i, used), LoadN(args.weight + i, used));
      squares = hn::MulAdd(t, t, squares);
      g_sum = hn::Add(g_sum, g);
      gx_sum = hn::MulAdd(g, t, gx_sum);
    });
    const float variance = SumOf(squares) * scale;
    const Vec inverse = hn::Set(d, 1.0f / std::sqrt(variance + shape.eps));
    const Vec g_mean = hn::Mul(hn::SumOfLanes(d, g_sum), hn::Set(d, scale));
    const Vec gn_mean = hn::Mul(hn::Mul(hn::SumOfLanes(d, gx_sum), hn::Set(d, scale)), inverse);
    ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec n = hn::Mul(hn::Sub(LoadN(x + i, used), mean), inverse);
      const Vec gy = LoadN(grad_y + i, used);
      const Vec g = hn::Mul(gy, LoadN(args.weight + i, used));
      float* grad_weight = args.grad_weight + i;
      float* grad_bias = args.grad_bias + i;
      StoreN(hn::MulAdd(gy, n, LoadN(grad_weight, used)), grad_weight, used);
      StoreN(hn::Add(gy, LoadN(grad_bias, used)), grad_bias, used);
      StoreN(hn::Mul(hn::NegMulAdd(n, gn_mean, hn::Sub(g, g_mean)), inverse), grad_x + i, used);
    });
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LAYER_NORM_INL_H_
