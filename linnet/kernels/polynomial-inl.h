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
#include "linnet/kernels/polynomial.h"
#include "linnet/kernels/vector-inl.h"

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
// and several j > i, adds to the sums of these j and to that of i.
void Polynomial2BackwardRange(size_t dim, const float* x, const float* grad_phi, float* grad_x,
                              size_t begin, size_t end) {
  constexpr size_t kGroup = 4;  // values of i whose sums are reduced together
  const F32 d;
  const float factor = Polynomial2Scale(dim), root = std::numbers::sqrt2_v<float>;
  const size_t size = Polynomial2Size(dim);
  for (size_t r = begin; r < end; ++r) {
    const float *from = x + r * dim, *linear = grad_phi + r * size + 1, *squares = linear + dim;
    float* to = grad_x + r * dim;
    ForVectors(dim, [&](size_t j, size_t used) HWY_ATTR {
      const Vec y_j = hn::Mul(LoadN(from + j, used), hn::Set(d, factor));
      Vec sum = hn::MulAdd(hn::Mul(hn::Set(d, root), y_j), LoadN(squares + j, used),
                           LoadN(linear + j, used));
      HWY_ALIGN float own[hn::MaxLanes(F32())] =
          {};                                     // what this vector's pairs add to its own sums
      const float* pair = squares + dim + j - 1;  // g_ij for i = 0
      const size_t last = std::min(dim - 1, j + used);
      for (size_t i = 0; i < last; i += kGroup) {
        const size_t count = std::min(kGroup, last - i);
        Vec parts[kGroup];
        Unrolled<kGroup>([&](auto t) HWY_ATTR {
          parts[t] = hn::Zero(d);
          if (t >= count) return;
          Vec g = LoadN(pair, used);
          if (i + t >= j) g = hn::IfThenZeroElse(hn::FirstN(d, i + t + 1 - j), g);  // not i < j
          sum = hn::MulAdd(g, hn::Set(d, from[i + t] * factor), sum);
          parts[t] = hn::Mul(g, y_j);
          pair += dim - (i + t) - 2;
        });
        float dots[kGroup];
        StoreSums(parts[0], parts[1], parts[2], parts[3], dots);
        for (size_t t = 0; t < count; ++t) (i + t < j ? to[i + t] : own[i + t - j]) += dots[t];
      }
      StoreN(hn::Add(sum, hn::Load(d, own)), to + j, used);
    });
    const Vec scale = hn::Set(d, root * factor);
    ForVectors(dim, [&](size_t i, size_t used)
                        HWY_ATTR { StoreN(hn::Mul(LoadN(to + i, used), scale), to + i, used); });
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_POLYNOMIAL_INL_H_
