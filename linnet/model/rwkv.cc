#include "linnet/model/rwkv.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <list>
#include <set>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/precision.h"
#include "linnet/model/reference.h"

namespace linnet {
namespace {

constexpr int kMostLayers = 1000;

// Tensors that mix in an earlier layer's values. Some files have them in the first block too, where
// they are not used.
bool IsIgnored(const std::string& name) {
  return name == "blocks.0.att.v0" || name == "blocks.0.att.v1" || name == "blocks.0.att.v2";
}

}  // namespace

bool IsRwkv(std::span<const Tensor> tensors) {
  const auto has = [&](const std::string& begin) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const Tensor& tensor) { return tensor.name.starts_with(begin); });
  };
  return has("emb.weight") && has("blocks.0.att.");
}

RwkvPart RwkvPartOf(const std::string& tensor) {
  const std::pair<const char*, const char*> changes[] = {{"value_embedding.", "emb."},
                                                         {"embedding_norm.", "blocks.0.ln0."},
                                                         {"predictor.", "head."},
                                                         {"transformer.norm.", "ln_out."},
                                                         {"transformer.layers.", "blocks."},
                                                         {".attention.", ".att."},
                                                         {".shift", ".ffn.x_k"},
                                                         {".linear1.", ".ffn.key."},
                                                         {".linear2.", ".ffn.value."},
                                                         {".norm1.", ".ln1."},
                                                         {".norm2.", ".ln2."}};
  std::string name = tensor;
  for (const auto& [from, to] : changes) {
    const size_t at = name.find(from);
    if (at != name.npos) name.replace(at, std::string(from).size(), to);
  }
  for (const std::string first : {"w1", "a1", "g1", "v1"}) {
    const std::string matrix = first + ".weight";
    if (name == matrix || name.ends_with("." + matrix)) {
      name.resize(name.size() - matrix.size());
      return {name + first, /*transposed=*/true};
    }
  }
  return {name};
}

RwkvModel RwkvModel::Of(std::span<const Tensor> tensors, const std::string& path, int context) {
  RwkvModel model;
  model.path_ = path;
  for (const Tensor& tensor : tensors) model.tensors_[tensor.name] = &tensor;
  if (model.tensors_.count("blocks.0.att.r_k") == 0) {
    throw InputError(path,
                     ": has no tensor 'blocks.0.att.r_k'; of the RWKV models only those of "
                     "version 7 (x070) are supported");
  }
  model.ReadSpec(context);
  Validate(model.spec_, path);
  model.CheckTensors();
  return model;
}

const Tensor& RwkvModel::Get(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw InputError(path_, ": the tensor ", Quote(name), " is missing");
  return *found->second;
}

int RwkvModel::Size(const std::string& name, size_t axis) const {
  const std::vector<int64_t>& shape = Get(name).shape;
  if (shape.size() != 2 || shape[axis] < 1 || shape[axis] > 1 << 20) {
    throw InputError(path_, ": the tensor ", Quote(name), " is ", FormatShape(shape),
                     "; it must have two axes of size 1 to 2^20");
  }
  return static_cast<int>(shape[axis]);
}

void RwkvModel::ReadSpec(int context) {
  MixerSpec mixer{.kind = "rwkv7"};
  mixer.heads = Size("blocks.0.att.r_k", 0);
  mixer.query_dim = mixer.value_dim = Size("blocks.0.att.r_k", 1);
  mixer.decay_rank = Size("blocks.0.att.w1", 1);
  mixer.rate_rank = Size("blocks.0.att.a1", 1);
  mixer.gate_rank = Size("blocks.0.att.g1", 1);
  StackSpec& stack = spec_.stack;
  stack = {.pattern = {mixer},
           .repeat = 1,
           .d_model = Size("emb.weight", 1),
           .d_ff = Size("blocks.0.ffn.key.weight", 0),
           .feed_forward = FeedForwardKind::kShifted,
           .norm_first = true};
  for (int i = 1; i < kMostLayers && tensors_.count(StrCat("blocks.", i, ".ln1.weight")) > 0; ++i) {
    // All blocks but the first mix in the first block's values.
    if (i == 1) mixer.value_rank = Size("blocks.1.att.v1", 1);
    stack.pattern.push_back(mixer);
  }
  spec_.task = "tokens", spec_.part = std::monostate();
  spec_.input.vocabulary = Size("emb.weight", 0);
  spec_.input.max_length = context;
  spec_.input.value_embedding = stack.d_model;
  spec_.input.norm = true;
  spec_.head = {.kind = HeadKind::kCategorical, .classes = spec_.input.vocabulary, .bias = false};
}

void RwkvModel::CheckTensors() const {
  std::set<std::string> used;
  for (const TensorInfo& info : TensorTable(spec_)) {
    const auto [name, transposed] = RwkvPartOf(info.name);
    const Tensor& tensor = Get(name);
    std::vector<int64_t> shape = info.shape;
    if (transposed) std::reverse(shape.begin(), shape.end());
    if (!HoldsFloats(tensor, shape)) {
      throw InputError(path_, ": the tensor ", Quote(name), " is ", DTypeName(tensor.dtype), " ",
                       FormatShape(tensor.shape),
                       ", but the first block's sizes need F32, F16 or BF16 ", FormatShape(shape));
    }
    used.insert(name);
  }
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : tensors_) {
    if (used.count(name) == 0 && !IsIgnored(name)) unused.push_back(name);
  }
  if (!unused.empty()) {
    throw InputError(path_, ": linnet does not know the tensors ", QuoteAll(unused),
                     "; the model has a part that is not supported");
  }
}

Precision RwkvModel::precision() const {
  for (const TensorInfo& info : TensorTable(spec_)) {
    if (IsMatrix(info.name) && Get(RwkvPartOf(info.name).name).dtype != DType::kBF16) {
      return Precision::kF32;
    }
  }
  return Precision::kBf16;
}

void RwkvModel::Write(const std::string& path, const std::string& training) const {
  const Precision precision = this->precision();
  SafetensorsWriter writer;
  writer.SetMetadata("linnet", ToJson(spec_));
  writer.SetMetadata("training", training);
  // Converted tensors in F32 and in BF16. `writer` reads them in Write().
  std::list<std::vector<float>> wide;
  std::list<std::vector<uint16_t>> narrow;
  for (const TensorInfo& info : TensorTable(spec_)) {
    const auto [name, transposed] = RwkvPartOf(info.name);
    const Tensor& tensor = Get(name);
    std::vector<float> values = ToFloats(tensor, 0, static_cast<size_t>(tensor.numel()));
    CheckFinite(values, path_, name);
    if (transposed) {
      const std::vector<float> from = values;
      const auto rows = static_cast<size_t>(info.shape[0]), columns = from.size() / rows;
      for (size_t i = 0; i < from.size(); ++i) values[i % rows * columns + i / rows] = from[i];
    }
    if (StoredAs(spec_, info.name, precision) == DType::kBF16 && tensor.dtype == DType::kBF16) {
      std::vector<uint16_t>& upper = narrow.emplace_back();
      for (const float value : values) {
        upper.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      }
      writer.Add(info.name, DType::kBF16, info.shape, upper.data());
    } else {
      writer.Add(info.name, DType::kF32, info.shape, wide.emplace_back(std::move(values)).data());
    }
  }
  writer.Write(path);
}

}  // namespace linnet
