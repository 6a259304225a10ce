#include "linnet/model/spec.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <type_traits>

#include "linnet/base/suggestion.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/model/pixels.h"
#include "linnet/model/stem.h"
#include "linnet/vocabulary.h"

namespace linnet {
namespace {

using nlohmann::json;

// Calls visit(name, field) for each field of a mixer.
template <typename Mixer, typename Visit>
void VisitMixer(Mixer& mixer, Visit visit) {
  visit("attention", mixer.kind);
  visit("feature_map", mixer.feature_map);
  visit("attention_eps", mixer.eps);
  visit("features", mixer.features);
  visit("similarity", mixer.similarity);
  visit("lsh_rounds", mixer.lsh_rounds);
  visit("lsh_buckets", mixer.lsh_buckets);
  visit("lsh_chunk", mixer.lsh_chunk);
  visit("lsh_variant", mixer.lsh_variant);
  visit("softmax_scale", mixer.scale);
  visit("window", mixer.window);
  visit("rotary", mixer.rotary);
  visit("rotary_base", mixer.rotary_base);
  visit("qkv_bias", mixer.qkv_bias);
  visit("out_bias", mixer.out_bias);
  visit("short_convolution", mixer.short_convolution);
  visit("output_gate", mixer.output_gate);
  visit("negative_eigenvalues", mixer.negative_eigenvalues);
  visit("gate_rank", mixer.gate_rank);
  visit("key_heads", mixer.key_heads);
  visit("decay_floor", mixer.decay_floor);
  visit("lower_bound", mixer.lower_bound);
  visit("householders", mixer.householders);
  visit("output_norm_eps", mixer.output_norm_eps);
  visit("decay_rank", mixer.decay_rank);
  visit("rate_rank", mixer.rate_rank);
  visit("value_rank", mixer.value_rank);
  visit("heads", mixer.heads);
  visit("query_dim", mixer.query_dim);
  visit("value_dim", mixer.value_dim);
}

// Fields of files that VisitFields() leaves out. The number of layers replaces StackSpec::repeat.
constexpr const char* kLayers = "layers";
constexpr const char* kPattern = "pattern";

// The only list of a spec's fields besides those of its mixers. All code that reads, writes or
// compares specs uses it.
template <typename Spec, typename Visit>
void VisitFields(Spec& spec, Visit visit) {
  visit("task", spec.task);
  visit("network", spec.network);
  visit("d_model", spec.stack.d_model);
  visit("d_ff", spec.stack.d_ff);
  visit("activation", spec.stack.activation);
  visit("feed_forward", spec.stack.feed_forward);
  visit("norm", spec.stack.norm);
  visit("norm_first", spec.stack.norm_first);
  visit("convolution", spec.stack.convolution);
  visit("final_norm", spec.stack.final_norm);
  visit("norm_eps", spec.stack.norm_eps);
  visit("whole_pixels", spec.input.whole_pixels);
  visit("vocabulary", spec.input.vocabulary);
  visit("max_length", spec.input.max_length);
  visit("value_embedding", spec.input.value_embedding);
  visit("positions", spec.input.positions);
  visit("pixel_above", spec.input.pixel_above);
  visit("stem_channels", spec.input.stem.channels);
  visit("stem_rows", spec.input.stem.rows);
  visit("stem_columns", spec.input.stem.columns);
  visit("stem_second_rows", spec.input.stem.second_rows);
  visit("stem_second_columns", spec.input.stem.second_columns);
  visit("embedding_norm", spec.input.norm);
  visit("tied", spec.head.tied);
  visit("head", spec.head.kind);
  visit("head_bias", spec.head.bias);
  visit("mixtures", spec.head.mixtures);
  visit("classes", spec.head.classes);
  if (auto* image = spec.image()) {
    visit("width", image->width);
    visit("height", image->height);
    visit("channels", image->channels);
  }
  if (auto* speech = spec.speech()) {
    visit("sample_rate", speech->sample_rate);
    visit("bands", speech->bands);
    visit("stack", speech->stack);
    visit("stride", speech->stride);
    visit("lookahead", speech->lookahead);
    visit("normalise", speech->normalization);  // spelled as in the first version's files
    visit("phones", speech->phones);
  }
  if (auto* text = spec.text()) {
    visit("unit", text->unit);
    visit("characters", text->characters);
    visit("tokenizer", text->tokenizer);
  }
}

template <class Field>
json Value(const Field& field) {
  if constexpr (std::is_enum_v<Field>) {
    return NameOf(field);
  } else {
    return field;
  }
}

template <class Field>
void Read(const json& value, const std::string& where, const char* name, Field& field) {
  bool good = false;
  if constexpr (std::is_same_v<Field, std::string> || std::is_enum_v<Field>) {
    good = value.is_string();
  } else if constexpr (std::is_same_v<Field, bool>) {
    good = value.is_boolean();
  } else if constexpr (std::is_same_v<Field, int>) {
    good = value.is_number_integer() && value >= INT32_MIN && value <= INT32_MAX;
  } else {
    good = value.is_number();
  }
  if (!good) throw InputError(where, ": '", name, "' cannot be ", Brief(value.dump()));
  if constexpr (std::is_enum_v<Field>) {
    try {
      field = ParseName<Field>(value.get<std::string>(), name);
    } catch (const Error& error) {
      throw InputError(where, ": ", error.what());
    }
  } else {
    field = value.template get<Field>();
  }
}

// A default spec whose ModelSpec::part has the type that the file describes. For the tasks of the
// first versions, the task's name determines the part, since their files have image fields for any
// task. For other tasks, the fields that are present determine it.
ModelSpec WithPart(const json& object) {
  const auto has = [&](const char* name) { return object.contains(name); };
  const std::string task = has("task") && object["task"].is_string() ? object["task"] : "images";
  ModelSpec spec;
  if (task == "copy") {
    spec.part = std::monostate();
  } else if (task == "text" || task == "couplet") {
    spec.part = TextSpec();
  } else if (task == "speech") {
    spec.part = SpeechSpec();
  } else if (task != "images") {
    spec.part = std::monostate();
    if (has("unit")) spec.part = TextSpec();
    if (has("bands")) spec.part = SpeechSpec();
    if (has("width")) spec.part = ImageSpec();
  }
  return spec;
}

json Object(const MixerSpec& mixer) {
  json object = json::object();
  VisitMixer(mixer, [&](const char* name, const auto& value) { object[name] = Value(value); });
  return object;
}

// All fields of the spec and of its first mixer.
json Object(const ModelSpec& spec) {
  json object = Object(spec.stack.mixer());
  VisitFields(spec, [&](const char* name, const auto& value) { object[name] = Value(value); });
  object[kLayers] = spec.stack.layers();
  return object;
}

// Fields of a mixer that files leave out if they have their default values, unless
// MixerInfo::options lists them.
constexpr const char* kOptions[] = {
    "features",   "similarity",  "lsh_rounds",        "lsh_buckets",
    "lsh_chunk",  "lsh_variant", "softmax_scale",     "window",
    "rotary",     "rotary_base", "qkv_bias",          "out_bias",
    "gate_rank",  "output_gate", "short_convolution", "negative_eigenvalues",
    "key_heads",  "decay_floor", "lower_bound",       "householders",
    "decay_rank", "rate_rank",   "value_rank",        "output_norm_eps"};

// Removes the fields of kOptions that have their default values and are not options of the mixer.
void DropUnused(const MixerSpec& mixer, json& object) {
  const json plain = Object(MixerSpec());
  const std::vector<std::string> own = FindMixer(mixer.kind).options;
  for (const char* name : kOptions) {
    const bool used = std::find(own.begin(), own.end(), name) != own.end();
    if (object[name] == plain[name] && !used) object.erase(name);
  }
}

// Removes fields with default values if earlier versions of linnet do not know them, or if the
// spec's task does not use them.
void DropUnused(const ModelSpec& spec, json& object) {
  const json plain = Object(ModelSpec());
  const auto drop = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (plain.contains(name) && object[name] == plain[name]) object.erase(name);
    }
  };
  // Earlier versions do not know these fields, but can read files without them.
  drop({"feed_forward", "norm", "head_bias", "embedding_norm", "whole_pixels"});
  if (spec.text() && spec.text()->tokenizer.empty()) object.erase("tokenizer");
  if (spec.input.stem.channels == 0) {
    drop({"stem_channels", "stem_rows", "stem_columns", "stem_second_rows", "stem_second_columns"});
  }
  if (!spec.ReadsFrames()) drop({"network", "convolution"});
  if (!spec.text()) drop({"tied"});
  if (spec.text() || spec.ReadsFrames()) drop({"mixtures", "positions", "pixel_above"});
}

