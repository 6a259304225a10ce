#include "linnet/model/feature_map.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "linnet/model/mixer.h"
#include "linnet/model/registry.h"

namespace linnet {
namespace {

// Functions for FeatureMapInfo::size and FeatureMapInfo::omega. A random map has 2 query_dim
// features by default.
int64_t SameSize(int query_dim, int) { return query_dim; }
int64_t AsAsked(int query_dim, int features) { return features > 0 ? features : 2 * query_dim; }
int64_t HalfAsAsked(int query_dim, int features) { return AsAsked(query_dim, features) / 2; }
int64_t Polynomial2Size(int d, int) { return int64_t{d} * (d + 1) / 2 + d + 1; }

// max(x, 0): F = D.
void ReluFeatures(const FeatureInput& input, const float* x, bool, float* phi) {
  for (size_t i = 0; i < input.dim; ++i) phi[i] = std::max(x[i], 0.0f);
}

// (1, sqrt(2) y_i, y_i^2, sqrt(2) y_i y_j) with y = x / D^(1/4) and i < j.
// F = 1 + D + D (D + 1) / 2, and phi(q) . phi(k) = (q . k / sqrt(D) + 1)^2.
void Polynomial2Features(const FeatureInput& input, const float* x, bool, float* phi) {
  const size_t dim = input.dim;
  const float scale = static_cast<float>(std::pow(static_cast<double>(dim), -0.25));
  const float root = std::numbers::sqrt2_v<float>;
  *phi++ = 1;
  for (size_t i = 0; i < dim; ++i) *phi++ = root * (x[i] * scale);
  for (size_t i = 0; i < dim; ++i) *phi++ = (x[i] * scale) * (x[i] * scale);
  for (size_t i = 0; i < dim; ++i) {
    const float y = root * (x[i] * scale);
    for (size_t j = i + 1; j < dim; ++j) *phi++ = y * (x[j] * scale);
  }
}

// Writes y omega to `to` [columns], with y = x / D^(1/4), and returns |y|^2.
float Projections(const FeatureInput& input, const float* x, float* to) {
  const float scale = static_cast<float>(std::pow(static_cast<double>(input.dim), -0.25));
  float squares = 0;
  std::fill_n(to, input.columns, 0.0f);
  for (size_t i = 0; i < input.dim; ++i) {
    const float y = x[i] * scale;
    const float* row = input.omega + i * input.columns;
    squares += y * y;
    for (size_t c = 0; c < input.columns; ++c) to[c] += y * row[c];
  }
  return squares;
}

// (cos(y omega), sin(y omega)) / sqrt(columns): F = 2 columns.
void RffFeatures(const FeatureInput& input, const float* x, bool, float* phi) {
  const size_t columns = input.columns;
  const float scale = 1 / std::sqrt(static_cast<float>(columns));
  Projections(input, x, phi);
  for (size_t c = 0; c < columns; ++c) {
    const float angle = phi[c];
    phi[c] = scale * std::cos(angle), phi[columns + c] = scale * std::sin(angle);
  }
}

// Features of a key: exp(min(y omega - |y|^2 / 2, 40)) / sqrt(columns), where 40 prevents
// overflow. Features of a query: exp(y omega - max(y omega)), which cannot overflow; factors common
// to all features of a query cancel in the output. F = columns.
void FavorFeatures(const FeatureInput& input, const float* x, bool query, float* phi) {
  const size_t columns = input.columns;
  const float half = Projections(input, x, phi) / 2;
  const float scale = query ? 1.0f : 1 / std::sqrt(static_cast<float>(columns));
  const float largest = query ? *std::max_element(phi, phi + columns) : 0.0f;
  for (size_t c = 0; c < columns; ++c) {
    phi[c] = scale * std::exp(query ? phi[c] - largest : std::min(phi[c] - half, 40.0f));
  }
}

Registry<FeatureMapInfo>& Maps() {
  static Registry<FeatureMapInfo> maps(
      "feature map",
      {{.name = "elu", .description = "elu(x) + 1 (eq. 7)", .size = SameSize, .fused = true},
       {.name = "relu", .description = "max(x, 0)", .size = SameSize, .single = ReluFeatures},
       {.name = "polynomial2",
        .description = "(q k / sqrt(D) + 1)^2, exactly",
        .size = Polynomial2Size,
        .single = Polynomial2Features},
       {.name = "rff",
        .description = "random Fourier features, approximating exp(-|q - k|^2 / (2 sqrt(D)))",
        .size = AsAsked,
        .omega = HalfAsAsked,
        .single = RffFeatures,
        .floor = true,
        .even_features = true},
       {.name = "favor",
        .description =
            "positive random features, approximating softmax attention's exp(q k / sqrt(D))",
        .size = AsAsked,
        .omega = AsAsked,
        .single = FavorFeatures}});
  return maps;
}

}  // namespace

std::vector<FeatureMapInfo> FeatureMaps() { return Maps().all(); }
const FeatureMapInfo& FindFeatureMap(const std::string& name) { return Maps().Find(name); }
void AddFeatureMap(const FeatureMapInfo& info) {
  FeatureMapInfo whole = info;
  if (whole.size == nullptr) whole.size = SameSize;
  Maps().Add(whole);
}

int64_t FeatureSize(const MixerSpec& spec, int query_dim) {
  return FindFeatureMap(spec.feature_map).size(query_dim, spec.features);
}

int64_t OmegaColumns(const MixerSpec& spec, int query_dim) {
  const FeatureMapInfo map = FindFeatureMap(spec.feature_map);
  return map.omega == nullptr ? 0 : map.omega(query_dim, spec.features);
}

void ValidateFeatureMap(const MixerSpec& spec, int64_t query_dim, const std::string& where) {
  const auto require = [&](bool good, const auto&... message) {
    if (!good) throw InputError(where, ": ", message...);
  };
  constexpr int64_t kMost = 1 << 20;
  require(query_dim >= 1 && query_dim <= kMost, "query_dim is ", query_dim,
          "; it must be between 1 and ", kMost);
  FeatureMapInfo map;
  try {
    map = FindFeatureMap(spec.feature_map);
  } catch (const Error& error) {
    throw InputError(where, ": ", error.what());
  }
  require(spec.features >= 0 && spec.features <= 1 << 16, "features is ", spec.features,
          "; it must be between 0 and ", 1 << 16);
  require(!map.even_features || spec.features % 2 == 0, "features is ", spec.features, "; ",
          map.name, " needs an even number");
  const int64_t size = map.size(static_cast<int>(query_dim), spec.features);
  require(size <= kMost, "feature map '", map.name, "' makes ", size, " features from ", query_dim,
          " dimensions; at most ", kMost, " features are allowed");
}

}  // namespace linnet
