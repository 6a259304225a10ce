#include "linnet/model/fla.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"
#include "linnet/model/fla_config.h"
#include "linnet/model/mixer.h"
#include "linnet/model/reference.h"
#include "linnet/vocabulary.h"

namespace linnet {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kTokenizer = "tokenizer.json";

// The lower bounds of hgrn. flash-linear-attention stores model.lower_bounds [layers, channels]:
// with p their softmax over the layers, the bound of layer l is p_1 + ... + p_l, and 0 in layer 0.
// linnet stores the logit of each layer's bound.
constexpr const char* kBounds = "model.lower_bounds";
constexpr double kNoBound = -100;  // stands for the logit of 0; its sigmoid is negligible

bool IsBound(const TensorInfo& info) { return info.name.ends_with(".attention.lower_bound"); }
size_t LayerOf(const TensorInfo& info) {
  return static_cast<size_t>(std::atoi(info.name.c_str() + std::strlen("transformer.layers.")));
}

// Computes the logits [channels] of a layer's bounds. all: model.lower_bounds [layers, channels].
void BoundLogits(std::span<const float> all, size_t layer, std::span<float> logits) {
  const size_t channels = logits.size(), layers = all.size() / channels;
  for (size_t c = 0; c < channels; ++c) {
    // The bound is below / (below + above), so its logit is log(below) - log(above).
    double most = -HUGE_VAL, below = 0, above = 0;
    for (size_t l = 0; l < layers; ++l) most = std::max<double>(most, all[l * channels + c]);
    for (size_t l = 0; l < layers; ++l) {
      const double p = std::exp(all[l * channels + c] - most);
      (l > 0 && l <= layer ? below : above) += p;
    }
    logits[c] = static_cast<float>(below > 0 ? std::max(std::log(below) - std::log(above), kNoBound)
                                             : kNoBound);
  }
}

// The inverse of BoundLogits() for all layers: returns model.lower_bounds, or an empty vector if
// the model has no lower bounds.
std::vector<float> BoundsOf(const Checkpoint& checkpoint) {
  const auto layers = static_cast<size_t>(checkpoint.spec().stack.layers());
  std::vector<std::vector<double>> bounds;
  for (const TensorInfo& info : TensorTable(checkpoint.spec())) {
    if (!IsBound(info)) continue;
    std::vector<double>& own = bounds.emplace_back();
    for (const float x : checkpoint.Tensor(info.name))
      own.push_back(1 / (1 + std::exp(-double{x})));
  }
  if (!bounds.empty() && bounds.size() != layers) {
    throw InputError(checkpoint.path(), ": only some layers have lower bounds; in ",
                     "flash-linear-attention either all layers have them or none");
  }
  std::vector<float> all;
  for (size_t l = 0; l < bounds.size(); ++l) {
    for (size_t c = 0; c < bounds[l].size(); ++c) {
      // p_l of the softmax: p_1 + ... + p_l is the bound of layer l, and all p sum to 1.
      const double share = l == 0 ? 1 - bounds[layers - 1][c] : bounds[l][c] - bounds[l - 1][c];
      if (!(share > 0) || bounds[0][c] > 1e-30) {
        throw InputError(checkpoint.path(),
                         ": flash-linear-attention needs lower bounds that are 0 in the first "
                         "layer and grow from layer to layer; here layer ",
                         l, " has ", bounds[l][c], " in channel ", c);
      }
      all.push_back(static_cast<float>(std::log(share)));
    }
  }
  return all;
}

size_t Numel(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t n : shape) count *= static_cast<size_t>(n);
  return count;
}

using Changes = std::vector<std::pair<std::string, std::string>>;

// Replaces the first occurrence of each change's first string by its second.
std::string Changed(std::string name, const Changes& changes) {
  for (const auto& [from, to] : changes) {
    const size_t at = name.find(from);
    if (at != name.npos) name.replace(at, from.size(), to);
  }
  return name;
}

}  // namespace

