// The attention kinds and feature maps as plain data: their names, their parameters, and what both
// halves must know of them. What computes them is in nn/attention.h, and in the runtime.
//
//   AttentionSpec spec{.kind = "causal-linear", .feature_map = "favor", .features = 64};
//   Validate(spec, /*query_dim=*/32, "model");
//   FindAttentionKind(spec.kind).causal          // true: fit for predicting what comes next
//   FeatureSize(spec, 32)                        // 64 = F
#ifndef LINNET_MODEL_ATTENTION_H_
#define LINNET_MODEL_ATTENTION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace linnet {

// An attention kind by its registered name, with its parameters.
struct AttentionSpec {
  std::string kind = "causal-linear";  // one of AttentionKinds()

  // linear kinds
  std::string feature_map = "elu";  // one of FeatureMaps()
  int features = 0;                 // random maps: how many there are; 0: twice query_dim
  float eps = 1e-6f;                // added to the normaliser (kind "kernel" too)

  // kind "kernel": "softmax", "polynomial2" or "rbf"
  std::string similarity = "softmax";

  // kind "reformer"
  int lsh_rounds = 4;
  int lsh_buckets = 64;  // 1, or an even number
  int lsh_chunk = 32;    // positions in a chunk of the sorted sequence
  // "published": Kitaev et al. 2020. "simple": the reference library's, where buckets only sort.
  std::string lsh_variant = "published";
};

struct AttentionKindInfo {
  std::string name;
  std::string description = {};
  bool causal = false;     // can be kept from seeing the future, as autoregressive tasks need
  bool recurrent = false;  // the runtime can step it
  bool maps = false;       // takes a feature map, its module "feature_map": omega goes into files
};

// Every kind that has been added, the library's own first.
std::vector<AttentionKindInfo> AttentionKinds();

// The entry of that name. Throws InputError, listing the known kinds.
AttentionKindInfo FindAttentionKind(const std::string& name);

// Makes a kind known. Throws InputError where the name is taken.
void AddAttentionKind(const AttentionKindInfo& info);

// phi of the linear kinds: [D] -> [F].
struct FeatureMapInfo {
  std::string name;
  std::string description = {};
  bool runtime = false;  // the runtime has it
  // F, of D = query_dim and of the number of features asked for; none: D.
  int64_t (*size)(int query_dim, int features) = nullptr;
  // Random maps: columns of the drawn numbers omega [D, columns], which are saved with the model.
  int64_t (*omega)(int query_dim, int features) = nullptr;
};

std::vector<FeatureMapInfo> FeatureMaps();
FeatureMapInfo FindFeatureMap(const std::string& name);
void AddFeatureMap(const FeatureMapInfo& info);

// F of the spec's feature map over queries of query_dim dimensions.
int64_t FeatureSize(const AttentionSpec& spec, int query_dim);

// Columns of omega [query_dim, columns], the random map's numbers; 0 where the spec's map, whatever
// its kind, draws none.
int64_t OmegaColumns(const AttentionSpec& spec, int query_dim);

// Throws InputError, beginning with `where`, on an unknown feature map and on features that it cannot
// have. The spec's kind is not looked at.
void ValidateFeatureMap(const AttentionSpec& spec, int64_t query_dim, const std::string& where);

// Throws InputError, beginning with `where`, on unknown names and on sizes that make no attention.
void Validate(const AttentionSpec& spec, int query_dim, const std::string& where);

// The planes that the reformer hashes with where nothing is trained, so that a model's answers repeat:
// standard normal numbers [rounds, query_dim, (buckets + 1) / 2].
std::vector<float> LshPlanes(const AttentionSpec& spec, int query_dim);

}  // namespace linnet

#endif  // LINNET_MODEL_ATTENTION_H_
