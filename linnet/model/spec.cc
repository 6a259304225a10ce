#include "linnet/model/spec.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "linnet/base/error.h"
#include "linnet/base/utf8.h"
#include "linnet/io/json.h"
#include "linnet/model/vocabulary.h"

namespace linnet {
namespace {

using nlohmann::json;

// The one list of a spec's fields: everything that reads, writes or compares specs walks it.
template <typename Spec, typename Visit>
void VisitFields(Spec& spec, Visit visit) {
  visit("task", spec.task);
  visit("network", spec.network);
  visit("attention", spec.attention.kind);
  visit("feature_map", spec.attention.feature_map);
  visit("attention_eps", spec.attention.eps);
  visit("features", spec.attention.features);
  visit("similarity", spec.attention.similarity);
  visit("lsh_rounds", spec.attention.lsh_rounds);
  visit("lsh_buckets", spec.attention.lsh_buckets);
  visit("lsh_chunk", spec.attention.lsh_chunk);
  visit("lsh_variant", spec.attention.lsh_variant);
  visit("layers", spec.layers);
  visit("heads", spec.heads);
  visit("query_dim", spec.query_dim);
  visit("value_dim", spec.value_dim);
  visit("d_model", spec.d_model);
  visit("d_ff", spec.d_ff);
  visit("activation", spec.activation);
  visit("norm_first", spec.norm_first);
  visit("convolution", spec.convolution);
  visit("final_norm", spec.final_norm);
  visit("norm_eps", spec.norm_eps);
  visit("vocabulary", spec.vocabulary);
  visit("max_length", spec.max_length);
  visit("value_embedding", spec.value_embedding);
  visit("tied", spec.tied);
  visit("head", spec.head);
  visit("mixtures", spec.mixtures);
  visit("classes", spec.classes);
  visit("width", spec.width);
  visit("height", spec.height);
  visit("channels", spec.channels);
  visit("positions", spec.positions);
  visit("pixel_above", spec.pixel_above);
  visit("sample_rate", spec.speech.sample_rate);
  visit("bands", spec.speech.bands);
  visit("stack", spec.speech.stack);
  visit("stride", spec.speech.stride);
  visit("lookahead", spec.speech.lookahead);
  visit("normalise", spec.speech.normalise);
  visit("phones", spec.speech.phones);
  visit("unit", spec.text.unit);
  visit("characters", spec.text.characters);
}

json Object(const ModelSpec& spec) {
  json object = json::object();
  VisitFields(spec, [&](const char* name, const auto& value) { object[name] = value; });
  return object;
}

// What only some models have goes into a file where it says something.
void DropUnused(json& object) {
  const json plain = Object(ModelSpec());
  const auto drop = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (object[name] == plain[name]) object.erase(name);
    }
  };
  const bool text = object["task"] == "text" || object["task"] == "couplet";
  if (object["task"] != "speech") {
    drop({"network", "sample_rate", "bands", "stack", "stride", "lookahead", "normalise", "phones",
          "convolution"});
  }
  if (!text) drop({"tied", "unit", "characters"});
  if (text || object["task"] == "speech") {
    drop({"width", "height", "channels", "mixtures", "positions", "pixel_above"});
  }
  for (const char* name :
       {"features", "similarity", "lsh_rounds", "lsh_buckets", "lsh_chunk", "lsh_variant"}) {
    const bool lsh = std::string_view(name).substr(0, 4) == "lsh_";
    if (object[name] == plain[name] && !(lsh && object["attention"] == "reformer")) {
      object.erase(name);
    }
  }
}