FlaPart FlaPartOf(const MixerSpec& mixer, const TensorInfo& info) {
  const int64_t rows = info.shape.empty() ? 1 : info.shape[0];
  const auto gated = FindMixer(mixer.kind).gated;
  const bool mamba = gated != nullptr && gated(mixer).timed;
  if (!mamba) {
    return {Changed(info.name, {{"value_embedding", "model.embeddings"},
                                {"predictor", "lm_head"},
                                {"transformer.", "model."},
                                {".attention.", ".attn."},
                                {".query_projection.", ".q_proj."},
                                {".key_projection.", ".k_proj."},
                                {".value_projection.", ".v_proj."},
                                {".out_projection.", ".o_proj."},
                                {".norm1.", ".attn_norm."},
                                {".norm2.", ".mlp_norm."},
                                {".gate.", ".mlp.gate_proj."},
                                {".linear1.", ".mlp.up_proj."},
                                {".linear2.", ".mlp.down_proj."}}),
            0, rows};
  }
  const std::string name = Changed(info.name, {{"value_embedding", "backbone.embeddings"},
                                               {"predictor", "lm_head"},
                                               {"transformer.norm.", "backbone.norm_f."},
                                               {"transformer.", "backbone."},
                                               {".attention.", ".mixer."},
                                               {".norm1.", ".norm."},
                                               {"o_proj.", "out_proj."}});
  const int64_t values = int64_t{mixer.heads} * mixer.value_dim;
  const int64_t keys = int64_t{mixer.heads} / KeyReaders(mixer) * mixer.query_dim;
  const int64_t all = 2 * values + 2 * keys + mixer.heads;
  // linnet's tensor, the Mamba-2 tensor that contains it, its first row there, and the rows there.
  const std::tuple<std::string, std::string, int64_t, int64_t> parts[] = {
      {"g_proj.", "in_proj.", 0, all},
      {"v_proj.", "in_proj.", values, all},
      {"k_proj.", "in_proj.", 2 * values, all},
      {"q_proj.", "in_proj.", 2 * values + keys, all},
      {"a_proj.", "in_proj.", 2 * values + 2 * keys, all},
      {"v_conv1d.", "conv1d.", 0, values + 2 * keys},
      {"k_conv1d.", "conv1d.", values, values + 2 * keys},
      {"q_conv1d.", "conv1d.", values + keys, values + 2 * keys}};
  for (const auto& [own, whole, first, count] : parts) {
    if (name.find(own) != name.npos) return {Changed(name, {{own, whole}}), first, count};
  }
  return {name, 0, rows};
}

bool IsModelFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) && fs::exists(fs::path(path) / kConfig, error);
}

FlaModel FlaModel::Open(const std::string& folder, const std::string& tokenizer) {
  FlaModel model;
  model.folder_ = folder;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw InputError(folder, ": is not a folder with a ", kConfig);
  }
  const std::string path = (fs::path(folder) / kConfig).string();
  const FlaConfig config = ReadFlaConfig(path);
  model.spec_ = config.spec, model.tied_ = config.tied;
  model.OpenTensors(folder);
  // The config does not state the rank of gla's gate; the weights show it.
  for (size_t i = 0; i < model.spec_.stack.pattern.size(); ++i) {
    const auto rank = model.tensors_.find(StrCat("model.layers.", i, ".attn.gk_proj.0.weight"));
    if (rank == model.tensors_.end() || rank->second->shape.empty()) continue;
    model.spec_.stack.mixer(i).gate_rank =
        static_cast<int>(std::min<int64_t>(rank->second->shape[0], 1 << 20));
  }
  const std::string vocabulary =
      tokenizer.empty() ? (fs::path(folder) / kTokenizer).string() : tokenizer;
  if (!tokenizer.empty() || fs::exists(vocabulary, error)) {
    model.spec_.task = "text";
    model.spec_.part = Vocabulary::OfTokenizer(ReadFile(vocabulary), config.end, vocabulary).Save();
  }
  Validate(model.spec_, path);
  model.CheckTensors();
  return model;
}