// A visitor for VisitMixer() and VisitFields() that moves each field from the object to the spec.
auto Reader(json& object, const std::string& where) {
  return [&object, where](const char* name, auto& field) {
    const auto found = object.find(name);
    if (found == object.end()) return;
    Read(*found, where, name, field);
    object.erase(found);
  };
}

// Reads the layers: one mixer for all of them, or a repeating pattern of mixers.
void ReadStack(json& object, const std::string& where, StackSpec& stack) {
  VisitMixer(stack.pattern[0], Reader(object, where));
  int layers = stack.layers();
  Reader(object, where)(kLayers, layers);
  const auto pattern = object.find(kPattern);
  if (pattern == object.end()) {
    stack.repeat = layers;
    return;
  }
  if (!pattern->is_array() || pattern->empty() || pattern->size() > 1000) {
    throw InputError(where, ": '", kPattern, "' must be a list of 1 to 1000 layers");
  }
  // Fields that a layer of the pattern does not name come from the enclosing object. Exception:
  // kOptions take their defaults.
  json common = Object(stack.pattern[0]);
  for (const char* name : kOptions) common.erase(name);
  stack.pattern.assign(pattern->size(), MixerSpec());
  for (size_t i = 0; i < pattern->size(); ++i) {
    json layer = common;
    if (!(*pattern)[i].is_object())
      throw InputError(where, ": '", kPattern, "' must hold JSON objects only");
    layer.update((*pattern)[i]);
    VisitMixer(stack.pattern[i], Reader(layer, where));
    if (!layer.empty()) {
      throw InputError(where, ": a layer of the pattern has the unknown field ",
                       Quote(layer.begin().key()));
    }
  }
  const int length = static_cast<int>(stack.pattern.size());
  if (layers < 1 || layers % length != 0) {
    throw InputError(where, ": layers is ", layers,
                     "; it must be a multiple of the pattern's length, ", length);
  }
  stack.repeat = layers / length;
  object.erase(kPattern);
}