std::string Known(const json& object) {
  std::string text;
  for (const auto& [name, value] : object.items()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

template <class Require, class InRange>
void Validate(const SpeechSpec& speech, const Require& require, const InRange& in_range) {
  in_range("sample_rate", speech.sample_rate, 4000, 1'000'000);
  in_range("bands", speech.bands, 1, 1024);
  in_range("stack", speech.stack, 1, 1024);
  in_range("stride", speech.stride, 1, speech.stack);
  in_range("lookahead", speech.lookahead, 0, speech.stack - speech.stride);
  require(speech.normalise == "utterance" || speech.normalise == "corpus", "unknown normalise ",
          Quote(speech.normalise), "; choose utterance or corpus");
  const std::vector<std::string> phones = Words(speech.phones);
  require(phones.size() >= 1 && phones.size() <= 4096, "phones must name 1 to 4096 of them");
  require(std::set<std::string>(phones.begin(), phones.end()).size() == phones.size(),
          "phones names one twice");
  constexpr size_t kLongest = 64;  // bytes
  for (const std::string& phone : phones) {
    require(phone.size() <= kLongest && IsPrintable(phone), "the phone ",
            Quote(phone.substr(0, kLongest)), " is none that can be shown; a name has ", kLongest,
            " bytes at most, in UTF-8");
  }
}

}  // namespace

std::vector<std::string> Words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

bool operator==(const ModelSpec& a, const ModelSpec& b) { return Object(a) == Object(b); }

std::optional<SpecDifference> FirstDifference(const ModelSpec& a, const ModelSpec& b) {
  const json in_a = Object(a), in_b = Object(b);
  std::optional<SpecDifference> first;
  VisitFields(a, [&](const char* name, const auto&) {
    if (first || in_a[name] == in_b[name]) return;
    first = {.field = name, .a = Brief(in_a[name].dump()), .b = Brief(in_b[name].dump())};
  });
  return first;
}

void Validate(const ModelSpec& spec, const std::string& where) {
  const auto require = [&](bool good, const auto&... message) {
    if (!good) throw InputError(where, ": ", message...);
  };
  const auto in_range = [&](const char* name, int value, int low, int high) {
    require(value >= low && value <= high, name, " is ", value, "; it must be between ", low,
            " and ", high);
  };
  const bool speech = spec.task == "speech", text = spec.task == "text" || spec.task == "couplet";
  require(speech || text || spec.task == "images" || spec.task == "copy", "unknown task ",
          Quote(spec.task), "; choose images, copy, text, couplet or speech");
  const bool pair = spec.network == "encoder-decoder";
  require(spec.network == "transformer" || spec.network == "lstm" || pair, "unknown network ",
          Quote(spec.network), "; choose transformer, lstm or encoder-decoder");
  require(spec.network != "lstm" || speech, "the network lstm is for speech");
  require(!pair || spec.task == "couplet", "the network encoder-decoder is for couplets");
  in_range("query_dim", spec.query_dim, 1, 4096);
  std::string fit;
  bool known = false;
  for (const AttentionKindInfo& kind : AttentionKinds()) {
    known = known || kind.name == spec.attention.kind;
    if (kind.causal || speech) fit += (fit.empty() ? "" : ", ") + kind.name;
  }
  require(known, "unknown attention ", Quote(spec.attention.kind), "; choose one of ", fit);
  Validate(spec.attention, spec.query_dim, where);
  require(speech || FindAttentionKind(spec.attention.kind).causal, "task '", spec.task,
          "' predicts the future, which '", spec.attention.kind,
          "' attention sees; choose causal-linear");
  require(!pair || spec.attention.kind == "causal-linear" || spec.attention.kind == "full",
          "an encoder-decoder's attention is causal-linear or full; got ",
          Quote(spec.attention.kind));
  in_range("layers", spec.layers, 1, 1000);
  in_range("heads", spec.heads, 1, 1000);
  in_range("value_dim", spec.value_dim, 1, 4096);
  in_range("d_model", spec.d_model, 2, 65536);
  in_range("d_ff", spec.d_ff, 1, 1 << 20);
  require(spec.activation == "relu" || spec.activation == "gelu", "unknown activation ",
          Quote(spec.activation), "; choose relu or gelu");
  in_range("convolution", spec.convolution, 0, 4096);
  require(spec.convolution == 0 || (speech && spec.network == "transformer"),
          "a convolution is for transformers of speech; give convolution 0");
  require(spec.convolution % 2 == 1 || spec.convolution == 0 || spec.Causal(), "convolution is ",
          spec.convolution, "; it must be odd, since the network sees both ways");
  require(spec.final_norm || !spec.norm_first, "norm_first needs final_norm");
  require(spec.norm_eps > 0 && spec.norm_eps < 1, "norm_eps is ", spec.norm_eps,
          "; it must lie in (0, 1)");
  in_range("vocabulary", spec.vocabulary, 2, 1 << 20);
  in_range("max_length", spec.max_length, 1, 1 << 24);
  in_range("value_embedding", spec.value_embedding, 1, spec.d_model);
  require(spec.positions == "sequence" || spec.positions == "grid" || spec.positions == "added",
          "unknown positions ", Quote(spec.positions), "; choose sequence, grid or added");
  require(spec.positions != "added" || (text && spec.value_embedding == spec.d_model),
          "added positions are for text, with value_embedding = d_model");
  require(spec.PositionDims() % 2 == 0, "d_model - value_embedding is ",
          spec.d_model - spec.value_embedding, "; positions need an even number of dimensions");
  require(!spec.tied || (text && spec.head == "categorical" &&
                         spec.value_embedding == spec.d_model && spec.classes == spec.vocabulary),
          "tied weights need a text's categorical head, with classes = vocabulary and "
          "value_embedding = "
          "d_model");
  require(int64_t{spec.max_length} * spec.PositionDims() <= int64_t{1} << 30,
          "max_length x position dimensions is over 2^30");
  require(spec.head == "logistics" || spec.head == "categorical", "unknown head ", Quote(spec.head),
          "; choose logistics or categorical");
  if (spec.head == "logistics") {
    in_range("mixtures", spec.mixtures, 1, 1000);
    require(spec.vocabulary == 256, "the logistics head predicts bytes, but vocabulary is ",
            spec.vocabulary);
  } else {
    in_range("classes", spec.classes, 2, 1 << 20);
  }
  if (spec.task == "images") {
    in_range("width", spec.width, 1, 1 << 16);
    in_range("height", spec.height, 1, 1 << 16);
    require(spec.channels == 1 || spec.channels == 3, "channels is ", spec.channels,
            "; it must be 1 or 3");
    require(spec.head == "logistics", "images need the logistics head");
    require(int64_t{spec.width} * spec.height * spec.channels == int64_t{spec.max_length} + 1,
            "width x height x channels is ", int64_t{spec.width} * spec.height * spec.channels,
            ", which must be max_length + 1 = ", int64_t{spec.max_length} + 1);
    require(spec.positions == "sequence" || (spec.d_model - spec.value_embedding) % 8 == 0,
            "d_model - value_embedding is ", spec.d_model - spec.value_embedding,
            "; grid positions need a multiple of 8 dimensions");
  } else if (text) {
    size_t symbols = 0;
    try {
      symbols = Vocabulary(spec.text.unit, spec.text.characters).size();
    } catch (const Error& error) {
      throw InputError(where, ": ", error.what());
    }
    require(spec.vocabulary == static_cast<int>(symbols) && spec.head == "categorical" &&
                spec.classes == spec.vocabulary,
            "text needs the categorical head, with classes and vocabulary as many as there are "
            "symbols (",
            symbols, ")");
    require(spec.positions != "grid" && !spec.pixel_above,
            "grid positions and pixel_above are for images");
  } else if (speech) {
    Validate(spec.speech, require, in_range);
    require(spec.head == "categorical", "speech needs the categorical head");
    require(spec.classes == static_cast<int>(Words(spec.speech.phones).size()) + 1, "classes is ",
            spec.classes, ", which must be 1 more than there are phones (",
            Words(spec.speech.phones).size(), ")");
    require(spec.positions == "sequence" && !spec.pixel_above,
            "grid positions and pixel_above are for images");
  } else {
    require(spec.head == "categorical" && spec.classes == spec.vocabulary,
            "the copy task needs the categorical head with classes = vocabulary");
    require(spec.positions == "sequence" && !spec.pixel_above,
            "grid positions and pixel_above are for images");
  }
}

std::string ToJson(const ModelSpec& spec, int indent) {
  json object = Object(spec);
  DropUnused(object);
  return object.dump(indent);
}

ModelSpec FromJson(const std::string& text, const std::string& where) {
  std::string fault;
  json object = ParseJson(text, /*max_depth=*/4, fault);
  if (!fault.empty()) throw InputError(where, ": the model description ", fault);
  if (!object.is_object()) throw InputError(where, ": the model description is not a JSON object");
  ModelSpec spec;
  VisitFields(spec, [&](const char* name, auto& field) {
    const auto found = object.find(name);
    if (found == object.end()) return;
    using Field = std::decay_t<decltype(field)>;
    bool good = false;
    if constexpr (std::is_same_v<Field, std::string>) {
      good = found->is_string();
    } else if constexpr (std::is_same_v<Field, bool>) {
      good = found->is_boolean();
    } else if constexpr (std::is_same_v<Field, int>) {
      good = found->is_number_integer() && *found >= INT32_MIN && *found <= INT32_MAX;
    } else {
      good = found->is_number();
    }
    if (!good) throw InputError(where, ": '", name, "' cannot be ", Brief(found->dump()));
    field = found->template get<Field>();
    object.erase(found);
  });
  if (!object.empty()) {
    throw InputError(where, ": this version knows no ", Quote(object.begin().key()), "; it knows ",
                     Known(Object(spec)));
  }
  Validate(spec, where);
  return spec;
}

std::vector<TensorInfo> TensorTable(const ModelSpec& spec) {
  std::vector<TensorInfo> table;
  const int64_t d = spec.d_model, f = spec.d_ff;
  const int64_t qk = int64_t{spec.heads} * spec.query_dim, v = int64_t{spec.heads} * spec.value_dim;
  const int64_t omega = FindAttentionKind(spec.attention.kind).maps
                            ? OmegaColumns(spec.attention, spec.query_dim)
                            : 0;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    table.push_back({name + ".weight", {out, in}});
    table.push_back({name + ".bias", {out}});
  };
  const auto norm = [&](const std::string& name) {
    table.push_back({name + ".weight", {d}});
    table.push_back({name + ".bias", {d}});
  };
  const int64_t inputs = spec.speech.Inputs();
  if (spec.task != "speech" && !spec.tied) {
    table.push_back({"value_embedding.weight", {spec.vocabulary, spec.value_embedding}});
  } else if (spec.task == "speech" && spec.speech.normalise == "corpus") {
    table.push_back({"input_norm.mean", {spec.speech.bands}});
    table.push_back({"input_norm.deviation", {spec.speech.bands}});
  }
  if (spec.network == "lstm") {
    for (int i = 0; i < spec.layers; ++i) {
      for (const char* direction : {"", "_reverse"}) {
        const auto add = [&](const char* name, std::vector<int64_t> shape) {
          table.push_back({StrCat("lstm.", name, i, direction), std::move(shape)});
        };
        add("weight_ih_l", {4 * d, i == 0 ? inputs : 2 * d});
        add("weight_hh_l", {4 * d, d});
        add("bias_ih_l", {4 * d});
        add("bias_hh_l", {4 * d});
      }
    }
    linear("predictor", spec.OutputSize(), 2 * d);
    return table;
  }
  if (spec.task == "speech") linear("input_projection", spec.value_embedding, inputs);
  if (spec.PositionDims() > 0) {
    table.push_back({"pos_embedding.pe", {1, spec.max_length, spec.PositionDims()}});
  }
  if (spec.pixel_above) {
    table.push_back(
        {"above_embedding.weight", {int64_t{spec.vocabulary} + 1, spec.value_embedding}});
  }
  const auto attention = [&](const std::string& name) {
    linear(name + ".query_projection", qk, d);
    linear(name + ".key_projection", qk, d);
    linear(name + ".value_projection", v, d);
    if (omega > 0) {
      table.push_back({name + ".inner_attention.feature_map.omega", {spec.query_dim, omega}});
    }
    linear(name + ".out_projection", d, v);
  };
  const auto stack = [&](const std::string& name, bool decoder) {
    for (int i = 0; i < spec.layers; ++i) {
      const std::string layer = name + ".layers." + std::to_string(i) + ".";
      if (spec.convolution > 0) {
        table.push_back({layer + "convolution.weight", {spec.convolution, d}});
        table.push_back({layer + "convolution.bias", {d}});
        norm(layer + "convolution_norm");
      }
      attention(layer + (decoder ? "self_attention" : "attention"));
      if (decoder) attention(layer + "cross_attention");
      linear(layer + "linear1", f, d);
      linear(layer + "linear2", d, f);
      norm(layer + "norm1");
      norm(layer + "norm2");
      if (decoder) norm(layer + "norm3");
    }
    if (spec.final_norm) norm(name + ".norm");
  };
  if (spec.network == "encoder-decoder") {
    stack("encoder", false), stack("decoder", true);
  } else {
    stack("transformer", false);
  }
  linear("predictor", spec.OutputSize(), d);
  if (spec.task == "images") table.push_back({"first_value.probability", {spec.vocabulary}});
  return table;
}

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

