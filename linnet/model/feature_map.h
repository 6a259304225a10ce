// Feature maps phi of linear attention, implemented without torch: their sizes, and their
// evaluation for one vector. (The differentiable form is in nn/feature_map.h.)
//
//   const FeatureMapInfo map = FindFeatureMap("favor");
//   map.size(/*query_dim=*/32, /*features=*/64)              // 64 = F
//   map.single({dim, columns, omega}, x, /*query=*/true, phi);
//
// A new map is a row in feature_map.cc and a module in nn/.
#ifndef LINNET_MODEL_FEATURE_MAP_H_
#define LINNET_MODEL_FEATURE_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace linnet {

struct MixerSpec;

// The dimension D of an input and, for random maps, the matrix omega [D, columns].
struct FeatureInput {
  size_t dim = 0, columns = 0;
  const float* omega = nullptr;
};

// A feature map phi of the linear mixers: [D] -> [F].
struct FeatureMapInfo {
  std::string name;
  std::string description = {};
  // F, given D = query_dim and MixerSpec::features. Null: F = D.
  int64_t (*size)(int query_dim, int features) = nullptr;
  // Random maps: number of columns of omega [D, columns], which is saved with the model. Null: the
  // map has no omega.
  int64_t (*omega)(int query_dim, int features) = nullptr;
  // The linear attention kernels compute phi themselves; `single` is then unused.
  bool fused = false;
  // phi of one vector, a query or a key: x [D] -> phi [F]. Null: the runtime does not support the
  // map.
  void (*single)(const FeatureInput& input, const float* x, bool query, float* phi) = nullptr;
  // For maps with features of either sign: attention's denominator phi(q) . z, with z the sum of
  // phi over the keys, may approach 0 or be negative. If `floor` is set, attention replaces a
  // denominator below |z| / sqrt(F) by |z| / sqrt(F).
  bool floor = false;
  bool even_features = false;  // `features` must be even
};

std::vector<FeatureMapInfo> FeatureMaps();
// For an unknown name, throws InputError with a list of the known maps.
const FeatureMapInfo& FindFeatureMap(const std::string& name);
// Registers a map. Throws InputError if the name is taken.
void AddFeatureMap(const FeatureMapInfo& info);

// F of the spec's feature map over queries of query_dim dimensions.
int64_t FeatureSize(const MixerSpec& spec, int query_dim);

// Columns of the random matrix omega [query_dim, columns] of the spec's map; 0 if the map has none.
// Does not depend on the spec's kind.
int64_t OmegaColumns(const MixerSpec& spec, int query_dim);

// Throws InputError, with a message that begins with `where`, on an unknown feature map or an
// invalid number of features. Does not depend on the spec's kind.
void ValidateFeatureMap(const MixerSpec& spec, int64_t query_dim, const std::string& where);

}  // namespace linnet

#endif  // LINNET_MODEL_FEATURE_MAP_H_
