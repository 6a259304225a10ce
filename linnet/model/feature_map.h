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

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace linnet {

struct MixerSpec;

// D, and for random maps their numbers omega [D, columns].
struct FeatureInput {
  size_t dim = 0, columns = 0;
  const float* omega = nullptr;
};

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
