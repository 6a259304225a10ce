// Parts of the Highway bodies of mixture_of_logistics.h and pixel_logistics.h: the probability of a
// byte under logistics, and sums over a mixture's components.
#if defined(LINNET_KERNELS_LOGISTIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_LOGISTIC_INL_H_
#undef LINNET_KERNELS_LOGISTIC_INL_H_
#else
#define LINNET_KERNELS_LOGISTIC_INL_H_
#endif

#include <cmath>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "linnet/kernels/mixture_of_logistics.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// ln P_i(b) for a vector of components, and its derivatives with respect to mean and log-scale. NaN
// if the mean or the log-scale is.
struct LogisticBins {
  Vec log_probability, d_mean, d_log_scale;
};

template <bool kGradient>
HWY_INLINE LogisticBins LogisticBin(uint8_t byte, Vec mean, Vec log_scale) {
  const F32 d;
  const Vec zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  const Vec half_bin = hn::Set(d, 1.0f / 255);
  const Vec center = hn::Sub(hn::Set(d, static_cast<float>(byte) * (2.0f / 255) - 1.0f), mean);
  // The upper bound on the log-scale only keeps `width`, the width of a bin, above zero.
  const Vec low = hn::Set(d, kMinLogScale), high = hn::Set(d, kMaxLogScale);
  const auto clamped = hn::Lt(log_scale, low);
  const Vec inverse = hn::Exp(d, hn::Neg(hn::Min(high, hn::Max(low, log_scale))));
  const Vec plus = hn::Mul(hn::Add(center, half_bin), inverse);
  const Vec minus = hn::Mul(hn::Sub(center, half_bin), inverse);
  const Vec width = hn::Mul(hn::Set(d, 2.0f / 255), inverse);

  // P_i is the product of three factors (see the header). If the bin reaches to infinity at one
  // end, the factors that involve this end are 1: their logarithms and derivatives are 0.
  //
  // As ln sigmoid(x) = min(x, 0) - ln(1 + exp(-|x|)), one logarithm is enough:
  // ln P_i = log_outside + ln(probability / inside). d_plus and d_minus are the derivatives of
  // ln P_i's factors with respect to plus and -minus, d_width with respect to the log-scale.
  Vec log_outside = zero, inside = one;
  Vec d_plus = zero, d_minus = zero, d_width = zero;
  if (byte != 255) {  // ln sigmoid(plus)
    const Vec e = hn::Exp(d, hn::Neg(hn::Abs(plus)));
    inside = hn::Add(one, e);
    log_outside = hn::Min(plus, zero);
    if (kGradient) d_plus = hn::Div(hn::IfThenElse(hn::Lt(plus, zero), one, e), inside);
  }
  if (byte != 0) {  // ln sigmoid(-minus)
    const Vec e = hn::Exp(d, hn::Neg(hn::Abs(minus)));
    const Vec sum = hn::Add(one, e);
    inside = hn::Mul(inside, sum);
    log_outside = hn::Sub(log_outside, hn::Max(minus, zero));
    if (kGradient) d_minus = hn::Div(hn::IfThenElse(hn::Lt(minus, zero), e, one), sum);
  }
  Vec probability = one;
  if (byte != 0 && byte != 255) {  // 1 - exp(-width)
    const Vec rest = hn::Expm1(d, hn::Neg(width));
    probability = hn::Neg(rest);
    if (kGradient) d_width = hn::Div(hn::Mul(width, hn::Add(one, rest)), rest);
  }
  // Exp(), Min() and Max() drop NaNs.
  const Vec sum = hn::Add(mean, log_scale);
  const Vec log_probability = hn::IfThenElse(
      hn::IsNaN(sum), sum, hn::Add(log_outside, hn::Log(d, hn::Div(probability, inside))));
  if (!kGradient) return {log_probability, zero, zero};
  const Vec slope = hn::Add(hn::MulSub(minus, d_minus, hn::Mul(plus, d_plus)), d_width);
  return {log_probability, hn::Mul(inverse, hn::Sub(d_minus, d_plus)),
          hn::IfThenZeroElse(clamped, slope)};
}

// Sets unused lanes to -inf, so that a sum of exponentials needs no mask.
HWY_INLINE Vec OrMinusInfinity(Vec v, size_t used) {
  const F32 d;
  return hn::IfThenElse(hn::FirstN(d, used), v, hn::Set(d, -HUGE_VALF));
}

// Returns ln sum_i exp(x_i) over the row x [n], which is padded with -inf to whole vectors. If
// `exponentials` is not null, softmax(x) is written there; `exponentials` may alias x. NaNs spread.
HWY_INLINE float LogSumExp(const float* x, size_t n, float* exponentials) {
  const F32 d;
  Vec max = hn::Load(d, x);
  ForVectors(n, [&](size_t i, size_t) HWY_ATTR { max = hn::Max(max, hn::Load(d, x + i)); });
  max = hn::MaxOfLanes(d, max);
  Vec sum = hn::Zero(d);
  ForVectors(n, [&](size_t i, size_t) HWY_ATTR {
    const Vec at = hn::Load(d, x + i);
    const Vec e = hn::IfThenElse(hn::IsNaN(at), at, hn::Exp(d, hn::Sub(at, max)));
    sum = hn::Add(sum, e);
    if (exponentials) hn::Store(e, d, exponentials + i);
  });
  sum = hn::SumOfLanes(d, sum);
  if (exponentials) {
    const Vec scale = hn::Div(hn::Set(d, 1.0f), sum);
    ForVectors(n, [&](size_t i, size_t) HWY_ATTR {
      hn::Store(hn::Mul(hn::Load(d, exponentials + i), scale), d, exponentials + i);
    });
  }
  return hn::GetLane(max) + std::log(hn::GetLane(sum));
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_LOGISTIC_INL_H_
