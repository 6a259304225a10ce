#include "linnet/model/reference.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>

#include "linnet/base/error.h"
#include "linnet/io/json.h"
#include "linnet/model/checkpoint.h"

namespace linnet {
namespace {

constexpr const char* kFirstValue = "first_value.probability";
constexpr const char* kPositions = "pos_embedding.pe";
constexpr const char* kAbove = "above_embedding.weight";
constexpr int kMaxLayers = 1000;  // as Validate() has it

using Named = std::map<std::string, const Tensor*>;

Named ByName(std::span<const Tensor> tensors, const std::string& path) {
  Named named;
  for (const Tensor& tensor : tensors) {
    const auto [at, added] = named.emplace(ReferenceName(tensor.name), &tensor);
    if (!added) {
      throw InputError(path, ": ", Quote(tensor.name), " and ", Quote(at->second->name),
                       " are the same tensor but for a prefix; rename one");
    }
  }
  return named;
}

// Throws unless the names are those of the table.
void CheckNames(const Named& named, const std::vector<TensorInfo>& table, const std::string& path) {
  std::vector<std::string> missing, left_over;
  std::set<std::string> known;
  for (const TensorInfo& info : table) {
    known.insert(info.name);
    if (info.name != kFirstValue && named.count(info.name) == 0) missing.push_back(info.name);
  }
  for (const auto& [name, tensor] : named) {
    if (known.count(name) == 0) left_over.push_back(tensor->name);
  }
  if (missing.empty() && left_over.empty()) return;
  const std::string lacks = missing.empty() ? "" : "it lacks " + QuoteAll(missing);
  const std::string extra =
      left_over.empty() ? "" : "linnet has no place for " + QuoteAll(left_over);
  const bool random = std::any_of(left_over.begin(), left_over.end(), [](const std::string& name) {
    return name.ends_with(".feature_map.omega");
  });
  throw InputError(path, ": no model of the reference library that linnet knows: ", lacks,
                   lacks.empty() || extra.empty() ? "" : "; ", extra,
                   random ? "; a random feature map is read only from what linnet export --format "
                            "safetensors wrote"
                          : "; rename or remove tensors in Python, or see "
                            "docs/from-fast-transformers.md");
}

int Layers(const Named& named) {
  int layers = 0;
  while (layers < kMaxLayers) {
    const std::string prefix = StrCat("transformer.layers.", layers, ".");
    const auto next = named.lower_bound(prefix);
    if (next == named.end() || next->first.compare(0, prefix.size(), prefix) != 0) break;
    ++layers;
  }
  return layers;
}

// A dimension of a tensor that CheckNames() saw.
int Dimension(const Named& named, const std::string& name, size_t rank, size_t index,
              const std::string& path) {
  const Tensor& tensor = *named.at(name);
  if (tensor.shape.size() != rank || tensor.shape[index] < 1 || tensor.shape[index] > INT32_MAX) {
    throw InputError(path, ": tensor ", Quote(tensor.name), " has the shape ",
                     FormatShape(tensor.shape), "; it must have ", rank, " dimensions, none empty");
  }
  return static_cast<int>(tensor.shape[index]);
}

// Width, height and channels, and with them how many positions are used.
void ShapeImages(ModelSpec& spec, const ReferenceChoices& choices, const std::string& path) {
  ImageSpec& image = *spec.image();
  const int64_t bytes = int64_t{spec.input.max_length} + 1;
  if (choices.width == 0 && choices.height == 0 && choices.channels == 0) {
    if (bytes == 28 * 28) {
      image.width = image.height = 28, image.channels = 1;
    } else if (bytes == 32 * 32 * 3) {
      image.width = image.height = 32, image.channels = 3;
    } else {
      throw InputError(path, ": it has ", spec.input.max_length, " positions, for images of ", bytes,
                       " bytes or less; give their --width and --height, and --channels for RGB");
    }
    return;
  }
  if (choices.width == 0 || choices.height == 0) {
    throw InputError("--width and --height belong together; give both");
  }
  image.width = choices.width;
  image.height = choices.height;
  image.channels = choices.channels == 0 ? 1 : choices.channels;
  const int64_t wanted = int64_t{image.width} * image.height * image.channels;
  if (wanted > bytes) {
    throw InputError(path, ": it has ", spec.input.max_length, " positions, enough for ", bytes,
                     " bytes, but images of ", image.width, " x ", image.height, " x ", image.channels,
                     " have ", wanted, "; see --width, --height and --channels");
  }
  spec.input.max_length = static_cast<int>(std::max<int64_t>(wanted - 1, 1));
}

// Whether the table is one that linnet made for places in a grid: its numbers tell.
bool HasGrid(const ModelSpec& spec, const Tensor& tensor) {
  if (!spec.image() || tensor.dtype != DType::kF32) return false;
  ModelSpec grid = spec;
  grid.input.positions = Positions::kGrid;
  const int64_t dim = spec.stack.d_model - spec.input.value_embedding;
  if (dim % 8 != 0) return false;
  const std::span<const float> got = tensor.f32();
  // The table may be large: it is made only where the file holds as much.
  if (static_cast<int64_t>(got.size()) < spec.input.max_length * dim) return false;
  const std::vector<float> want = PositionTable(grid);
  const auto close = [](float a, float b) { return std::abs(a - b) <= 1e-4f; };
  return std::equal(want.begin(), want.end(), got.begin(), close);
}

ModelSpec SpecOf(const Named& named, const std::string& path, const ReferenceChoices& choices) {
  ModelSpec spec;
  // First the names, so that what is missing is said in one go.
  spec.stack.repeat = std::max(Layers(named), 1);
  spec.stack.final_norm = named.count("transformer.norm.weight") + named.count("transformer.norm.bias");
  spec.input.pixel_above = named.count(kAbove) > 0;
  spec.stack.norm_first = choices.norm_first;
  spec.stack.activation = choices.activation;
  spec.stack.mixer() = choices.attention;
  CheckNames(named, TensorTable(spec), path);

  const auto dimension = [&](const std::string& name, size_t rank, size_t index) {
    return Dimension(named, name, rank, index, path);
  };
  const std::string layer = "transformer.layers.0.";
  spec.input.vocabulary = dimension("value_embedding.weight", 2, 0);
  spec.input.value_embedding = dimension("value_embedding.weight", 2, 1);
  spec.input.max_length = dimension(kPositions, 3, 1);
  spec.stack.d_model = dimension("predictor.weight", 2, 1);
  spec.stack.d_ff = dimension(layer + "linear1.weight", 2, 0);
  const int keys = dimension(layer + "attention.query_projection.weight", 2, 0);
  const int values = dimension(layer + "attention.value_projection.weight", 2, 0);
  if (choices.heads == 0) {
    throw InputError(path,
                     ": its tensors do not tell the number of heads; give --heads, a divisor "
                     "of ",
                     keys, keys == values ? "" : StrCat(" and ", values));
  }
  if (choices.heads < 0 || keys % choices.heads != 0 || values % choices.heads != 0) {
    throw InputError(path, ": ", choices.heads, " heads cannot share ", keys, " queries and ",
                     values, " values; see --heads");
  }
  spec.stack.mixer().heads = choices.heads;
  spec.stack.mixer().query_dim = keys / spec.stack.mixer().heads;
  spec.stack.mixer().value_dim = values / spec.stack.mixer().heads;

  const int outputs = dimension("predictor.weight", 2, 0);
  if (spec.input.vocabulary == 256 && outputs % 3 == 0) {
    spec.task = "images";
    spec.head.kind = HeadKind::kLogistics;
    spec.head.mixtures = outputs / 3;
    ShapeImages(spec, choices, path);
  } else if (outputs == spec.input.vocabulary) {
    spec.task = "copy";
    spec.part = std::monostate();
    spec.head.kind = HeadKind::kCategorical;
    spec.head.classes = outputs;
    if (choices.width + choices.height + choices.channels != 0) {
      throw InputError(path, ": a model of ", spec.input.vocabulary,
                       " symbols, not of images; leave out --width, --height and --channels");
    }
  } else {
    throw InputError(path, ": ", outputs, " outputs for ", spec.input.vocabulary, " symbols are neither ",
                     "a mixture of logistics over bytes nor one for each symbol; linnet has no "
                     "such head");
  }
  Validate(spec, path);
  if (HasGrid(spec, *named.at(kPositions))) spec.input.positions = Positions::kGrid;
  return spec;
}

float FromHalf(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = half >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

std::vector<float> ToFloats(const Tensor& tensor, size_t size) {
  std::vector<float> floats(size);
  const auto element = [&]<typename T>(T value, size_t i) {
    std::memcpy(&value, tensor.data.data() + i * sizeof(T), sizeof(T));
    return value;
  };
  for (size_t i = 0; i < floats.size(); ++i) {
    switch (tensor.dtype) {
      case DType::kF16:
        floats[i] = FromHalf(element(uint16_t{}, i));
        break;
      case DType::kBF16:
        floats[i] = std::bit_cast<float>(uint32_t{element(uint16_t{}, i)} << 16);
        break;
      case DType::kF64: {
        const double value = element(double{}, i);
        // Beyond a float's range the conversion is undefined; what is no number is refused later.
        floats[i] = std::abs(value) <= FLT_MAX ? static_cast<float>(value) : INFINITY;
        break;
      }
      default:
        throw InputError(tensor.file, ": tensor ", Quote(tensor.name), " is ",
                         DTypeName(tensor.dtype), ", which holds no weights; convert it to F32");
    }
  }
  return floats;
}

// The first `size` elements, all of them numbers; in `own` where they are converted.
std::span<const float> Floats(const Tensor& tensor, size_t size, std::vector<float>& own,
                              const std::string& path) {
  std::span<const float> floats;
  if (tensor.dtype == DType::kF32) {
    floats = tensor.f32().first(size);
  } else {
    own = ToFloats(tensor, size);
    floats = own;
  }
  CheckFinite(floats, path, tensor.name);
  return floats;
}

}  // namespace

std::string ReferenceName(const std::string& name) {
  std::string_view rest = name;
  const auto strip = [&](std::string_view prefix) {
    if (rest.substr(0, prefix.size()) != prefix) return false;
    rest.remove_prefix(prefix.size());
    return true;
  };
  while (strip("module.") || strip("model.") || strip("_orig_mod.")) {
  }
  // Of the stack alone, or of one under another name.
  const bool stack = strip("transformer.") || strip("transformer_encoder.") || strip("encoder.") ||
                     rest.substr(0, 7) == "layers." || rest.substr(0, 5) == "norm.";
  return (stack ? "transformer." : "") + std::string(rest);
}

void ReferenceModel::SetFirstValue(std::vector<float> probability) {
  std::vector<float>& own = own_[kFirstValue];
  own = std::move(probability);
  tensors_[kFirstValue] = own;
}

void ReferenceModel::Take(std::span<const linnet::Tensor> tensors, const std::string& path) {
  const Named named = ByName(tensors, path);
  const std::vector<TensorInfo> table = TensorTable(spec_);
  CheckNames(named, table, path);
  for (const TensorInfo& info : table) {
    const auto found = named.find(info.name);
    if (found == named.end()) {  // only the first byte's distribution may be missing
      SetFirstValue(std::vector<float>(static_cast<size_t>(spec_.input.vocabulary),
                                       1.0f / static_cast<float>(spec_.input.vocabulary)));
      continue;
    }
    const linnet::Tensor& tensor = *found->second;
    has_first_value_ = has_first_value_ || info.name == kFirstValue;
    std::vector<int64_t> shape = tensor.shape;
    if (info.name == kPositions && shape.size() == 3) {
      shape[1] = std::min(shape[1], info.shape[1]);  // those behind are never reached
    }
    if (shape != info.shape) {
      throw InputError(path, ": tensor ", Quote(tensor.name), " is ", FormatShape(tensor.shape),
                       ", but beside the others it must be ", FormatShape(info.shape));
    }
    size_t size = 1;
    for (int64_t n : info.shape) size *= static_cast<size_t>(n);
    tensors_[info.name] = Floats(tensor, size, own_[info.name], path);
  }
}

ReferenceModel FromReference(std::span<const Tensor> tensors, const std::string& path,
                             const ReferenceChoices& choices) {
  return FromKnownSpec(tensors, path, SpecOf(ByName(tensors, path), path, choices));
}

ReferenceModel FromKnownSpec(std::span<const Tensor> tensors, const std::string& path,
                             const ModelSpec& spec) {
  ReferenceModel model;
  Validate(spec, path);
  model.spec_ = spec;
  model.Take(tensors, path);
  return model;
}

}  // namespace linnet
