// Feature maps phi of linear attention, torch-free: their sizes, and their arithmetic for one vector.
// (nn/feature_map.h has the differentiable form.)
//
//   const FeatureMapInfo map = FindFeatureMap("favor");
//   map.size(/*query_dim=*/32, /*features=*/64)              // 64 = F
//   map.single({dim, columns, omega}, x, /*query=*/true, phi);
//
// A new map is a row in feature_map.cc, and its module in nn/.
#ifndef LINNET_MODEL_FEATURE_MAP_H_
#define LINNET_MODEL_FEATURE_MAP_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

namespace linnet {

struct MixerSpec;

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

// phi of the linear kinds: [D] -> [F].
struct FeatureMapInfo {
  std::string name;
  std::string description = {};
  // F, of D = query_dim and of the number of features asked for; none: D.
  int64_t (*size)(int query_dim, int features) = nullptr;
  // Random maps: columns of the drawn numbers omega [D, columns], which are saved with the model.
  int64_t (*omega)(int query_dim, int features) = nullptr;
  // Computed inside the kernels of linear attention; `single` is then not used.
  bool fused = false;
  // phi of one vector: x [D] -> phi [F]. None: the runtime has no such map.
  void (*single)(const FeatureInput& input, const float* x, bool query, float* phi) = nullptr;
  // The same in double precision, for tests.
  void (*reference)(const FeatureInput& input, const double* x, bool query, double* phi) = nullptr;
  bool floor = false;          // the denominator is held at |z| / sqrt(F) or above
  bool even_features = false;  // `features` must be even
};

std::vector<FeatureMapInfo> FeatureMaps();
// Throws InputError, listing the known maps.
FeatureMapInfo FindFeatureMap(const std::string& name);
// Makes a map known. Throws InputError where the name is taken.
void AddFeatureMap(const FeatureMapInfo& info);

// F of the spec's feature map over queries of query_dim dimensions.
int64_t FeatureSize(const MixerSpec& spec, int query_dim);

// Columns of omega [query_dim, columns], the random map's numbers; 0 where the spec's map, whatever
// its kind, draws none.
int64_t OmegaColumns(const MixerSpec& spec, int query_dim);

// Throws InputError, beginning with `where`, on an unknown feature map and on features that it cannot
// have. The spec's kind is not looked at.
void ValidateFeatureMap(const MixerSpec& spec, int64_t query_dim, const std::string& where);

}  // namespace linnet

#endif  // LINNET_MODEL_FEATURE_MAP_H_
