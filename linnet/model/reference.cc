#include "linnet/model/reference.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>

#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/pixels.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

constexpr const char* kFirstValue = "first_value.probability";
constexpr const char* kEmbedding = "value_embedding.weight";
constexpr const char* kPositions = "pos_embedding.pe";
constexpr const char* kAbove = "above_embedding.weight";
constexpr const char* kHead = "predictor.weight";
constexpr const char* kHeadBias = "predictor.bias";
constexpr std::string_view kOmega = ".feature_map.omega";
constexpr int kMaxLayers = 1000;  // the limit of Validate() in spec.cc

// Bias of the logits of tokens that are never sampled: their probability rounds to 0.
constexpr float kNever = -1e9f;

enum class TaskKind : uint8_t { kImages, kCopy, kText };
struct TaskRow {
  const char* name;
  TaskKind kind;
};
constexpr TaskRow kTasks[] = {{"images", TaskKind::kImages},
                              {"copy", TaskKind::kCopy},
                              {"text", TaskKind::kText},
                              {"couplet", TaskKind::kText}};

// Tensors by linnet's names.
using Named = std::map<std::string, const Tensor*>;

// Removes the prefixes that wrappers add.
std::string_view Unwrapped(std::string_view name) {
  constexpr std::string_view kWrappers[] = {"module.", "model.", "_orig_mod."};
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view wrapper : kWrappers) {
      if (!name.starts_with(wrapper)) continue;
      name.remove_prefix(wrapper.size());
      found = true;
    }
  }
  return name;
}

Named ByName(std::span<const Tensor> tensors, const std::string& path) {
  // In a model with a decoder, "encoder." is not an alias of "transformer.".
  const bool decoder = std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return Unwrapped(tensor.name).starts_with("decoder.");
  });
  Named named;
  for (const Tensor& tensor : tensors) {
    const std::string name =
        decoder ? std::string(Unwrapped(tensor.name)) : ReferenceName(tensor.name);
    const auto [at, added] = named.emplace(name, &tensor);
    if (!added) {
      throw InputError(path, ": ", Quote(tensor.name), " and ", Quote(at->second->name),
                       " differ only in a prefix; rename one");
    }
  }
  return named;
}

// Throws unless the names are exactly those of the table (first_value.probability is optional).
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
  const std::string extra = left_over.empty() ? "" : "linnet does not know " + QuoteAll(left_over);
  const bool random = std::any_of(left_over.begin(), left_over.end(),
                                  [](const std::string& name) { return name.ends_with(kOmega); });
  throw InputError(path, ": not a fast-transformers model that linnet can import: ", lacks,
                   lacks.empty() || extra.empty() ? "" : "; ", extra,
                   random ? "; omega belongs to a random feature map, so name it with --feature-map"
                          : "; rename or remove tensors in Python, or see "
                            "docs/from-fast-transformers.md");
}

bool HasPrefix(const Named& named, const std::string& prefix) {
  const auto next = named.lower_bound(prefix);
  return next != named.end() && next->first.starts_with(prefix);
}

// Number of layers of the stack whose tensors have names that begin with `stack`.
int Layers(const Named& named, const std::string& stack) {
  int layers = 0;
  while (layers < kMaxLayers && HasPrefix(named, StrCat(stack, "layers.", layers, "."))) ++layers;
  return layers;
}

// Throws InputError if the names are those of a part of a model, or of a speech model, which cannot
// be imported.
void CheckWhole(const Named& named, const std::string& path) {
  const auto refuse = [&](const auto&... message) {
    throw InputError(path, ": holds ", message...);
  };
  constexpr const char* kSpeech =
      ", which cannot be imported: a state_dict lacks the filterbank and the phones of a speech "
      "model; use a file that linnet export --format safetensors wrote";
  constexpr const char* kPart =
      ", which cannot be imported: linnet imports whole models, with value_embedding and predictor";
  if (HasPrefix(named, "lstm.")) refuse("an LSTM", kSpeech);
  if (HasPrefix(named, "input_projection.")) refuse("a model that reads frames", kSpeech);
  const bool encoder = HasPrefix(named, "encoder.layers.");
  const bool ends = HasPrefix(named, "value_embedding.") || HasPrefix(named, "predictor.");
  const bool decoder = std::any_of(named.begin(), named.end(), [](const auto& entry) {
    return entry.first.find(".cross_attention.") != std::string::npos;
  });
  if (decoder && !encoder) refuse("a decoder", kPart, ", and a decoder with its encoder");
  if (ends) return;
  if (decoder) refuse("the stacks of an encoder and a decoder alone", kPart);
  const int layers = Layers(named, "transformer.");
  if (layers > 0)
    refuse("a stack of ", layers, layers == 1 ? " layer" : " layers", " alone", kPart);
}