std::vector<std::string> NamesIn(const json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

// Validates a spec; messages begin with `where`.
class Validator {
 public:
  Validator(const ModelSpec& spec, const std::string& where) : spec_(spec), where_(where) {}

  void Run() const {
    Task();
    Mixers();
    Stack();
    CarriedValues();
    Input();
    Stem(spec_.input.stem);
    Head();
    if (const ImageSpec* image = spec_.image()) Image(*image);
    if (const TextSpec* text = spec_.text()) Text(*text);
    if (const SpeechSpec* speech = spec_.speech()) Speech(*speech);
  }

 private:
  template <class... Message>
  void Require(bool good, const Message&... message) const {
    if (!good) throw InputError(where_, ": ", message...);
  }
  void InRange(const char* name, int value, int low, int high) const {
    Require(value >= low && value <= high, name, " is ", value, "; it must be between ", low,
            " and ", high);
  }

  // Task names are displayed and compared, so they must be plain words.
  void Task() const {
    constexpr size_t kLongest = 64;
    const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
    Require(!spec_.task.empty() && spec_.task.size() <= kLongest &&
                std::all_of(spec_.task.begin(), spec_.task.end(), plain),
            "task ", Quote(spec_.task), ": a name must consist of at most ", kLongest,
            " letters, digits, - and _");
  }

  void Mixers() const {
    const bool frames = spec_.ReadsFrames();
    for (const MixerSpec& mixer : spec_.stack.pattern) {
      InRange("query_dim", mixer.query_dim, 1, 4096);
      std::string fit;  // names of the kinds that the task can use
      bool known = false;
      for (const MixerInfo& kind : linnet::Mixers()) {
        known = known || kind.name == mixer.kind;
        if (kind.causal || frames) fit += (fit.empty() ? "" : ", ") + kind.name;
      }
      Require(known, "unknown attention ", Quote(mixer.kind), "; choose one of ", fit);
      Validate(mixer, mixer.query_dim, where_);
      Require(frames || FindMixer(mixer.kind).causal, "task ", Quote(spec_.task),
              " needs causal attention, which '", mixer.kind, "' is not; choose causal-linear");
      Require(!spec_.encoder_decoder() || !FindMixer(mixer.kind).cross.empty(),
              "an encoder-decoder needs cross attention, which ", Quote(mixer.kind),
              " does not support; choose causal-linear or full");
      InRange("heads", mixer.heads, 1, 1000);
      InRange("value_dim", mixer.value_dim, 1, 4096);
    }
  }

  // If a layer reads an earlier layer's values, the earlier layer must exist and have the same
  // sizes.
  void CarriedValues() const {
    const MixerSpec* from = nullptr;
    for (size_t i = 0; i < static_cast<size_t>(spec_.stack.layers()); ++i) {
      const MixerSpec& mixer = spec_.stack.mixer(i);
      for (const ProjectionInfo& projection : MixerProjections(mixer)) {
        if (projection.carries) from = &mixer;
        if (!projection.carried) continue;
        Require(from != nullptr, "layer ", i, " has value_rank ", mixer.value_rank,
                ", but no earlier layer has values to read; the first layer of this kind must "
                "have value_rank 0");
        Require(from->heads == mixer.heads && from->value_dim == mixer.value_dim, "layer ", i,
                " reads the values of a layer with other heads or another value_dim");
      }
    }
  }

  void Stack() const {
    const StackSpec& stack = spec_.stack;
    Require(!spec_.lstm() || spec_.ReadsFrames(), "the network lstm is for speech");
    Require(!spec_.lstm() || spec_.head.bias, "the network lstm needs head_bias");
    Require(!spec_.encoder_decoder() || spec_.text() != nullptr,
            "the network encoder-decoder is for couplets");
    Require(!stack.pattern.empty() && stack.pattern.size() <= 1000,
            "the pattern must have 1 to 1000 layers");
    // layers() of a huge `repeat` would overflow.
    InRange("layers", stack.repeat > 1000 ? stack.repeat : stack.layers(), 1, 1000);
    InRange("d_model", stack.d_model, 2, 65536);
    InRange("d_ff", stack.d_ff, 1, 1 << 20);
    InRange("convolution", stack.convolution, 0, 4096);
    Require(
        stack.feed_forward != FeedForwardKind::kNone || spec_.network == NetworkKind::kTransformer,
        "layers without feed-forward blocks are for transformers");
    Require(stack.feed_forward != FeedForwardKind::kShifted ||
                spec_.network == NetworkKind::kTransformer,
            "shifted feed-forward blocks are for transformers");
    Require(stack.convolution == 0 || spec_.network == NetworkKind::kTransformer,
            "a convolution is for transformers; set convolution to 0");
    Require(stack.convolution % 2 == 1 || stack.convolution == 0 || spec_.Causal(),
            "convolution is ", stack.convolution,
            "; it must be odd, because the network is not causal");
    Require(stack.final_norm || !stack.norm_first, "norm_first needs final_norm");
    Require(stack.norm_eps > 0 && stack.norm_eps < 1, "norm_eps is ", stack.norm_eps,
            "; it must lie in (0, 1)");
  }

  void Input() const {
    const InputSpec& input = spec_.input;
    const int d_model = spec_.stack.d_model;
    if (input.whole_pixels) {
      Require(spec_.image() && spec_.image()->channels == 3,
              "whole_pixels is for images of three colors");
      Require(input.vocabulary == kBeginPixel + 1, "vocabulary is ", input.vocabulary,
              "; for whole_pixels it is ", kBeginPixel + 1);
      Require(input.positions == Positions::kSequence, "whole_pixels needs sequence positions");
    } else {
      InRange("vocabulary", input.vocabulary, 2, 1 << 20);
    }
    InRange("max_length", input.max_length, 1, 1 << 24);
    InRange("value_embedding", input.value_embedding, 1, d_model);
    Require(
        input.positions != Positions::kAdded || (spec_.text() && input.value_embedding == d_model),
        "added positions are for text, with value_embedding = d_model");
    Require(!input.norm || (spec_.network == NetworkKind::kTransformer && !spec_.ReadsFrames()),
            "embedding_norm is for transformers that read tokens");
    Require(spec_.image() || (input.positions != Positions::kGrid && !input.pixel_above),
            "grid positions and pixel_above are for images");
    Require(spec_.PositionDims() % 2 == 0, "d_model - value_embedding is ",
            d_model - input.value_embedding, "; positions need an even number of dimensions");
    Require(int64_t{input.max_length} * spec_.PositionDims() <= int64_t{1} << 30,
            "max_length x position dimensions is more than 2^30");
  }

  void Stem(const StemSpec& stem) const {
    constexpr int kMostRows = 16, kMostColumns = 63;
    InRange("stem_channels", stem.channels, 0, 4096);
    Require(stem.channels == 0 || spec_.image() != nullptr,
            "a stem is for images; set stem_channels to 0");
    InRange("stem_rows", stem.rows, 1, kMostRows);
    InRange("stem_columns", stem.columns, 3, kMostColumns);
    InRange("stem_second_rows", stem.second_rows, 1, kMostRows);
    InRange("stem_second_columns", stem.second_columns, 1, kMostColumns);
    Require(stem.columns % 2 == 1 && stem.second_columns % 2 == 1, "stem_columns is ", stem.columns,
            " and stem_second_columns ", stem.second_columns, "; both must be odd");
  }

  void Head() const {
    const HeadSpec& head = spec_.head;
    const int vocabulary = spec_.input.vocabulary;
    Require(!head.tied || (spec_.text() && !spec_.logistics() && head.classes == vocabulary &&
                           spec_.input.value_embedding == spec_.stack.d_model),
            "tied weights need a text's categorical head, with classes = vocabulary and "
            "value_embedding = d_model");
    if (spec_.logistics()) {
      InRange("mixtures", head.mixtures, 1, 1000);
      Require(vocabulary == 256 || spec_.input.whole_pixels,
              "the logistics head predicts bytes, but vocabulary is ", vocabulary);
    } else {
      InRange("classes", head.classes, 2, 1 << 20);
      Require(spec_.ReadsFrames() || head.classes == vocabulary, "task ", Quote(spec_.task),
              " needs the categorical head with classes = vocabulary");
    }
    Require(spec_.logistics() == (spec_.image() != nullptr), "task ", Quote(spec_.task),
            " needs the ", spec_.image() ? "logistics" : "categorical", " head");
  }

  void Image(const ImageSpec& image) const {
    InRange("width", image.width, 1, 1 << 16);
    InRange("height", image.height, 1, 1 << 16);
    Require(image.channels == 1 || image.channels == 3, "channels is ", image.channels,
            "; it must be 1 or 3");
    const int64_t pixels = int64_t{image.width} * image.height, bytes = pixels * image.channels;
    const int64_t length = spec_.input.max_length;
    if (spec_.input.whole_pixels) {
      Require(pixels == length, "width x height is ", pixels,
              ", which must be max_length = ", length);
    } else {
      Require(bytes == length + 1, "width x height x channels is ", bytes,
              ", which must be max_length + 1 = ", length + 1);
    }
    const int rest = spec_.stack.d_model - spec_.input.value_embedding;
    Require(spec_.input.positions != Positions::kGrid || rest % 8 == 0,
            "d_model - value_embedding is ", rest,
            "; grid positions need a multiple of 8 dimensions");
  }

  void Text(const TextSpec& text) const {
    size_t tokens = 0;
    try {
      tokens = Vocabulary(text).size();
    } catch (const Error& error) {
      throw InputError(where_, ": ", error.what());
    }
    if (text.unit == TextUnit::kToken) {
      Require(!spec_.encoder_decoder(),
              "an encoder-decoder reads bytes or characters, not byte-pair tokens");
      // The vocabulary may be larger: other programs pad the embedding to a round number of rows.
      Require(spec_.input.vocabulary >= static_cast<int>(tokens), "vocabulary is ",
              spec_.input.vocabulary, "; the tokenizer has ", tokens, " tokens");
      return;
    }
    Require(spec_.input.vocabulary == static_cast<int>(tokens),
            "text needs the categorical head, with classes and vocabulary equal to the number of "
            "tokens (",
            tokens, ")");
  }

  void Speech(const SpeechSpec& speech) const {
    InRange("sample_rate", speech.sample_rate, 4000, 1'000'000);
    InRange("bands", speech.bands, 1, 1024);
    InRange("stack", speech.stack, 1, 1024);
    InRange("stride", speech.stride, 1, speech.stack);
    InRange("lookahead", speech.lookahead, 0, speech.stack - speech.stride);
    const std::vector<std::string> phones = Words(speech.phones);
    Require(!phones.empty() && phones.size() <= 4096, "phones must list 1 to 4096 names");
    Require(std::set<std::string>(phones.begin(), phones.end()).size() == phones.size(),
            "phones lists a name twice");
    constexpr size_t kLongest = 64;  // bytes
    for (const std::string& phone : phones) {
      Require(phone.size() <= kLongest && IsPrintable(phone), "the phone ",
              Quote(phone.substr(0, kLongest)), " is not printable; a name is UTF-8 of at most ",
              kLongest, " bytes");
    }
    Require(spec_.head.classes == static_cast<int>(phones.size()) + 1, "classes is ",
            spec_.head.classes, "; it must be 1 more than the number of phones (", phones.size(),
            ")");
  }

  const ModelSpec& spec_;
  const std::string& where_;
};

}  // namespace

