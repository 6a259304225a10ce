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
    Vec sum = hn::Zero(d);
    ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
      Vec t = LoadN(x + i, used);
      for (size_t part = 1; part < input.parts; ++part) {
        t = hn::Add(t, LoadN(x + part * input.part_stride + i, used));
      }
      if (residual) t = hn::Add(t, LoadN(residual + i, used));
      sum = hn::Add(sum, t);
      StoreN(t, y + i, used);
    });
    const Vec mean = hn::Mul(hn::SumOfLanes(d, sum), hn::Set(d, scale));
    Vec squares = hn::Zero(d);
    ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
      Vec t = hn::Sub(LoadN(y + i, used), mean);
      if (used != hn::Lanes(d)) t = ZeroBeyond(t, used);
      squares = hn::MulAdd(t, t, squares);
    });
    const float variance = hn::GetLane(hn::SumOfLanes(d, squares)) * scale;
    const Vec inverse = hn::Set(d, 1.0f / std::sqrt(variance + shape.eps));
    ForVectors(shape.dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec t = hn::Mul(hn::Sub(LoadN(y + i, used), mean), inverse);
      StoreN(hn::MulAdd(t, LoadN(parameters.weight + i, used), LoadN(parameters.bias + i, used)),
             y + i, used);
    });
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LAYER_NORM_INL_H_