void FlaModel::OpenTensors(const std::string& folder) {
  std::error_code error;
  const fs::path index = fs::path(folder) / kIndex;
  std::set<std::string> names;
  json map;
  if (fs::exists(index, error)) {
    map = ReadJsonObject(index.string()).value("weight_map", json());
    if (!map.is_object() || map.empty()) throw InputError(index.string(), ": has no 'weight_map'");
    for (const auto& [tensor, file] : map.items()) {
      const bool plain = file.is_string() && !file.get<std::string>().empty() &&
                         file.get<std::string>().find('/') == std::string::npos;
      if (!plain) {
        throw InputError(index.string(), ": the file of ", Quote(tensor), " is ",
                         Brief(file.dump()), "; it must be the name of a file in this folder");
      }
      names.insert(file);
    }
  } else if (fs::exists(fs::path(folder) / kWeights, error)) {
    names.insert(kWeights);
  } else {
    throw InputError(folder, ": has neither ", kWeights, " nor ", kIndex,
                     "; save the model with safe_serialization=True");
  }
  for (const std::string& name : names) {
    const SafetensorsFile& file =
        files_.emplace_back(SafetensorsFile::Open((fs::path(folder) / name).string()));
    for (const Tensor& tensor : file.tensors()) {
      if (!tensors_.emplace(tensor.name, &tensor).second) {
        throw InputError(file.path(), ": the tensor ", Quote(tensor.name),
                         " is also in another file");
      }
    }
  }
  for (const auto& [tensor, file] : map.items()) {
    if (tensors_.count(tensor) == 0) {
      throw InputError(index.string(), ": the tensor ", Quote(tensor), " is missing in ",
                       file.get<std::string>());
    }
  }
}

// Finds a tensor of TensorTable() in the folder's files. Older versions of flash-linear-attention
// store an MLP's gate and first matrix in one tensor, and name the output norm of a mixer
// differently.
FlaModel::Source FlaModel::SourceOf(const TensorInfo& info) const {
  const size_t count = Numel(info.shape);
  if (IsBound(info)) {
    const TensorInfo all{kBounds, {spec_.stack.layers(), info.shape[0]}};
    return {&Fitting(all.name, all.shape), 0, Numel(all.shape)};
  }
  const FlaPart part = FlaPartOf(spec_.stack.mixer(), info);
  std::string name = part.name;
  if (tied_ && name == "lm_head.weight" && tensors_.count(name) == 0) {
    name = FlaPartOf(spec_.stack.mixer(), {"value_embedding.weight", {}}).name;
  }
  if (name == "backbone.embeddings.weight" && tensors_.count(name) == 0) {
    name = "backbone.embedding.weight";  // the name in the files of Mamba's authors
  }
  const std::string fused_norm = ".g_norm_swish_gate.";
  if (const size_t at = name.find(fused_norm); at != name.npos && tensors_.count(name) == 0) {
    name.replace(at, fused_norm.size(), ".g_norm.");
  }
  const size_t row = info.shape.empty() ? 1 : count / static_cast<size_t>(info.shape[0]);
  size_t first = static_cast<size_t>(part.first) * row;
  std::vector<int64_t> shape = info.shape;
  if (!shape.empty()) shape[0] = part.rows;
  for (const auto& [own, index] :
       {std::pair<const char*, size_t>{".mlp.gate_proj.", 0}, {".mlp.up_proj.", 1}}) {
    const size_t at = name.find(own);
    if (at == name.npos ||
        tensors_.count(std::string(name).replace(at, std::strlen(own), ".mlp.up_proj.")) > 0) {
      continue;
    }
    name.replace(at, std::strlen(own), ".mlp.gate_proj.");
    shape[0] *= 2, first = index * count;
  }
  return {&Fitting(name, shape), first, count};
}

// The tensor of that name. Throws InputError if it is missing or does not hold floats of this
// shape.
const Tensor& FlaModel::Fitting(const std::string& name, const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw InputError(folder_, ": the tensor ", Quote(name), " is missing");
  }
  const Tensor& tensor = *found->second;
  if (!HoldsFloats(tensor, shape)) {
    throw InputError(tensor.file, ": the tensor ", Quote(name), " is ", DTypeName(tensor.dtype),
                     " ", FormatShape(tensor.shape), ", but the config needs F32, F16 or BF16 ",
                     FormatShape(shape));
  }
  return tensor;
}

// Checks that all tensors of TensorTable() are present, and that the folder has no others.
void FlaModel::CheckTensors() {
  std::set<const Tensor*> used;
  for (const TensorInfo& info : TensorTable(spec_)) used.insert(SourceOf(info).tensor);
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : tensors_) {
    const bool computed = name.ends_with(".rotary.inv_freq");
    const bool twice = tied_ && name == "lm_head.weight";
    if (used.count(tensor) == 0 && !computed && !twice) unused.push_back(name);
  }
  if (!unused.empty()) {
    throw InputError(folder_, ": linnet does not know the tensors ", QuoteAll(unused),
                     "; the model has a part that is not supported");
  }
}