std::vector<std::string> Words(const std::string& text) {
  constexpr const char* kBlanks = " \t\n\v\f\r";
  std::vector<std::string> words;
  for (size_t at = text.find_first_not_of(kBlanks); at != std::string::npos;) {
    const size_t end = text.find_first_of(kBlanks, at);
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kBlanks, end);
  }
  return words;
}

bool SameMixer(const MixerSpec& a, const MixerSpec& b) { return Object(a) == Object(b); }

bool operator==(const ModelSpec& a, const ModelSpec& b) { return ToJson(a) == ToJson(b); }

std::optional<SpecDifference> FirstDifference(const ModelSpec& a, const ModelSpec& b) {
  // Compares the fields that files hold, and shows the values of all fields, defaults included.
  const json in_a = json::parse(ToJson(a)), in_b = json::parse(ToJson(b));
  const json all_a = Object(a), all_b = Object(b);
  std::optional<SpecDifference> first;
  const auto compare = [&](const char* name, const auto&) {
    if (first || in_a.value(name, json()) == in_b.value(name, json())) return;
    const auto shown = [&](const json& object) {
      return object.contains(name) ? Brief(object[name].dump()) : std::string("none");
    };
    first = {.field = name, .a = shown(all_a), .b = shown(all_b)};
  };
  compare("task", 0);
  compare("network", 0);
  VisitMixer(a.stack.mixer(), compare);
  compare(kPattern, 0);
  compare(kLayers, 0);
  VisitFields(a, compare);
  VisitFields(b, compare);
  return first;
}

