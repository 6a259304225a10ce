// The Highway body of exp_sum.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_EXP_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_EXP_SUM_INL_H_
#undef LINNET_KERNELS_EXP_SUM_INL_H_
#else
#define LINNET_KERNELS_EXP_SUM_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <limits>

#include "hwy/highway.h"
#include "linnet/kernels/exp-inl.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

float LargestBody(const float* x, size_t n) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  Vec largest = hn::Set(d, x[0]);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) largest = hn::Max(largest, hn::LoadU(d, x + i));
  float found = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < n; ++i) found = std::max(found, x[i]);
  return found;
}

double ExpSumBody(const float* x, size_t n, float largest, float scale, float* out) {
  const F32 d;
  const Vec top = hn::Set(d, largest), times = hn::Set(d, scale);
  const Vec least = hn::Set(d, std::numeric_limits<float>::lowest());  // only -infinity is less
  // Each block is summed in fp32, which is precise enough for so few terms; the blocks' sums are
  // added in double precision.
  constexpr size_t kBlock = 256;
  double sum = 0;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    Vec sums = hn::Zero(d);
    const size_t length = std::min(kBlock, n - begin);
    ForVectors(length, [&](size_t i, size_t used) HWY_ATTR {
      const Vec v = LoadN(x + begin + i, used);
      const Vec e = hn::IfThenZeroElse(hn::Lt(v, least), Exp(hn::Mul(hn::Sub(v, top), times)));
      sums = hn::Add(sums, ZeroBeyond(e, used));
      if (out != nullptr) StoreN(e, out + begin + i, used);
    });
    sum += SumOf(sums);
  }
  return sum;
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_EXP_SUM_INL_H_
