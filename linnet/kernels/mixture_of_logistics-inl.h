// The Highway body of mixture_of_logistics.h, compiled once for each instruction set. It processes
// one row at a time, vectorized over the row's mixture components.
#if defined(LINNET_KERNELS_MIXTURE_OF_LOGISTICS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_MIXTURE_OF_LOGISTICS_INL_H_
#undef LINNET_KERNELS_MIXTURE_OF_LOGISTICS_INL_H_
#else
#define LINNET_KERNELS_MIXTURE_OF_LOGISTICS_INL_H_
#endif

#include "hwy/highway.h"
#include "linnet/kernels/logistic-inl.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

template <bool kGradient>
HWY_INLINE void MixtureRow(size_t mixtures, const float* outputs, uint8_t byte, float* nats,
                           float* grad, float grad_scale) {
  const F32 d;
  HWY_ALIGN float logits[kMaxMixtures], joint[kMaxMixtures];
  HWY_ALIGN float d_mean[kGradient ? kMaxMixtures : 1], d_log_scale[kGradient ? kMaxMixtures : 1];
  ForVectors(mixtures, [&](size_t i, size_t used) HWY_ATTR {
    const Vec logit = OrMinusInfinity(LoadN(outputs + i, used), used);
    const LogisticBins bins = LogisticBin<kGradient>(byte, LoadN(outputs + mixtures + i, used),
                                                     LoadN(outputs + 2 * mixtures + i, used));
    hn::Store(logit, d, logits + i);
    hn::Store(hn::Add(logit, bins.log_probability), d, joint + i);
    if constexpr (kGradient) {
      hn::Store(bins.d_mean, d, d_mean + i);
      hn::Store(bins.d_log_scale, d, d_log_scale + i);
    }
  });
  // With kGradient, `logits` becomes softmax(logits), and `joint` the posterior over components.
  *nats = LogSumExp(logits, mixtures, kGradient ? logits : nullptr) -
          LogSumExp(joint, mixtures, kGradient ? joint : nullptr);
  if constexpr (kGradient) {
    const Vec scale = hn::Set(d, grad_scale);
    ForVectors(mixtures, [&](size_t i, size_t used) HWY_ATTR {
      const Vec posterior = hn::Mul(hn::Load(d, joint + i), scale);
      const Vec prior = hn::Mul(hn::Load(d, logits + i), scale);
      StoreN(hn::Sub(prior, posterior), grad + i, used);
      StoreN(hn::Neg(hn::Mul(posterior, hn::Load(d, d_mean + i))), grad + mixtures + i, used);
      StoreN(hn::Neg(hn::Mul(posterior, hn::Load(d, d_log_scale + i))), grad + 2 * mixtures + i,
             used);
    });
  }
}

void MixtureRows(size_t begin, size_t end, size_t mixtures, const float* outputs,
                 const uint8_t* bytes, const MixtureOfLogisticsResult& result) {
  for (size_t r = begin; r < end; ++r) {
    const float* row = outputs + r * 3 * mixtures;
    if (result.grad) {
      MixtureRow<true>(mixtures, row, bytes[r], result.nats + r, result.grad + r * 3 * mixtures,
                       result.grad_scale);
    } else {
      MixtureRow<false>(mixtures, row, bytes[r], result.nats + r, nullptr, 0);
    }
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_MIXTURE_OF_LOGISTICS_INL_H_