bool ModelSpec::Causal() const {
  if (!ReadsFrames()) return true;
  if (lstm()) return false;
  return std::all_of(stack.pattern.begin(), stack.pattern.end(),
                     [](const MixerSpec& mixer) { return FindMixer(mixer).always_causal; });
}

int ModelSpec::Reach() const {
  const int above = input.pixel_above ? RowTokens() - 1 : 0;
  const int stem = input.stem.channels > 0 ? StemBytes(*this).Reach() : 0;
  return std::max(above, stem);
}

void Validate(const ModelSpec& spec, const std::string& where) { Validator(spec, where).Run(); }

std::string ToJson(const ModelSpec& spec, int indent) {
  json object = Object(spec);
  DropUnused(spec.stack.mixer(), object);
  DropUnused(spec, object);
  if (spec.stack.pattern.size() > 1) {
    for (const MixerSpec& mixer : spec.stack.pattern) {
      json layer = Object(mixer);
      DropUnused(mixer, layer);
      object[kPattern].push_back(std::move(layer));
    }
  }
  return object.dump(indent);
}

ModelSpec FromJson(const std::string& text, const std::string& where) {
  std::string fault;
  json object = ParseJson(text, /*max_depth=*/4, fault);
  if (!fault.empty()) throw InputError(where, ": the model description ", fault);
  if (!object.is_object()) throw InputError(where, ": the model description is not a JSON object");
  ModelSpec spec = WithPart(object);
  VisitFields(spec, Reader(object, where));
  ReadStack(object, where, spec.stack);
  if (!spec.image()) {  // files of the first versions have these for any task
    for (const char* name : {"width", "height", "channels"}) object.erase(name);
  }
  if (!object.empty()) {
    const std::string& name = object.begin().key();
    throw InputError(where, ": unknown field ", Quote(name),
                     Suggestion(name, NamesIn(Object(spec))));
  }
  Validate(spec, where);
  return spec;
}