// Returns the mixer, with parameters that its kind does not use reset to their defaults.
MixerSpec OwnParameters(MixerSpec mixer) {
  const MixerInfo info = FindMixer(mixer.kind);
  const MixerSpec plain;
  const auto lacks = [&](const char* field) {
    return std::find(info.options.begin(), info.options.end(), field) == info.options.end();
  };
  if (lacks("lsh_rounds")) mixer.lsh_rounds = plain.lsh_rounds;
  if (lacks("lsh_buckets")) mixer.lsh_buckets = plain.lsh_buckets;
  if (lacks("lsh_chunk")) mixer.lsh_chunk = plain.lsh_chunk;
  if (lacks("lsh_variant")) mixer.lsh_variant = plain.lsh_variant;
  if (!info.maps) mixer.feature_map = plain.feature_map, mixer.features = plain.features;
  if (!info.scales) mixer.scale = plain.scale;
  return mixer;
}

// Builds a spec from names, shapes and choices.
class SpecReader {
 public:
  SpecReader(const Named& named, const std::string& path, const ReferenceChoices& choices)
      : named_(named), path_(path), choices_(choices) {}

  ModelSpec Read() {
    CheckWhole(named_, path_);
    Names();  // first, to report all missing tensors at once
    Sizes();
    Heads();
    Features();
    Task();
    Validate(spec_, path_);
    if (HasGrid()) spec_.input.positions = Positions::kGrid;
    return spec_;
  }
  int special_tokens() const { return special_tokens_; }
  bool both_signs() const { return both_signs_; }

 private:
  template <class... Message>
  void Require(bool good, const Message&... message) const {
    if (!good) throw InputError(path_, ": ", message...);
  }

  // A tensor's dimension; 0 if there is no such tensor or it has another rank.
  int Peek(const std::string& name, size_t rank, size_t index) const {
    const auto found = named_.find(name);
    if (found == named_.end() || found->second->shape.size() != rank) return 0;
    const int64_t size = found->second->shape[index];
    return size < 1 || size > INT32_MAX ? 0 : static_cast<int>(size);
  }
  // Like Peek(), for a tensor that CheckNames() has found. Throws instead of returning 0.
  int Dimension(const std::string& name, size_t rank, size_t index) const {
    const int size = Peek(name, rank, index);
    const Tensor& tensor = *named_.at(name);
    Require(size > 0, "tensor ", Quote(tensor.name), " has the shape ", FormatShape(tensor.shape),
            "; it must have ", rank, " dimensions, none empty");
    return size;
  }

  // Without --task, decides whether this is a text model: its vocabulary has the size of a byte
  // vocabulary, or --characters is given.
  bool TellsText(int vocabulary) const {
    return !choices_.characters.empty() || vocabulary == 256 ||
           vocabulary == 256 + Vocabulary::kFirst;
  }

