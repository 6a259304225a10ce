// Mixers (kinds of attention and recurrence) as plain data: a name, parameters, tensors, and what each can
// do. What computes them is in nn/mixer.h, for training, and in runtime/mixer.h.
//
//   MixerSpec spec{.kind = "causal-linear", .feature_map = "favor", .features = 64};
//   Validate(spec, /*query_dim=*/32, "model");
//   FindMixer(spec.kind).causal                  // true: fit for predicting what comes next
//   FeatureSize(spec, 32)                        // 64 = F
//
// A new one is a file mixers/NAME.cc that defines `MixerInfo NameInfo()`, and a line in mixers/list.h; from
// outside, AddMixer(). Numbers that its training and running forms must share (decays, planes, scales) are
// computed by a function of model/, as LshPlanes() is.
#ifndef LINNET_MODEL_MIXER_H_
#define LINNET_MODEL_MIXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "linnet/model/feature_map.h"
#include "linnet/model/names.h"

namespace linnet {

enum class Similarity : uint8_t { kSoftmax, kPolynomial2, kRbf };
// kPublished: Kitaev et al. 2020. kSimple: fast-transformers', where buckets only sort.
enum class LshVariant : uint8_t { kPublished, kSimple };

template <>
struct EnumNames<Similarity> {
  static constexpr const char* kNames[] = {"softmax", "polynomial2", "rbf"};
};
template <>
struct EnumNames<LshVariant> {
  static constexpr const char* kNames[] = {"published", "simple"};
};

// A mixer by its registered name, with its parameters.
struct MixerSpec {
  std::string kind = "causal-linear";  // one of Mixers()

  // linear kinds
  std::string feature_map = "elu";  // one of FeatureMaps()
  int features = 0;                 // random maps: how many there are; 0: twice query_dim
  float eps = 1e-6f;                // added to the normalizer (kind "kernel" too)

  Similarity similarity = Similarity::kSoftmax;  // kind "kernel"

  // kind "reformer"
  int lsh_rounds = 4;
  int lsh_buckets = 64;  // 1, or an even number
  int lsh_chunk = 32;    // positions in a chunk of the sorted sequence
  LshVariant lsh_variant = LshVariant::kPublished;

  float scale = 0;  // of q . k under softmax (kinds "full" and "reformer"); 0: 1 / sqrt(query_dim)

  int heads = 8;
  int query_dim = 32;  // D, per head
  int value_dim = 32;  // M, per head
};

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
};

struct MixerInfo {
  std::string name;
  std::string description = {};
  bool causal = false;         // can be kept from seeing the future, as autoregressive tasks need
  bool always_causal = false;  // and cannot see it
  // Has a state that it steps from. Without one it reads whole sequences, again for each token generated.
  bool recurrent = false;
  bool constant_state = false;  // whose size does not depend on how much has been read
  bool maps = false;            // takes a feature map, its module "feature_map": omega goes into files
  bool scales = false;          // takes MixerSpec::scale
  // The mixer that encoders and cross attention have beside a decoder with this one; "": none.
  std::string cross = {};
  // Options that stand in files even at their defaults.
  std::vector<std::string> options = {};
  // Kind and parameters in a few words; null: the name.
  std::string (*describe)(const MixerSpec& spec) = nullptr;
  // Names and shapes of its tensors under `name` ("transformer.layers.0.attention"), in file order; null:
  // those of AttentionTensors().
  void (*tensors)(const MixerSpec& spec, int64_t d_model, const std::string& name,
                  std::vector<TensorInfo>& table) = nullptr;
  // What fast-transformers lacks to compute this mixer, or ""; null: nothing.
  std::string (*beyond)(const MixerSpec& spec) = nullptr;
};

// Every kind that has been added, the library's own first.
std::vector<MixerInfo> Mixers();

// The entry of that name. Throws InputError, listing the known kinds.
MixerInfo FindMixer(const std::string& name);

// Makes a kind known. Throws InputError where the name is taken.
void AddMixer(const MixerInfo& info);

// The mixer of an encoder, or of cross attention, beside a decoder with this one (MixerInfo::cross).
MixerSpec CrossMixer(const MixerSpec& spec);

std::string Describe(const MixerSpec& spec);
// For rows: kind and feature map.
std::string DescribeFeatureMap(const MixerSpec& spec);
std::string BeyondFeatureMap(const MixerSpec& spec);

// Projections to queries, keys, values and back, and omega where the kind has a random feature map.
void AttentionTensors(const MixerSpec& spec, int64_t d_model, const std::string& name,
                      std::vector<TensorInfo>& table);
void MixerTensors(const MixerSpec& spec, int64_t d_model, const std::string& name,
                  std::vector<TensorInfo>& table);

// Throws InputError, beginning with `where`, on unknown names and on sizes that make no attention.
void Validate(const MixerSpec& spec, int query_dim, const std::string& where);

// The factor of q . k before a softmax.
float SoftmaxScale(const MixerSpec& spec);

// The planes that the reformer hashes with where nothing is trained, so that a model's answers repeat:
// standard normal numbers [rounds, query_dim, (buckets + 1) / 2].
std::vector<float> LshPlanes(const MixerSpec& spec, int query_dim);

}  // namespace linnet

#endif  // LINNET_MODEL_MIXER_H_
