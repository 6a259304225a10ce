// Mixers (kinds of attention and recurrence) as plain data: name, parameters, tensors and
// capabilities. nn/mixer.h implements them for training, runtime/mixer.h for inference.
//
//   MixerSpec spec{.kind = "causal-linear", .feature_map = "favor", .features = 64};
//   Validate(spec, /*query_dim=*/32, "model");
//   FindMixer(spec.kind).causal                  // true: usable for autoregressive tasks
//   FeatureSize(spec, 32)                        // 64 = F
//
// To add a kind: write mixers/NAME.cc, which defines `MixerInfo NameInfo()`, and add a line to
// mixers/list.h. Code outside the library calls AddMixer(). Values on which training and inference
// must agree (hash planes, scales) are computed in this folder, for example by LshPlanes().
#ifndef LINNET_MODEL_MIXER_H_
#define LINNET_MODEL_MIXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "linnet/model/feature_map.h"
#include "linnet/model/gated.h"
#include "linnet/model/names.h"
#include "linnet/model/tensor_info.h"
#include "linnet/spec.h"

namespace linnet {

template <>
struct EnumNames<Similarity> {
  static constexpr const char* kNames[] = {"softmax", "polynomial2", "rbf"};
};
template <>
struct EnumNames<LshVariant> {
  static constexpr const char* kNames[] = {"published", "simple"};
};

struct MixerInfo {
  std::string name;
  std::string description = {};
  bool causal = false;         // can be masked causally, as autoregressive tasks need
  bool always_causal = false;  // has no non-causal form
  // Generates from a state kept between positions (sums, or cached keys and values). Otherwise each
  // generated token takes a pass over the whole sequence.
  bool recurrent = false;
  bool constant_state = false;  // the state's size does not depend on the number of positions
  bool maps = false;            // has a feature map; if it is random, files hold its omega
  bool scales = false;          // uses MixerSpec::scale
  // MixerSpec::window, rotary, qkv_bias and out_bias apply, and key_heads is the number of heads of
  // keys and values.
  bool windows = false;
  // The kind for encoder layers and cross attention if the decoder has this kind; "": none.
  std::string cross = {};
  // Names of MixerSpec fields that files of this kind hold even at their default values.
  std::vector<std::string> options = {};
  // Kind and parameters in a few words; null: the name.
  std::string (*describe)(const MixerSpec& spec) = nullptr;
  // Names the part of this mixer that fast-transformers lacks; "" or null: none.
  std::string (*beyond)(const MixerSpec& spec) = nullptr;
  // The input projections, queries, keys and values first; null: these three only.
  std::vector<ProjectionInfo> (*projections)(const MixerSpec& spec) = nullptr;
  // Further tensors, with the same prefix as the projections ("...attention.A_log"); null: none.
  std::vector<TensorInfo> (*tensors)(const MixerSpec& spec) = nullptr;
  // The form of a gated recurrence, from which its projections and tensors follow; null: the mixer
  // is not a gated recurrence.
  GatedForm (*gated)(const MixerSpec& spec) = nullptr;
  std::string out = "out_projection";  // name of the output projection
  bool out_bias = true;
};

// All registered kinds, the library's own first.
std::vector<MixerInfo> Mixers();

// The kind of that name. For an unknown name, throws InputError with a list of the known kinds.
const MixerInfo& FindMixer(const std::string& name);
// The kind of a spec. For softmax attention, always_causal and constant_state are true if the spec
// has a window, and out_bias is the spec's.
MixerInfo FindMixer(const MixerSpec& spec);

// Registers a kind. Throws InputError if the name is taken.
void AddMixer(const MixerInfo& info);

// The mixer for the encoder and for cross attention if the decoder's mixer is `spec`: of the kind
// MixerInfo::cross, without a window or rotary positions. Throws InputError if there is no such
// kind.
MixerSpec CrossMixer(const MixerSpec& spec);

// Kind and parameters in a few words (MixerInfo::describe).
std::string Describe(const MixerSpec& spec);
// MixerInfo::describe and MixerInfo::beyond for kinds with a feature map.
std::string DescribeFeatureMap(const MixerSpec& spec);
std::string BeyondFeatureMap(const MixerSpec& spec);
// MixerInfo::beyond for recurrences.
std::string BeyondGated(const MixerSpec& spec);

// The input projections of a mixer, queries, keys and values first.
std::vector<ProjectionInfo> MixerProjections(const MixerSpec& spec);

// Appends the names and shapes of a mixer's tensors to `table`, in file order: projections, omega
// of a random feature map, MixerInfo::tensors, output projection. A token shift comes before the
// first projection that uses it. Names begin with `name` ("transformer.layers.0.attention").
void MixerTensors(const MixerSpec& spec, int64_t d_model, const std::string& name,
                  std::vector<TensorInfo>& table);

// Throws InputError, with a message that begins with `where`, on unknown names and invalid sizes.
void Validate(const MixerSpec& spec, int query_dim, const std::string& where);

// The factor of q . k in the softmax: spec.scale or, if spec.scale is 0, 1 / sqrt(query_dim).
float SoftmaxScale(const MixerSpec& spec);

// The reformer's hash planes outside training, fixed so that outputs are reproducible: standard
// normal numbers [rounds, query_dim, (buckets + 1) / 2].
std::vector<float> LshPlanes(const MixerSpec& spec, int query_dim);

}  // namespace linnet

#endif  // LINNET_MODEL_MIXER_H_
