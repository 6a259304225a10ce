// The Highway bodies of polynomial.h, compiled once for each instruction set.
#if defined(LINNET_KERNELS_POLYNOMIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINNET_KERNELS_POLYNOMIAL_INL_H_
#undef LINNET_KERNELS_POLYNOMIAL_INL_H_
#else
#define LINNET_KERNELS_POLYNOMIAL_INL_H_
#endif

#include <cmath>
#include <numbers>
#include <vector>

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

// With the gradients g of the features: dy_i = sqrt(2) g_i + 2 y_i g_ii + sqrt(2) sum_j y_j g_ij.
void Polynomial2BackwardRange(size_t dim, const float* x, const float* grad_phi, float* grad_x,
                              size_t begin, size_t end) {
  const F32 d;
  const float factor = Polynomial2Scale(dim), root = std::numbers::sqrt2_v<float>;
  const size_t size = Polynomial2Size(dim);
  std::vector<float> y(dim);
  for (size_t r = begin; r < end; ++r) {
    const float *from = x + r * dim, *grad = grad_phi + r * size + 1;
    float* to = grad_x + r * dim;
    ForVectors(dim, [&](size_t i, size_t used) HWY_ATTR {
      const Vec y_i = hn::Mul(LoadN(from + i, used), hn::Set(d, factor));
      const Vec squares = hn::Mul(hn::Mul(hn::Set(d, root), y_i), LoadN(grad + dim + i, used));
      StoreN(y_i, y.data() + i, used);
      StoreN(hn::Add(LoadN(grad + i, used), squares), to + i, used);
    });
    grad += 2 * dim;
    for (size_t i = 0; i + 1 < dim; ++i) {
      const size_t count = dim - i - 1, j0 = i + 1;
      const Vec y_i = hn::Set(d, y[i]);
      Vec sum = hn::Zero(d);
      ForVectors(count, [&](size_t j, size_t used) HWY_ATTR {
        const Vec g = LoadN(grad + j, used);
        sum = hn::MulAdd(g, LoadN(y.data() + j0 + j, used), sum);
        StoreN(hn::MulAdd(g, y_i, LoadN(to + j0 + j, used)), to + j0 + j, used);
      });
      to[i] += hn::GetLane(hn::SumOfLanes(d, sum));
      grad += count;
    }
    const Vec scale = hn::Set(d, root * factor);
    ForVectors(dim, [&](size_t i, size_t used)
                        HWY_ATTR { StoreN(hn::Mul(LoadN(to + i, used), scale), to + i, used); });
  }
}

}  // namespace linnet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LINNET_KERNELS_POLYNOMIAL_INL_H_
