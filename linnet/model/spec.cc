#include "linnet/model/spec.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "linnet/base/suggestion.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/model/stem.h"

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
  visit("patch", spec.input.patch.tokens);
  visit("patch_width", spec.input.patch.width);
  visit("patch_d_ff", spec.input.patch.d_ff);
  visit("patch_convolution", spec.input.patch.convolution);
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
  drop(
      {"feed_forward", "norm", "head_bias", "embedding_norm", "whole_pixels", "patch_convolution"});
  if (spec.text() && spec.text()->tokenizer.empty()) object.erase("tokenizer");
  if (spec.input.stem.channels == 0) {
    drop({"stem_channels", "stem_rows", "stem_columns", "stem_second_rows", "stem_second_columns"});
  }
  if (!spec.patches()) drop({"patch", "patch_width", "patch_d_ff"});
  if (!spec.ReadsFrames()) drop({"network", "convolution"});
  if (!spec.text()) drop({"tied"});
  if (spec.text() || spec.ReadsFrames()) drop({"mixtures", "positions", "pixel_above"});
  if (spec.image() && !spec.logistics()) drop({"mixtures"});
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

}  // namespace linnet
