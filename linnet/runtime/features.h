// The feature maps that the engine computes itself, before a kernel that takes phi(q) and phi(k) as
// they are; elu is fused into the kernels. Private to linnet/runtime.
//
//   if (const FeatureMapBody* body = FindFeatureBody("polynomial2")) (*body)(dim, x, phi);
//
// A new one: its body here, a line in features.cc, and `runtime` in model/attention.cc.
#ifndef LINNET_RUNTIME_FEATURES_H_
#define LINNET_RUNTIME_FEATURES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string_view>

namespace linnet {

// max(x, 0): F = D.
template <class T>
void ReluFeatures(size_t dim, const T* x, T* phi) {
  for (size_t i = 0; i < dim; ++i) phi[i] = std::max(x[i], T{0});
}

// phi(q) . phi(k) = (q . k / sqrt(D) + 1)^2: (1, sqrt(2) y_i, y_i^2, sqrt(2) y_i y_j) with y = x /
// D^(1/4) and i < j: F = 1 + D + D (D + 1) / 2.
template <class T>
void Polynomial2Features(size_t dim, const T* x, T* phi) {
  const T scale = static_cast<T>(std::pow(static_cast<double>(dim), -0.25));
  const T root = std::numbers::sqrt2_v<T>;
  *phi++ = 1;
  for (size_t i = 0; i < dim; ++i) *phi++ = root * (x[i] * scale);
  for (size_t i = 0; i < dim; ++i) *phi++ = (x[i] * scale) * (x[i] * scale);
  for (size_t i = 0; i < dim; ++i) {
    const T y = root * (x[i] * scale);
    for (size_t j = i + 1; j < dim; ++j) *phi++ = y * (x[j] * scale);
  }
}

// Of one vector: x [dim] -> phi [F].
struct FeatureMapBody {
  std::string_view name;
  void (*single)(size_t dim, const float* x, float* phi);
  void (*reference)(size_t dim, const double* x, double* phi);  // for model_ref.h
};

// None for elu, and for those that the runtime has not.
const FeatureMapBody* FindFeatureBody(std::string_view name);

}  // namespace linnet

#endif  // LINNET_RUNTIME_FEATURES_H_
