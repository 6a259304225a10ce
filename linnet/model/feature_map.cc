#include "linnet/model/feature_map.h"

#include "linnet/model/mixer.h"
#include "linnet/model/registry.h"

namespace linnet {
namespace {

int64_t SameSize(int query_dim, int) { return query_dim; }
int64_t AsAsked(int query_dim, int features) { return features > 0 ? features : 2 * query_dim; }
int64_t HalfAsAsked(int query_dim, int features) { return AsAsked(query_dim, features) / 2; }
int64_t Polynomial2Size(int d, int) { return int64_t{d} * (d + 1) / 2 + d + 1; }

Registry<FeatureMapInfo>& Maps() {
  static Registry<FeatureMapInfo> maps(
      "feature map",
      {{.name = "elu", .description = "elu(x) + 1 (eq. 7)", .size = SameSize, .fused = true},
       {.name = "relu",
        .description = "max(x, 0)",
        .size = SameSize,
        .single = ReluFeatures<float>,
        .reference = ReluFeatures<double>},
       {.name = "polynomial2",
        .description = "exactly (q k / sqrt(D) + 1)^2",
        .size = Polynomial2Size,
        .single = Polynomial2Features<float>,
        .reference = Polynomial2Features<double>},
       {.name = "rff",
        .description = "random Fourier features, near exp(-|q - k|^2 / (2 sqrt(D)))",
        .size = AsAsked,
        .omega = HalfAsAsked,
        .single = RffFeatures<float>,
        .reference = RffFeatures<double>,
        .floor = true,
        .even_features = true},
       {.name = "favor",
        .description = "positive random features, near exp(q k / sqrt(D)): softmax attention",
        .size = AsAsked,
        .omega = AsAsked,
        .single = FavorFeatures<float>,
        .reference = FavorFeatures<double>}});
  return maps;
}

}  // namespace

std::vector<FeatureMapInfo> FeatureMaps() { return Maps().all(); }
FeatureMapInfo FindFeatureMap(const std::string& name) { return Maps().Find(name); }
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
          map.name, " needs an even number of them");
  const int64_t size = map.size(static_cast<int>(query_dim), spec.features);
  require(size <= kMost, "feature map '", map.name, "' makes ", size, " features of ", query_dim,
          " dimensions; at most ", kMost, " can be");
}

}  // namespace linnet