namespace {

// Builds the tensor table of a spec.
class Table {
 public:
  explicit Table(const ModelSpec& spec) : spec_(spec), d_(spec.stack.d_model) {}

  std::vector<TensorInfo> Make() {
    const SpeechSpec* speech = spec_.speech();
    if (speech && speech->normalization == BandNorm::kCorpus) {
      Add("input_norm.mean", {speech->bands});
      Add("input_norm.deviation", {speech->bands});
    }
    if (spec_.lstm()) {
      Lstm(speech->Inputs());
      return std::move(table_);
    }
    const InputSpec& input = spec_.input;
    if (speech) {
      Linear("input_projection", input.value_embedding, speech->Inputs());
    } else if (!spec_.head.tied) {
      Add("value_embedding.weight", {EmbeddingRows(spec_), input.value_embedding});
    }
    if (spec_.PositionDims() > 0) {
      Add("pos_embedding.pe", {1, input.max_length, spec_.PositionDims()});
    }
    if (input.pixel_above) {
      Add("above_embedding.weight", {AboveRows(spec_), input.value_embedding});
    }
    if (input.stem.channels > 0) Stem(spec_.PixelTokens());
    if (input.norm) Norm("embedding_norm");
    if (spec_.encoder_decoder()) {
      Stack("encoder", /*decoder=*/false);
      Stack("decoder", /*decoder=*/true);
    } else {
      Stack("transformer", /*decoder=*/false);
    }
    Linear("predictor", spec_.OutputSize(), d_, spec_.head.bias);
    if (spec_.image() && !input.whole_pixels) Add("first_value.probability", {input.vocabulary});
    return std::move(table_);
  }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape) {
    table_.push_back({name, std::move(shape)});
  }
  void Linear(const std::string& name, int64_t out, int64_t in, bool bias = true) {
    Add(name + ".weight", {out, in});
    if (bias) Add(name + ".bias", {out});
  }
  void Norm(const std::string& name) {
    Add(name + ".weight", {d_});
    if (spec_.stack.norm == NormKind::kLayer) Add(name + ".bias", {d_});
  }