  // Sets the fields that the names determine, and checks that no name is missing or extra.
  void Names() {
    StackSpec& stack = spec_.stack;
    const bool decoder = HasPrefix(named_, "decoder.");
    if (decoder) spec_.network = NetworkKind::kEncoderDecoder;
    name_ = decoder ? "encoder." : "transformer.";
    stack.repeat = std::max(Layers(named_, name_), 1);
    stack.final_norm = HasPrefix(named_, name_ + "norm.");
    stack.norm_first = choices_.norm_first;
    stack.activation = choices_.activation;
    stack.mixer() = OwnParameters(choices_.attention);
    // 1 stands for any width until Sizes() reads it from the tensor.
    stack.convolution = HasPrefix(named_, name_ + "layers.0.convolution.") ? 1 : 0;
    spec_.input.pixel_above = named_.count(kAbove) > 0;

    const int outputs = Peek(kHead, 2, 0), d_model = Peek(kHead, 2, 1);
    const bool table = named_.count(kPositions) > 0, embedding = named_.count(kEmbedding) > 0;
    spec_.head.tied = !embedding && d_model > 0 &&
                      (table ? Peek(kPositions, 3, 2) == d_model : TellsText(outputs));
    // Whether the embedding fills d_model, which leaves no dimensions for positions.
    const bool whole = Peek(kEmbedding, 2, 1) == d_model && Peek(kEmbedding, 2, 0) == outputs;
    const bool no_table = !table && d_model > 0 && (spec_.head.tied || whole);
    // PositionDims() is then 0, so TensorTable() has no position table.
    if (no_table) spec_.input.value_embedding = stack.d_model;
    CheckNames(named_, TensorTable(spec_), path_);
  }

  void Sizes() {
    InputSpec& input = spec_.input;
    StackSpec& stack = spec_.stack;
    outputs_ = Dimension(kHead, 2, 0);
    stack.d_model = Dimension(kHead, 2, 1);
    input.vocabulary = spec_.head.tied ? outputs_ : Dimension(kEmbedding, 2, 0);
    input.value_embedding = spec_.head.tied ? stack.d_model : Dimension(kEmbedding, 2, 1);
    const bool table = named_.count(kPositions) > 0;
    input.max_length = table ? Dimension(kPositions, 3, 1) : choices_.context;
    if (table && input.value_embedding == stack.d_model) input.positions = Positions::kAdded;
    const std::string layer = name_ + "layers.0.";
    stack.d_ff = Dimension(layer + "linear1.weight", 2, 0);
    if (stack.convolution > 0) stack.convolution = Dimension(layer + "convolution.weight", 2, 0);
  }

  void Heads() {
    const std::string attention = name_ + "layers.0.attention.";
    const int keys = Dimension(attention + "query_projection.weight", 2, 0);
    const int values = Dimension(attention + "value_projection.weight", 2, 0);
    Require(choices_.heads != 0,
            "the tensors do not determine the number of heads; give --heads, a divisor of ", keys,
            keys == values ? "" : StrCat(" and ", values));
    Require(choices_.heads > 0 && keys % choices_.heads == 0 && values % choices_.heads == 0,
            choices_.heads, " heads cannot share ", keys, " query columns and ", values,
            " value columns equally; see --heads");
    MixerSpec& mixer = spec_.stack.mixer();
    mixer.heads = choices_.heads;
    mixer.query_dim = keys / mixer.heads;
    mixer.value_dim = values / mixer.heads;
  }

  // Sets the number of features, given the columns of omega. fast-transformers' Favor uses each
  // column with both signs; linnet's favor has one column per feature.
  void Features() {
    MixerSpec& mixer = spec_.stack.mixer();
    const FeatureMapInfo map = FindFeatureMap(mixer.feature_map);
    if (!FindMixer(mixer.kind).maps || map.omega == nullptr) return;
    const std::string omega = StrCat(name_, "layers.0.attention.inner_attention", kOmega);
    const int64_t columns = Dimension(omega, 2, 1);
    const int64_t twice = 2 * columns;
    Require(twice <= 1 << 16, "tensor ", Quote(omega), " has ", columns, " columns; too many");
    // The columns of omega for a number of features.
    const auto made = [&](int64_t features) {
      return map.omega(mixer.query_dim, static_cast<int>(features));
    };
    if (mixer.features == 0) {
      Require(made(twice) == columns, "its omega has ", columns, " columns: ", twice,
              " features if each column has both signs, as in fast-transformers, or ", columns,
              " as in linnet; give --features");
      mixer.features = static_cast<int>(twice);
    }
    both_signs_ = made(mixer.features) == twice;
    Require(both_signs_ || made(mixer.features) == columns, "its omega has ", columns,
            " columns, which do not fit ", mixer.features, " features of ", map.name,
            "; see --features");
  }