Precision FlaModel::precision() const {
  for (const TensorInfo& info : TensorTable(spec_)) {
    if (IsMatrix(info.name) && SourceOf(info).tensor->dtype != DType::kBF16) return Precision::kF32;
  }
  return Precision::kBf16;
}

void FlaModel::Write(const std::string& path, const std::string& training) const {
  const Precision precision = this->precision();
  SafetensorsWriter writer;
  writer.SetMetadata("linnet", ToJson(spec_));
  writer.SetMetadata("training", training);
  std::list<std::vector<float>> converted;
  for (const TensorInfo& info : TensorTable(spec_)) {
    const auto [tensor, first, count] = SourceOf(info);
    std::vector<float> wide = ToFloats(*tensor, first, count);
    CheckFinite(wide, tensor->file, tensor->name);
    const DType stored = StoredAs(spec_, info.name, precision);
    if (IsBound(info)) {
      std::vector<float> own(Numel(info.shape));
      BoundLogits(wide, LayerOf(info), own);
      writer.Add(info.name, DType::kF32, info.shape, converted.emplace_back(std::move(own)).data());
    } else if (stored == tensor->dtype) {
      writer.Add(info.name, stored, info.shape,
                 tensor->data.data() + first * DTypeSize(tensor->dtype));
    } else {
      writer.Add(info.name, DType::kF32, info.shape,
                 converted.emplace_back(std::move(wide)).data());
    }
  }
  writer.Write(path);
}

void WriteFla(const Checkpoint& checkpoint, const std::string& folder) {
  const ModelSpec& spec = checkpoint.spec();
  json config = WriteFlaConfig(spec, checkpoint.path());
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error)) {
    throw InputError(folder, ": already exists and is not an empty folder; choose another --out");
  }
  const std::vector<float> bounds = BoundsOf(checkpoint);
  CheckWritableFolder(folder);
  MakeFolder(folder);
  SafetensorsWriter writer;
  writer.SetMetadata("format", "pt");  // as PyTorch's writer sets it
  std::map<std::string, std::vector<float>> joined;
  std::vector<std::pair<std::string, std::vector<int64_t>>> order;
  for (const TensorInfo& info : TensorTable(spec)) {
    if (IsBound(info)) continue;
    const FlaPart part = FlaPartOf(spec.stack.mixer(), info);
    const auto values = checkpoint.Tensor(info.name);
    std::vector<int64_t> shape = info.shape;
    shape[0] = part.rows;
    std::vector<float>& whole = joined[part.name];
    if (whole.empty()) whole.resize(Numel(shape)), order.push_back({part.name, shape});
    const size_t row = values.size() / static_cast<size_t>(info.shape[0]);
    std::copy(values.begin(), values.end(),
              whole.begin() + static_cast<ptrdiff_t>(part.first * static_cast<int64_t>(row)));
  }
  for (const auto& [name, shape] : order) {
    writer.Add(name, DType::kF32, shape, joined[name].data());
  }
  if (!bounds.empty()) {
    const int64_t layers = spec.stack.layers();
    writer.Add(kBounds, DType::kF32, {layers, static_cast<int64_t>(bounds.size()) / layers},
               bounds.data());
  }
  writer.Write((fs::path(folder) / kWeights).string());
  if (spec.text() && spec.text()->unit == TextUnit::kToken) {
    const Vocabulary vocabulary(*spec.text());
    config["eos_token_id"] = vocabulary.end();
    config["bos_token_id"] = vocabulary.begin().back();
    json tokenizer = json::parse(spec.text()->tokenizer);
    tokenizer.erase("end");
    tokenizer["version"] = "1.0";
    tokenizer["truncation"] = tokenizer["padding"] = nullptr;
    WriteFileAtomically((fs::path(folder) / kTokenizer).string(), tokenizer.dump());
  }
  WriteFileAtomically((fs::path(folder) / kConfig).string(), config.dump(2) + "\n");
}

}  // namespace linnet
