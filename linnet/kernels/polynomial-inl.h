// The Highway bodies of polynomial.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_POLYNOMIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_POLYNOMIAL_INL_H_
#undef LINNET_KERNELS_POLYNOMIAL_INL_H_
#else
#define LINNET_KERNELS_POLYNOMIAL_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hwy/highway.h"
#include "linnet/base/aligned.h"
#include "linnet/kernels/polynomial.h"
#include "linnet/kernels/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linnet::kernels::HWY_NAMESPACE {

HWY_INLINE float Polynomial2Scale(size_t dim) {
  return static_cast<float>(std::pow(static_cast<double>(dim), -0.25));
}

// Rows [begin, end).
void Polynomial2FeaturesRange(size_t dim, const float* x, float* phi, size_t begin, size_t end) {
  const F32 d;
  const Vec scale = hn::Set(d, Polynomial2Scale(dim)),
            root = hn::Set(d, std::numbers::sqrt2_v<float>);
  const size_t size = Polynomial2Size(dim);
  for (size_t r = begin; r < end; ++r) {
    const float* from = x + r * dim;
    float* to = phi + r * size;
    *to++ = 1;
    float* linear = to;  // sqrt(2) y
    ForVectors(dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec y = hn::Mul(LoadN(from + i, used), scale);
      StoreN(hn::Mul(y, root), to + i, used);
      StoreN(hn::Mul(y, y), to + dim + i, used);
    });
    to += 2 * dim;
    for (size_t i = 0; i + 1 < dim; ++i) {
      const Vec first = hn::Mul(hn::Set(d, linear[i]), scale);
      const size_t count = dim - i - 1;
      ForVectors(count, [&](size_t j, size_t used) HWY_ATTR {
        StoreN(hn::Mul(first, LoadN(from + i + 1 + j, used)), to + j, used);
      });
      to += count;
    }
  }
}

// With the gradients g of the features: dy_i = sqrt(2) g_i + 2 y_i g_ii + sqrt(2) sum_j y_j g_ij,
// where g_ij stands for both orders of a pair. Each g_ij is read once: a vector of them, for one i
// and several j > i, adds to the sums of these j, and to a vector of partial sums of i.
void Polynomial2BackwardRange(size_t dim, const float* x, const float* grad_phi, float* grad_x,
                              size_t begin, size_t end) {
  const F32 d;
  const float factor = Polynomial2Scale(dim), root = std::numbers::sqrt2_v<float>;
  const size_t size = Polynomial2Size(dim), padded = RoundUp(dim, 4);
  AlignedBuffer<float> y(dim), sums(padded), parts(padded * kLanes);
  for (size_t r = begin; r < end; ++r) {
    const float *from = x + r * dim, *linear = grad_phi + r * size + 1, *squares = linear + dim;
    ForVectors(dim, [&](size_t i, size_t used) HWY_ATTR {
      StoreN(hn::Mul(LoadN(from + i, used), hn::Set(d, factor)), y.data() + i, used);
    });
    std::fill(parts.begin(), parts.end(), 0.0f);
    ForVectors(dim, [&](size_t j, size_t used) HWY_ATTR {
      const Vec y_j = LoadN(y.data() + j, used);
      Vec sum = hn::MulAdd(hn::Mul(hn::Set(d, root), y_j), LoadN(squares + j, used),
                           LoadN(linear + j, used));
      const float* pair = squares + dim + j - 1;  // g_ij for i = 0
      for (size_t i = 0; i < std::min(dim - 1, j + used); ++i) {
        Vec g = LoadN(pair, used);
        if (i >= j) g = hn::IfThenZeroElse(hn::FirstN(d, i + 1 - j), g);  // not a pair i < j
        float* part = parts.data() + i * kLanes;
        sum = hn::MulAdd(g, hn::Set(d, y[i]), sum);
        hn::Store(hn::MulAdd(g, y_j, hn::Load(d, part)), d, part);
        pair += dim - i - 2;
      }
      StoreN(sum, grad_x + r * dim + j, used);
    });
    SumEach(dim, sums.data(), [&](size_t i) HWY_ATTR { return hn::Load(d, &parts[i * kLanes]); });
    const Vec scale = hn::Set(d, root * factor);
    ForVectors(dim, [&](size_t i, size_t used) HWY_ATTR {
      float* to = grad_x + r * dim + i;
      StoreN(hn::Mul(hn::Add(LoadN(to, used), LoadN(sums.data() + i, used)), scale), to, used);
    });
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_POLYNOMIAL_INL_H_
