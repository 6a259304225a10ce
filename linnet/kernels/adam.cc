#include "linnet/kernels/adam.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linnet/kernels/adam.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

void AdamBody(size_t n, const AdamStep& step, const float* gradient, float* p, float* m, float* v) {
  const F32 d;
  const auto c = [d](float value) HWY_ATTR { return hn::Set(d, value); };
  const Vec beta1 = c(step.beta1), rest1 = c(1 - step.beta1);
  const Vec beta2 = c(step.beta2), rest2 = c(1 - step.beta2);
  const Vec scale = c(step.gradient_scale), decay = c(step.decay), size = c(step.step);
  const Vec root_scale = c(step.root_scale), eps = c(step.eps);
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    const Vec g = hn::Mul(LoadN(gradient + i, used), scale);
    const Vec first = hn::MulAdd(beta1, LoadN(m + i, used), hn::Mul(rest1, g));
    const Vec second = hn::MulAdd(beta2, LoadN(v + i, used), hn::Mul(rest2, hn::Mul(g, g)));
    Vec move = hn::Mul(size, first);
    if (step.adaptive) move = hn::Div(move, hn::MulAdd(hn::Sqrt(second), root_scale, eps));
    StoreN(first, m + i, used);
    StoreN(second, v + i, used);
    StoreN(hn::MulSub(decay, LoadN(p + i, used), move), p + i, used);
  });
}

double SquaredNormBody(size_t n, const float* x) {
  // Sums each run of kRun elements in float, and the sums of the runs in double.
  constexpr size_t kRun = 1024;
  const F32 d;
  double sum = 0;
  for (size_t begin = 0; begin < n; begin += kRun) {
    Vec squares = hn::Zero(d);
    ForVectors(std::min(kRun, n - begin), [&](size_t i, size_t used) HWY_ATTR {
      const Vec t = LoadN(x + begin + i, used);
      squares = hn::MulAdd(t, t, squares);
    });
    sum += SumOf(squares);
  }
  return sum;
}

float MuonAverageBody(size_t n, float scale, float momentum, float* gradient, float* average) {
  const F32 d;
  const Vec by = hn::Set(d, scale), kept = hn::Set(d, momentum);
  Vec largest = hn::Zero(d);
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    const Vec g = hn::Mul(by, LoadN(gradient + i, used));
    const Vec mean = hn::MulAdd(kept, LoadN(average + i, used), g);
    const Vec ahead = hn::MulAdd(kept, mean, g);
    StoreN(mean, average + i, used);
    StoreN(ahead, gradient + i, used);
    largest = hn::Max(largest, hn::Abs(ahead));  // lanes beyond `used` are zero
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

void MuonStepBody(size_t n, float decay, float step, const float* x, float* p) {
  const F32 d;
  const Vec kept = hn::Set(d, decay), size = hn::Set(d, step);
  ForVectors(n, [&](size_t i, size_t used) HWY_ATTR {
    const Vec move = hn::Mul(size, LoadN(x + i, used));
    StoreN(hn::MulSub(kept, LoadN(p + i, used), move), p + i, used);
  });
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linnet::kernels {

HWY_EXPORT(AdamBody);
HWY_EXPORT(SquaredNormBody);
HWY_EXPORT(MuonAverageBody);
HWY_EXPORT(MuonStepBody);

void AdamUpdate(size_t n, const AdamStep& step, const float* gradient, float* p, float* m,
                float* v) {
  HWY_DYNAMIC_DISPATCH(AdamBody)(n, step, gradient, p, m, v);
}

float MuonAverage(size_t n, float scale, float momentum, float* gradient, float* average) {
  return HWY_DYNAMIC_DISPATCH(MuonAverageBody)(n, scale, momentum, gradient, average);
}

void MuonStep(size_t n, float decay, float step, const float* x, float* p) {
  HWY_DYNAMIC_DISPATCH(MuonStepBody)(n, decay, step, x, p);
}

double SquaredNorm(size_t n, const float* x) { return HWY_DYNAMIC_DISPATCH(SquaredNormBody)(n, x); }

}  // namespace linnet::kernels
#endif  // HWY_ONCE