  void Task() {
    const int vocabulary = spec_.input.vocabulary;
    const bool logistics = vocabulary == 256 && outputs_ % 3 == 0;
    Require(vocabulary != kPixelRows || outputs_ % 10 != 0,
            "a model that reads whole pixels, which linnet import does not support");
    Require(logistics || outputs_ == vocabulary, outputs_, " outputs for ", vocabulary,
            " tokens are neither a mixture of logistics over bytes nor one per token; linnet "
            "has no such head");
    const TaskRow task = TaskOf(logistics);
    spec_.task = task.name;
    // With 256 outputs for 256 tokens, a categorical head predicts bytes of text or of images.
    const bool images = task.kind == TaskKind::kImages;
    Require(logistics ? images : !images || vocabulary == 256, "its ", outputs_, " outputs for ",
            vocabulary, " tokens are those of ", logistics ? "images" : "tokens",
            ", not of --task ", task.name);
    Require(choices_.characters.empty() || task.kind == TaskKind::kText,
            "--characters is for text, but the task is ", task.name, "; leave it out");
    if (images) return Images();
    spec_.head.kind = HeadKind::kCategorical;
    spec_.head.classes = vocabulary;
    Require(choices_.width + choices_.height + choices_.channels == 0, "a model of ", vocabulary,
            " tokens, not of images; leave out --width, --height and --channels");
    if (task.kind == TaskKind::kText) return Text();
    const char* of_text = spec_.encoder_decoder()                      ? "an encoder and a decoder"
                          : spec_.head.tied                            ? "tied embeddings"
                          : spec_.input.positions == Positions::kAdded ? "added positions"
                                                                       : nullptr;
    Require(of_text == nullptr, of_text == nullptr ? "" : of_text,
            " are for text; a vocabulary of ", vocabulary,
            " is not one of bytes, so give --characters");
    spec_.part = std::monostate();
  }

  TaskRow TaskOf(bool logistics) const {
    const bool sized = choices_.width + choices_.height + choices_.channels > 0;
    const bool images = choices_.images || sized || named_.count(kFirstValue) > 0;
    const bool bytes = spec_.input.vocabulary == 256 && outputs_ == 256 &&
                       !spec_.encoder_decoder() && !spec_.head.tied;
    const std::string shapes = logistics || (bytes && images)       ? "images"
                               : !TellsText(spec_.input.vocabulary) ? "copy"
                               : spec_.encoder_decoder()            ? "couplet"
                                                                    : "text";
    const std::string& name = choices_.task.empty() ? shapes : choices_.task;
    const auto* const row = std::find_if(std::begin(kTasks), std::end(kTasks),
                                         [&](const TaskRow& task) { return name == task.name; });
    if (row == std::end(kTasks)) {
      throw InputError("no task ", Quote(name), " can be imported; choose one of ",
                       QuoteAll(ReferenceTasks()));
    }
    return *row;
  }

  // Sets the meaning of the tokens, and the number of special tokens that the vocabulary lacks.
  void Text() {
    const TextUnit unit = choices_.characters.empty() ? TextUnit::kByte : TextUnit::kCharacter;
    const TextSpec text = {.unit = unit, .characters = choices_.characters};
    const int vocabulary = spec_.input.vocabulary;
    // Sizes of the vocabulary with linnet's special tokens and without them.
    const int whole = static_cast<int>(Vocabulary(text).size()), own = whole - Vocabulary::kFirst;
    if (unit == TextUnit::kByte) {
      Require(vocabulary == own || vocabulary == whole, "a vocabulary of ", vocabulary,
              " is not one of bytes (", own, ", or ", whole,
              " with linnet's special tokens); give --characters");
    }
    Require(vocabulary == own || vocabulary == whole, "a vocabulary of ", vocabulary,
            " tokens, but --characters has ", own, ", or ", whole,
            " with linnet's special tokens; every character of the file given with --characters "
            "counts, including line ends");
    special_tokens_ = whole - vocabulary;
    spec_.input.vocabulary = spec_.head.classes = whole;
    spec_.part = text;
  }

