// The Highway bodies of draw.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_DRAW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_DRAW_INL_H_
#undef LINNET_KERNELS_DRAW_INL_H_
#else
#define LINNET_KERNELS_DRAW_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"
#include "linnet/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

// Calls body(block's sum, its first index, its length) for blocks of the row until it returns
// true. Each block's sum of term(vector) is in fp32, which is precise enough for so few terms.
template <class Term, class Body>
HWY_INLINE void SumBlocks(const float* row, size_t n, Term term, Body body) {
  constexpr size_t kBlock = 256;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t length = std::min(kBlock, n - begin);
    Vec sums = hn::Zero(F32());
    ForVectors(length, [&](size_t i, size_t used)
                           HWY_ATTR { sums = hn::Add(sums, term(LoadN(row + begin + i, used))); });
    if (body(SumOf(sums), begin, length)) return;
  }
}

size_t DrawIndexBody(const float* weights, size_t n, double target) {
  double rest = target;
  size_t drawn = n;
  // The last positive weight of `length`, from `begin` on, or `drawn`.
  const auto last_positive = [&](size_t begin, size_t length) {
    for (size_t i = begin + length; i-- > begin;) {
      if (weights[i] > 0) return i;
    }
    return drawn;
  };
  const auto all = [](Vec v) HWY_ATTR { return v; };
  SumBlocks(weights, n, all, [&](float sum, size_t begin, size_t length) {
    if (rest - sum >= 0) {
      rest -= sum;
      return false;
    }
    for (size_t i = begin; i < begin + length; ++i) {
      rest -= weights[i];
      if (rest < 0) {
        drawn = i;
        return true;
      }
    }
    drawn = last_positive(begin, length);
    return true;
  });
  return drawn < n ? drawn : last_positive(0, n);
}

double SumOfHeavierBody(const float* weights, size_t n, size_t index) {
  const Vec weight = hn::Set(F32(), weights[index]);
  double sum = 0;
  const auto add = [&](float block, size_t, size_t) {
    sum += block;
    return false;
  };
  // The lanes beyond the row's end hold zeros, which add nothing.
  const auto as_heavy = [&](Vec v) HWY_ATTR { return hn::IfThenElseZero(hn::Ge(v, weight), v); };
  const auto heavier = [&](Vec v) HWY_ATTR { return hn::IfThenElseZero(hn::Gt(v, weight), v); };
  SumBlocks(weights, index, as_heavy, add);
  SumBlocks(weights + index, n - index, heavier, add);
  return sum;
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_DRAW_INL_H_