  void Stem(int colors) {
    for (int k = 0; k < colors; ++k) {
      const int channels = spec_.input.stem.channels;
      Linear(StemFeaturesName(k), channels, StemInputs(spec_, k));
      Linear(StemOutputName(k), d_, int64_t{channels} * StemFeatures(spec_).Inputs(k));
    }
  }

  void Lstm(int64_t inputs) {
    for (int i = 0; i < spec_.stack.layers(); ++i) {
      for (const char* direction : {"", "_reverse"}) {
        const auto add = [&](const char* name, std::vector<int64_t> shape) {
          Add(StrCat("lstm.", name, i, direction), std::move(shape));
        };
        add("weight_ih_l", {4 * d_, i == 0 ? inputs : 2 * d_});
        add("weight_hh_l", {4 * d_, d_});
        add("bias_ih_l", {4 * d_});
        add("bias_hh_l", {4 * d_});
      }
    }
    Linear("predictor", spec_.OutputSize(), 2 * d_);
  }

  void Stack(const std::string& name, bool decoder) {
    const StackSpec& stack = spec_.stack;
    const bool encoder = spec_.encoder_decoder() && !decoder;
    for (int i = 0; i < stack.layers(); ++i) {
      const std::string layer = StrCat(name, ".layers.", i, ".");
      if (stack.convolution > 0) {
        Add(layer + "convolution.weight", {stack.convolution, d_});
        Add(layer + "convolution.bias", {d_});
        Norm(layer + "convolution_norm");
      }
      const MixerSpec& mixer = stack.mixer(static_cast<size_t>(i));
      MixerTensors(encoder ? CrossMixer(mixer) : mixer, d_,
                   layer + (decoder ? "self_attention" : "attention"), table_);
      if (decoder) MixerTensors(CrossMixer(mixer), d_, layer + "cross_attention", table_);
      const bool feeds = stack.feed_forward != FeedForwardKind::kNone;
      const bool bias = stack.feed_forward == FeedForwardKind::kMlp;
      if (stack.feed_forward == FeedForwardKind::kGated) {
        Linear(layer + "gate", stack.d_ff, d_, /*bias=*/false);
      }
      if (stack.feed_forward == FeedForwardKind::kShifted) Add(layer + "shift", {d_});
      if (feeds) Linear(layer + "linear1", stack.d_ff, d_, bias);
      if (feeds) Linear(layer + "linear2", d_, stack.d_ff, bias);
      Norm(layer + "norm1");
      if (feeds) Norm(layer + "norm2");
      if (decoder) Norm(layer + "norm3");
    }
    if (stack.final_norm) Norm(name + ".norm");
  }