  // Sets width, height and channels, and from these the number of positions used.
  void Images() {
    if (outputs_ == spec_.input.vocabulary) {
      spec_.head.kind = HeadKind::kCategorical;
      spec_.head.classes = outputs_;
    } else {
      spec_.head.kind = HeadKind::kLogistics;
      spec_.head.mixtures = outputs_ / 3;
    }
    ImageSpec& image = *spec_.image();
    int& positions = spec_.input.max_length;
    const bool table = named_.count(kPositions) > 0;
    const int64_t bytes = int64_t{positions} + 1;
    if (choices_.width == 0 && choices_.height == 0 && choices_.channels == 0) {
      if (!table) {
        throw InputError(path_,
                         ": it has no table of positions; give --width and --height, and "
                         "--channels for RGB");
      }
      if (bytes == 28 * 28) {
        image.width = image.height = 28, image.channels = 1;
      } else if (bytes == 32 * 32 * 3) {
        image.width = image.height = 32, image.channels = 3;
      } else {
        throw InputError(path_, ": it has ", positions, " positions, for images of ", bytes,
                         " bytes or less; give their --width and --height, and --channels for RGB");
      }
      return;
    }
    if (choices_.width == 0 || choices_.height == 0) {
      throw InputError("--width and --height belong together; give both");
    }
    image.width = choices_.width;
    image.height = choices_.height;
    image.channels = choices_.channels == 0 ? 1 : choices_.channels;
    const int64_t wanted = int64_t{image.width} * image.height * image.channels;
    Require(!table || wanted <= bytes, "it has ", positions, " positions, enough for ", bytes,
            " bytes, but images of ", image.width, " x ", image.height, " x ", image.channels,
            " have ", wanted, "; see --width, --height and --channels");
    positions = static_cast<int>(std::max<int64_t>(wanted - 1, 1));
  }

  // Whether the values of the position table are those of Positions::kGrid.
  bool HasGrid() const {
    if (!spec_.image() || named_.count(kPositions) == 0) return false;
    const Tensor& tensor = *named_.at(kPositions);
    if (tensor.dtype != DType::kF32) return false;
    ModelSpec grid = spec_;
    grid.input.positions = Positions::kGrid;
    const int64_t dim = spec_.stack.d_model - spec_.input.value_embedding;
    if (dim % 8 != 0) return false;
    const std::span<const float> got = tensor.f32();
    // The table may be huge: build it only if the file's table is as large.
    if (static_cast<int64_t>(got.size()) < spec_.input.max_length * dim) return false;
    const std::vector<float> want = PositionTable(grid);
    const auto close = [](float a, float b) { return std::abs(a - b) <= 1e-4f; };
    return std::equal(want.begin(), want.end(), got.begin(), close);
  }

  const Named& named_;
  const std::string& path_;
  const ReferenceChoices& choices_;
  ModelSpec spec_;
  std::string name_;  // prefix of the first stack, with its dot
  int outputs_ = 0;   // of the predictor
  int special_tokens_ = 0;
  bool both_signs_ = false;
};

