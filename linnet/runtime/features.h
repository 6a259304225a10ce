// The feature maps that the engine computes itself, before a kernel that takes phi(q) and phi(k) as
// they are; elu is fused into the kernels. Private to linnet/runtime.
//
//   if (const FeatureMapBody* body = FindFeatureBody("polynomial2")) {
//     body->single({dim, columns, omega}, x, /*query=*/false, phi);
//   }
//
// A new one: its body here, a line in features.cc, and `runtime` in model/attention.cc. What each is
// for is in nn/feature_map_NAME.cc.
#ifndef LINNET_RUNTIME_FEATURES_H_
#define LINNET_RUNTIME_FEATURES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string_view>

namespace linnet {

// D, and for random maps their numbers omega [D, columns].
struct FeatureInput {
  size_t dim = 0, columns = 0;
  const float* omega = nullptr;
};

// max(x, 0): F = D.
template <class T>
void ReluFeatures(const FeatureInput& input, const T* x, bool, T* phi) {
  for (size_t i = 0; i < input.dim; ++i) phi[i] = std::max(x[i], T{0});
}

// phi(q) . phi(k) = (q . k / sqrt(D) + 1)^2: (1, sqrt(2) y_i, y_i^2, sqrt(2) y_i y_j) with y = x /
// D^(1/4) and i < j: F = 1 + D + D (D + 1) / 2.
template <class T>
void Polynomial2Features(const FeatureInput& input, const T* x, bool, T* phi) {
  const size_t dim = input.dim;
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

// to [columns] = y omega, y = x / D^(1/4); returns |y|^2.
template <class T>
T Projections(const FeatureInput& input, const T* x, T* to) {
  const T scale = static_cast<T>(std::pow(static_cast<double>(input.dim), -0.25));
  T squares = 0;
  std::fill_n(to, input.columns, T{0});
  for (size_t i = 0; i < input.dim; ++i) {
    const T y = x[i] * scale;
    const float* row = input.omega + i * input.columns;
    squares += y * y;
    for (size_t c = 0; c < input.columns; ++c) to[c] += y * static_cast<T>(row[c]);
  }
  return squares;
}

// (cos(y omega), sin(y omega)) / sqrt(columns): F = 2 columns.
template <class T>
void RffFeatures(const FeatureInput& input, const T* x, bool, T* phi) {
  const size_t columns = input.columns;
  const T scale = 1 / std::sqrt(static_cast<T>(columns));
  Projections(input, x, phi);
  for (size_t c = 0; c < columns; ++c) {
    const T angle = phi[c];
    phi[c] = scale * std::cos(angle), phi[columns + c] = scale * std::sin(angle);
  }
}

// exp(y omega - |y|^2 / 2): F = columns. A key's exponents are cut at 40; a query's are taken from
// their largest.
template <class T>
void FavorFeatures(const FeatureInput& input, const T* x, bool query, T* phi) {
  const size_t columns = input.columns;
  const T half = Projections(input, x, phi) / 2;
  const T scale = query ? T{1} : 1 / std::sqrt(static_cast<T>(columns));
  const T largest = query ? *std::max_element(phi, phi + columns) : T{0};
  for (size_t c = 0; c < columns; ++c) {
    phi[c] = scale * std::exp(query ? phi[c] - largest : std::min(phi[c] - half, T{40}));
  }
}

// phi of one vector: x [dim] -> phi [F].
struct FeatureMapBody {
  std::string_view name;
  void (*single)(const FeatureInput& input, const float* x, bool query, float* phi);
  // For model_ref.h.
  void (*reference)(const FeatureInput& input, const double* x, bool query, double* phi);
  bool floor = false;  // the denominator is held at |z| / sqrt(F) or above
};

// None for elu, and for those that the runtime has not.
const FeatureMapBody* FindFeatureBody(std::string_view name);

}  // namespace linnet

#endif  // LINNET_RUNTIME_FEATURES_H_