std::vector<float> PositionTable(const ModelSpec& spec) {
  const int dim = spec.PositionDims();
  if (spec.positions != "grid") return PositionTable(spec.max_length, dim);
  const int half = dim / 2, quarter = dim / 4, row_bytes = spec.RowBytes();
  const std::vector<float> sequence = PositionTable(spec.max_length, half);
  const std::vector<float> rows = PositionTable(spec.height, quarter);
  const std::vector<float> columns = PositionTable(row_bytes, quarter);
  std::vector<float> table;
  for (int t = 0; t < spec.max_length; ++t) {
    const auto append = [&](const std::vector<float>& from, int row, int width) {
      const auto begin = from.begin() + ptrdiff_t{row} * width;
      table.insert(table.end(), begin, begin + width);
    };
    append(sequence, t, half);
    append(rows, (t + 1) / row_bytes, quarter);
    append(columns, (t + 1) % row_bytes, quarter);
  }
  return table;
}

std::vector<float> PositionTable(int length, int dim) {
  std::vector<float> table(static_cast<size_t>(length) * static_cast<size_t>(dim));
  for (int i = 0; i < dim; i += 2) {
    const double frequency = std::exp(-std::log(10000.0) * i / dim);
    for (int t = 0; t < length; ++t) {
      float* pair =
          &table[static_cast<size_t>(t) * static_cast<size_t>(dim) + static_cast<size_t>(i)];
      pair[0] = static_cast<float>(std::sin(t * frequency));
      if (i + 1 < dim) pair[1] = static_cast<float>(std::cos(t * frequency));
    }
  }
  return table;
}

}  // namespace linnet