float FromHalf(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const float sign = half >> 15 != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

// The first `size` elements as floats; `own` stores converted ones. Throws InputError if one is not
// finite.
std::span<const float> Floats(const Tensor& tensor, size_t size, std::vector<float>& own,
                              const std::string& path) {
  std::span<const float> floats;
  if (tensor.dtype == DType::kF32) {
    floats = tensor.f32().first(size);
  } else {
    own = ToFloats(tensor, 0, size);
    floats = own;
  }
  CheckFinite(floats, path, tensor.name);
  return floats;
}

// `numbers` copies of `value`, then `values`.
std::vector<float> WithRowsInFront(std::span<const float> values, size_t numbers, float value) {
  std::vector<float> all(numbers, value);
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

// [rows, columns] -> [rows, 2 columns]: each row x becomes (x, -x).
std::vector<float> WithNegatives(std::span<const float> values, size_t columns) {
  std::vector<float> all;
  for (size_t at = 0; at < values.size(); at += columns) {
    const std::span<const float> row = values.subspan(at, columns);
    all.insert(all.end(), row.begin(), row.end());
    std::transform(row.begin(), row.end(), std::back_inserter(all), std::negate<>());
  }
  return all;
}

}  // namespace

std::vector<std::string> ReferenceTasks() {
  std::vector<std::string> names;
  for (const TaskRow& task : kTasks) names.emplace_back(task.name);
  return names;
}

std::vector<float> ToFloats(const Tensor& tensor, size_t first, size_t count) {
  std::vector<float> floats(count);
  const auto element = [&]<typename T>(T value, size_t i) {
    std::memcpy(&value, tensor.data.data() + (first + i) * sizeof(T), sizeof(T));
    return value;
  };
  for (size_t i = 0; i < floats.size(); ++i) {
    switch (tensor.dtype) {
      case DType::kF32:
        floats[i] = element(float{}, i);
        break;
      case DType::kF16:
        floats[i] = FromHalf(element(uint16_t{}, i));
        break;
      case DType::kBF16:
        floats[i] = std::bit_cast<float>(uint32_t{element(uint16_t{}, i)} << 16);
        break;
      case DType::kF64: {
        const double value = element(double{}, i);
        // Beyond a float's range the conversion is undefined. CheckFinite() refuses infinity later.
        floats[i] = std::abs(value) <= FLT_MAX ? static_cast<float>(value) : INFINITY;
        break;
      }
      default:
        throw InputError(tensor.file, ": tensor ", Quote(tensor.name), " is ",
                         DTypeName(tensor.dtype), ", not a floating-point type; convert it to F32");
    }
  }
  return floats;
}

bool HoldsFloats(const Tensor& tensor, const std::vector<int64_t>& shape) {
  const auto without_ones = [](std::vector<int64_t> sizes) {
    std::erase(sizes, 1);
    return sizes;
  };
  const bool is_float =
      tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
  return is_float && without_ones(tensor.shape) == without_ones(shape);
}

std::string ReferenceName(const std::string& name) {
  std::string_view rest = Unwrapped(name);
  const auto strip = [&](std::string_view prefix) {
    if (!rest.starts_with(prefix)) return false;
    rest.remove_prefix(prefix.size());
    return true;
  };
  // Whether the tensor belongs to a stack, whose prefix in the file may be missing or different.
  const bool stack = strip("transformer.") || strip("transformer_encoder.") || strip("encoder.") ||
                     rest.starts_with("layers.") || rest.starts_with("norm.");
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
    // Whether the file's tensor is smaller than the table's and must be extended.
    const bool grows = special_tokens_ > 0 &&
                       (info.name == kEmbedding || info.name == kHead || info.name == kHeadBias);
    const bool mirrors = both_signs_ && info.name.ends_with(kOmega);
    std::vector<int64_t> want = info.shape, shape = tensor.shape;
    if (grows) want[0] -= special_tokens_;
    if (mirrors) want[1] /= 2;
    if (info.name == kPositions && shape.size() == 3) {
      shape[1] = std::min(shape[1], want[1]);  // later positions are never used
    }
    if (shape != want) {
      throw InputError(path, ": tensor ", Quote(tensor.name), " is ", FormatShape(tensor.shape),
                       ", but the other tensors require ", FormatShape(want));
    }
    const size_t size =
        std::accumulate(want.begin(), want.end(), size_t{1},
                        [](size_t a, int64_t b) { return a * static_cast<size_t>(b); });
    std::vector<float>& own = own_[info.name];
    std::span<const float> values = Floats(tensor, size, own, path);
    if (grows) {
      const size_t numbers =
          size / static_cast<size_t>(want[0]) * static_cast<size_t>(special_tokens_);
      values = own = WithRowsInFront(values, numbers, info.name == kHeadBias ? kNever : 0.0f);
    }
    if (mirrors) values = own = WithNegatives(values, static_cast<size_t>(want[1]));
    tensors_[info.name] = values;
  }
}

ReferenceModel FromReference(std::span<const Tensor> tensors, const std::string& path,
                             const ReferenceChoices& choices) {
  const Named named = ByName(tensors, path);
  SpecReader reader(named, path, choices);
  ReferenceModel model;
  model.spec_ = reader.Read();
  model.special_tokens_ = reader.special_tokens();
  model.both_signs_ = reader.both_signs();
  model.Take(tensors, path);
  return model;
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