  const ModelSpec& spec_;
  const int64_t d_;  // d_model
  std::vector<TensorInfo> table_;
};

}  // namespace

std::vector<TensorInfo> TensorTable(const ModelSpec& spec) { return Table(spec).Make(); }

bool IsBuffer(const std::string& name) {
  constexpr std::string_view kOmega = ".feature_map.omega";
  return name == "pos_embedding.pe" || name == "first_value.probability" ||
         name.starts_with("input_norm.") ||
         (name.size() > kOmega.size() &&
          name.compare(name.size() - kOmega.size(), kOmega.size(), kOmega) == 0);
}

int64_t ParameterCount(const ModelSpec& spec) {
  int64_t count = 0;
  for (const TensorInfo& tensor : TensorTable(spec)) {
    if (IsBuffer(tensor.name)) continue;
    int64_t size = 1;
    for (int64_t n : tensor.shape) size *= n;
    count += size;
  }
  return count;
}

namespace {

// Sinusoidal embedding of position t in `dim` dimensions.
void SineRow(int64_t t, int dim, float* to) {
  for (int i = 0; i < dim; i += 2) {
    const double frequency = std::exp(-std::log(10000.0) * i / dim);
    to[i] = static_cast<float>(std::sin(static_cast<double>(t) * frequency));
    if (i + 1 < dim) to[i + 1] = static_cast<float>(std::cos(static_cast<double>(t) * frequency));
  }
}

}  // namespace

void PositionRow(const ModelSpec& spec, int64_t t, float* to) {
  const int dim = spec.PositionDims();
  if (spec.input.positions != Positions::kGrid) return SineRow(t, dim, to);
  const int half = dim / 2, quarter = dim / 4, row_bytes = spec.image()->RowBytes();
  SineRow(t, half, to);
  SineRow((t + 1) / row_bytes, quarter, to + half);
  SineRow((t + 1) % row_bytes, quarter, to + half + quarter);
}

std::vector<float> PositionTable(const ModelSpec& spec) {
  const int dim = spec.PositionDims();
  std::vector<float> table(static_cast<size_t>(spec.input.max_length) * static_cast<size_t>(dim));
  for (int t = 0; t < spec.input.max_length; ++t) {
    PositionRow(spec, t, table.data() + static_cast<ptrdiff_t>(t) * dim);
  }
  return table;
}

std::vector<float> PositionTable(int length, int dim) {
  std::vector<float> table(static_cast<size_t>(length) * static_cast<size_t>(dim));
  for (int t = 0; t < length; ++t) SineRow(t, dim, table.data() + static_cast<ptrdiff_t>(t) * dim);
  return table;
}

}  // namespace linnet
