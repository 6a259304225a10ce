// The Highway body of pixel_logistics.h, compiled once for each instruction set. It processes one
// pixel at a time, vectorized over the mixture's components.
#if defined(LINNET_KERNELS_PIXEL_LOGISTICS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_PIXEL_LOGISTICS_INL_H_
#undef LINNET_KERNELS_PIXEL_LOGISTICS_INL_H_
#else
#define LINNET_KERNELS_PIXEL_LOGISTICS_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "linnet/kernels/logistic-inl.h"
#include "linnet/kernels/pixel_logistics.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

template <bool kGradient>
HWY_INLINE void PixelRow(size_t mixtures, const float* outputs, const uint8_t* rgb, float* nats,
                         float* grad, float grad_scale) {
  const F32 d;
  HWY_ALIGN float logits[kMaxMixtures], joint[kMaxMixtures];
  // The derivatives of ln P_i(r, g, b) with respect to the outputs after the logits, by block.
  HWY_ALIGN float slopes[9][kGradient ? kMaxMixtures : 1];
  const auto value = [&](size_t color) HWY_ATTR {
    return hn::Set(d, static_cast<float>(rgb[color]) * (2.0f / 255) - 1.0f);
  };
  ForVectors(mixtures, [&](size_t i, size_t used) HWY_ATTR {
    const auto output = [&](size_t block)
                            HWY_ATTR { return LoadN(outputs + block * mixtures + i, used); };
    const auto store = [&](size_t block, Vec slope) HWY_ATTR {
      if constexpr (kGradient) hn::Store(slope, d, slopes[block - 1] + i);
    };
    const Vec logit = OrMinusInfinity(output(0), used);
    hn::Store(logit, d, logits + i);
    Vec log = logit;
    // Adds the log of a color's probability. Returns its derivative with respect to the mean.
    const auto add = [&](size_t color, Vec mean) HWY_ATTR {
      const LogisticBins bins = LogisticBin<kGradient>(rgb[color], mean, output(4 + color));
      log = hn::Add(log, bins.log_probability);
      store(1 + color, bins.d_mean);
      store(4 + color, bins.d_log_scale);
      return bins.d_mean;
    };
    // The derivative with respect to a coefficient that shifts the mean by tanh(coefficient) x.
    const auto shift = [&](Vec d_mean, Vec tanh, Vec x) HWY_ATTR {
      return hn::Mul(hn::Mul(d_mean, x), hn::NegMulAdd(tanh, tanh, hn::Set(d, 1.0f)));
    };
    const Vec red = value(0), green = value(1);
    const Vec c0 = hn::Tanh(d, output(7)), c1 = hn::Tanh(d, output(8)), c2 = hn::Tanh(d, output(9));
    add(0, output(1));
    const Vec d_green = add(1, hn::MulAdd(c0, red, output(2)));
    const Vec d_blue = add(2, hn::MulAdd(c2, green, hn::MulAdd(c1, red, output(3))));
    store(7, shift(d_green, c0, red));
    store(8, shift(d_blue, c1, red));
    store(9, shift(d_blue, c2, green));
    hn::Store(log, d, joint + i);
  });
  // With kGradient, `logits` becomes softmax(logits), and `joint` the posterior over components.
  *nats = LogSumExp(logits, mixtures, kGradient ? logits : nullptr) -
          LogSumExp(joint, mixtures, kGradient ? joint : nullptr);
  if constexpr (kGradient) {
    const Vec scale = hn::Set(d, grad_scale);
    ForVectors(mixtures, [&](size_t i, size_t used) HWY_ATTR {
      const Vec posterior = hn::Mul(hn::Load(d, joint + i), scale);
      StoreN(hn::MulSub(hn::Load(d, logits + i), scale, posterior), grad + i, used);
      for (size_t block = 1; block < 10; ++block) {
        StoreN(hn::Neg(hn::Mul(posterior, hn::Load(d, slopes[block - 1] + i))),
               grad + block * mixtures + i, used);
      }
    });
  }
}

void PixelRows(size_t begin, size_t end, size_t mixtures, const float* outputs, const uint8_t* rgb,
               const MixtureOfLogisticsResult& result) {
  for (size_t r = begin; r < end; ++r) {
    const float* row = outputs + r * 10 * mixtures;
    if (result.grad) {
      PixelRow<true>(mixtures, row, rgb + 3 * r, result.nats + r, result.grad + r * 10 * mixtures,
                     result.grad_scale);
    } else {
      PixelRow<false>(mixtures, row, rgb + 3 * r, result.nats + r, nullptr, 0);
    }
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_PIXEL_LOGISTICS_INL_H_
