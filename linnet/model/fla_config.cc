#include "linnet/model/fla_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"
#include "linnet/model/mixer.h"

namespace linnet {

using nlohmann::json;

namespace {

// Fields that do not change what a model computes.
constexpr const char* kHarmless[] = {
    "_name_or_path",
    "architectures",
    "attn_mode",
    "auto_map",
    "bos_token_id",
    "chunk_size",
    "conv_init",
    "dt_init_floor",
    "dt_max",
    "dt_min",
    "dtype",
    "fuse_cross_entropy",
    "fuse_linear_cross_entropy",
    "fuse_norm",
    "fuse_swiglu",
    "id2label",
    "initializer_range",
    "A_init_range",
    "label2id",
    "max_position_embeddings",
    "model_type",
    "pad_token_id",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_l2warp",
};

// Replaces Infinity, which Python writes for an infinite limit and which is not JSON, by 1e308.
std::string WithoutInfinity(std::string text) {
  constexpr std::string_view kInfinity = "Infinity", kLarge = "1e308";
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (text[i] == '\\') ++i;
    if (!quoted && text.compare(i, kInfinity.size(), kInfinity) == 0) {
      text.replace(i, kInfinity.size(), kLarge);
    }
  }
  return text;
}

// A config.json whose fields are read one by one; Finish() refuses fields that were not read.
class Config {
 public:
  explicit Config(const std::string& path) : Config(path, ReadJsonObject(path)) {}
  Config(std::string where, json fields) : where_(std::move(where)), fields_(std::move(fields)) {}

  template <class... Message>
  [[noreturn]] void Refuse(const Message&... message) const {
    throw InputError(where_, ": ", message...);
  }
  // Whether the field is present and not null. Also counts it as read.
  bool Has(const char* name) {
    read_.insert(name);
    return fields_.contains(name) && !fields_[name].is_null();
  }
  // Returns the value of a field, or `otherwise` if the field is absent or null.
  int Int(const char* name, int otherwise) {
    if (!Has(name)) return otherwise;
    const json& value = fields_[name];
    if (!value.is_number_integer() || value < 0 || value > 1 << 30) Bad(name);
    return value;
  }
  double Number(const char* name, double otherwise) {
    if (!Has(name)) return otherwise;
    if (!fields_[name].is_number()) Bad(name);
    return fields_[name];
  }
  bool Bool(const char* name, bool otherwise) {
    if (!Has(name)) return otherwise;
    if (!fields_[name].is_boolean()) Bad(name);
    return fields_[name];
  }
  std::string String(const char* name, const std::string& otherwise) {
    if (!Has(name)) return otherwise;
    if (!fields_[name].is_string()) Bad(name);
    return fields_[name];
  }
  // A number, or the first number of a list.
  int First(const char* name, int otherwise) {
    if (!Has(name) || !fields_[name].is_array() || fields_[name].empty()) {
      return Int(name, otherwise);
    }
    const json first = fields_[name][0];
    if (!first.is_number_integer() || first < 0 || first > 1 << 30) Bad(name);
    return first;
  }
  // A list of layer indices, each in [0, count).
  std::set<int> Indices(const char* name, int count) {
    std::set<int> all;
    if (!Has(name) || !fields_[name].is_array()) Bad(name);
    for (const json& index : fields_[name]) {
      if (!index.is_number_integer() || index < 0 || index >= count) {
        Refuse("'", name, "' names the layer ", Brief(index.dump()), "; the model has the layers ",
               "0 to ", count - 1);
      }
      all.insert(index.get<int>());
    }
    return all;
  }
  Config Object(const char* name) {
    if (!Has(name) || !fields_[name].is_object()) Bad(name);
    return {StrCat(where_, ": ", name), fields_[name]};
  }
  // Refuses a field that differs from `value`, the only value that linnet supports. An absent field
  // counts as `otherwise`.
  void MustBe(const char* name, bool value, bool otherwise) {
    if (Bool(name, otherwise) != value) Unsupported(name, !value);
  }
  void MustBe(const char* name, const std::string& value) {
    if (String(name, value) != value) Unsupported(name);
  }
  // Refuses all limits but [0, infinity].
  void MustBeUnlimited(const char* name) {
    if (Has(name) && fields_[name] != json({0, 1e308})) Unsupported(name);
  }
  void MustBeAbsent(const char* name) {
    if (Has(name)) Unsupported(name);
  }
  void MustNotBeNull(const char* name) {
    if (fields_.contains(name) && fields_[name].is_null()) Unsupported(name);
  }

  // Refuses fields that nothing has read, unless they are harmless, null or false.
  void Finish() const {
    std::vector<std::string> unknown;
    for (const auto& [name, value] : fields_.items()) {
      const bool harmless =
          std::find(std::begin(kHarmless), std::end(kHarmless), name) != std::end(kHarmless);
      if (!harmless && read_.count(name) == 0 && !value.is_null() && value != false) {
        unknown.push_back(name);
      }
    }
    if (!unknown.empty()) Refuse("has the unknown options ", QuoteAll(unknown));
  }

 private:
  [[noreturn]] void Bad(const char* name) const {
    const json value = fields_.contains(name) ? fields_[name] : json();
    Refuse("'", name, "' cannot be ", Brief(value.dump()));
  }
  // Refuses an option. The message shows its value, or `otherwise` if the option is absent.
  [[noreturn]] void Unsupported(const char* name, const json& otherwise = {}) const {
    const bool given = fields_.contains(name) && !fields_[name].is_null();
    const json value = given ? fields_[name] : otherwise;
    Refuse("the option ", name, " = ", Brief(value.dump()), " is not supported");
  }

  std::string where_;
  json fields_;
  std::set<std::string, std::less<>> read_;
};

// Reads head sizes from expand_k and expand_v: the total size of all heads' keys, and that of all
// heads' values, each divided by `width` (hidden_size). `keys`, `values` and `heads` are the
// defaults of expand_k, expand_v and num_heads.
void ReadShares(Config& config, int width, double keys, double values, int heads,
                MixerSpec& mixer) {
  mixer.heads = config.Int("num_heads", heads);
  const auto share = [&](const char* name, double otherwise) {
    const double size = std::trunc(width * config.Number(name, otherwise));
    if (mixer.heads < 1 || !(size >= 1 && size < 1 << 20) ||
        static_cast<int>(size) % mixer.heads != 0) {
      config.Refuse("hidden_size x ", name, " is ", size,
                    "; it must be a multiple of num_heads = ", mixer.heads);
    }
    return static_cast<int>(size) / mixer.heads;
  };
  mixer.query_dim = share("expand_k", keys), mixer.value_dim = share("expand_v", values);
}

// Reads head sizes from head_dim. If num_v_heads > num_heads, heads share queries and keys. `dim`,
// `heads` and `values` are the defaults of head_dim, num_heads and expand_v.
void ReadHeadSizes(Config& config, int dim, int heads, double values, MixerSpec& mixer) {
  const int key_heads = config.Int("num_heads", heads);
  if (key_heads < 1) config.Refuse("num_heads is 0; it must be at least 1");
  mixer.heads = config.Int("num_v_heads", key_heads);
  mixer.key_heads = mixer.heads == key_heads ? 0 : key_heads;
  mixer.query_dim = config.Int("head_dim", dim);
  const double size = std::trunc(mixer.query_dim * config.Number("expand_v", values));
  if (!(size >= 1 && size < 1 << 20)) {
    config.Refuse("head_dim x expand_v is ", size, "; it must be at least 1 and less than 2^20");
  }
  mixer.value_dim = static_cast<int>(size);
}

void ReadConvolution(Config& config, MixerSpec& mixer) {
  config.MustBe("use_short_conv", true, true);
  mixer.short_convolution = config.Int("conv_size", 4);
  mixer.negative_eigenvalues = config.Bool("allow_neg_eigval", false);
}

// A value of expand_k or a similar field: its product with `width`, truncated to an integer, is
// `size`.
double ShareOf(int size, int width) {
  double share = static_cast<double>(size) / width;
  while (static_cast<int>(width * share) < size) share = std::nextafter(share, 2.0 * share);
  return share;
}

// The double with the shortest decimal form of x: 1e-06 for 1e-6f, not 9.99999997e-07.
double Rounded(float x) {
  char text[32] = {};
  std::to_chars(text, std::end(text), x);
  return std::strtod(text, nullptr);
}

void WriteShares(const MixerSpec& mixer, int width, json& config) {
  config["num_heads"] = mixer.heads;
  config["expand_k"] = ShareOf(mixer.heads * mixer.query_dim, width);
  config["expand_v"] = ShareOf(mixer.heads * mixer.value_dim, width);
}

void WriteHeadSizes(const MixerSpec& mixer, int, json& config) {
  config["num_heads"] = mixer.key_heads > 0 ? mixer.key_heads : mixer.heads;
  config["num_v_heads"] = mixer.heads;
  config["head_dim"] = mixer.query_dim;
  config["expand_v"] = ShareOf(mixer.value_dim, mixer.query_dim);
}

void WriteConvolution(const MixerSpec& mixer, json& config) {
  if (mixer.short_convolution == 0) {
    throw InputError("flash-linear-attention applies silu to the projections of ", mixer.kind,
                     " even without a convolution; linnet does not");
  }
  config["use_short_conv"] = true;
  config["conv_size"] = mixer.short_convolution;
  config["allow_neg_eigval"] = mixer.negative_eigenvalues;
}

// Reads the fields that gla and retnet share.
void ReadPlain(Config& config, MixerSpec& mixer) {
  const int kv_heads = config.Int("num_kv_heads", mixer.heads);
  if (kv_heads < 1 || mixer.heads % kv_heads != 0) {
    config.Refuse("num_kv_heads is ", kv_heads, "; it must divide num_heads = ", mixer.heads);
  }
  mixer.key_heads = kv_heads == mixer.heads ? 0 : kv_heads;
  config.MustBeAbsent("feature_map");
  config.MustBe("use_short_conv", false, false);
  config.Has("conv_size");  // allowed: it has no effect without a convolution
  config.MustBe("use_output_gate", true, true);
  config.MustBe("elementwise_affine", true, true);
}

void WritePlain(const MixerSpec& mixer, int width, json& config) {
  WriteShares(mixer, width, config);
  if (mixer.key_heads > 0) config["num_kv_heads"] = mixer.key_heads;
}

// Also reads the mamba2 of the transformers library, which has other names for a few options.
void ReadMamba2(Config& config, int width, MixerSpec& mixer) {
  mixer.value_dim = config.Int("head_dim", 64);
  const int64_t values = int64_t{width} * config.Int("expand", 2);
  if (mixer.value_dim < 1 || values < 1 || values % mixer.value_dim != 0 || values >= 1 << 20) {
    config.Refuse("hidden_size x expand is ", values,
                  "; it must be a multiple of head_dim = ", mixer.value_dim);
  }
  mixer.heads = static_cast<int>(values) / mixer.value_dim;
  if (config.Int("num_heads", mixer.heads) != mixer.heads) {
    config.Refuse("num_heads x head_dim is not hidden_size x expand = ", values);
  }
  mixer.query_dim = config.Int("state_size", 128);
  const int groups = config.Int("n_groups", 1);
  if (groups < 1 || mixer.heads % groups != 0) {
    config.Refuse("n_groups is ", groups, "; it must divide num_heads = ", mixer.heads);
  }
  mixer.key_heads = groups == mixer.heads ? 0 : groups;
  mixer.short_convolution = config.Int("conv_kernel", 4);
  if (mixer.short_convolution < 1) config.Refuse("conv_kernel is 0; it must be at least 1");
  config.MustBe("use_bias", false, false), config.MustBe("use_conv_bias", true, true);
  config.MustBe("rmsnorm", true, true), config.MustBe("rms_norm", true, true);
  config.MustBe("norm_before_gate", false, false), config.MustBe("D_has_hdim", false, false);
  config.MustBeUnlimited("dt_limit"), config.MustBeUnlimited("time_step_limit");
}

// The channels of flash-linear-attention's hgrn have no heads; linnet divides them into heads.
void ReadHgrn(Config& config, int width, MixerSpec& mixer) {
  const double values = std::trunc(width * config.Number("expand_ratio", 1));
  if (!(values >= 1 && values < 1 << 20)) {
    config.Refuse("hidden_size x expand_ratio is ", values,
                  "; it must be at least 1 and less than 2^20");
  }
  mixer.value_dim = std::gcd(static_cast<int>(values), 128), mixer.query_dim = mixer.value_dim;
  mixer.heads = static_cast<int>(values) / mixer.value_dim;
  config.Has("conv_size");
  mixer.short_convolution = config.Bool("use_short_conv", false) ? config.Int("conv_size", 4) : 0;
  mixer.lower_bound = config.Bool("use_lower_bound", true);
  if (mixer.lower_bound && static_cast<int>(values) != width) {
    config.Refuse("use_lower_bound needs expand_ratio = 1");
  }
  config.MustBe("elementwise_affine", true, true);
}

// A kind of model: its model_type, the name of its mixer in linnet, and functions that convert the
// mixer's parameters from and to a config. width: hidden_size.
struct Kind {
  const char* type;
  const char* mixer;
  int hidden_ratio;  // default of this field of the config; 0: layers have no feed-forward block
  void (*read)(Config& config, int width, MixerSpec& mixer);
  void (*write)(const MixerSpec& mixer, int width, json& config);
};

constexpr Kind kKinds[] = {
    {"gla", "gla", 4,
     [](Config& config, int width, MixerSpec& mixer) {
       ReadShares(config, width, 0.5, 1, 4, mixer);
       ReadPlain(config, mixer);
       config.MustBe("use_gk", true, true), config.MustBe("use_gv", false, false);
       mixer.decay_floor = static_cast<float>(config.Number("clamp_min", 0));
     },
     [](const MixerSpec& mixer, int width, json& config) {
       if (mixer.gate_rank != 16) {
         throw InputError("flash-linear-attention has gla only with gate rank 16; here it is ",
                          mixer.gate_rank);
       }
       WritePlain(mixer, width, config);
       if (mixer.decay_floor < 0) config["clamp_min"] = Rounded(mixer.decay_floor);
     }},
    {"retnet", "retention", 2,
     [](Config& config, int width, MixerSpec& mixer) {
       ReadShares(config, width, 1, 2, 8, mixer);
       ReadPlain(config, mixer);
     },
     WritePlain},
    {"delta_net", "delta-net", 4,
     [](Config& config, int width, MixerSpec& mixer) {
       ReadShares(config, width, 1, 1, 16, mixer);
       ReadConvolution(config, mixer);
       mixer.output_gate = config.Bool("use_gate", false);
       config.MustBe("use_beta", true, true), config.MustBe("use_output_norm", true, true);
       config.MustBe("qk_norm", "l2"), config.MustBe("qk_activation", "silu");
     },
     [](const MixerSpec& mixer, int width, json& config) {
       WriteShares(mixer, width, config);
       WriteConvolution(mixer, config);
       config["use_gate"] = mixer.output_gate;
     }},
    {"gated_deltanet", "gated-delta-net", 4,
     [](Config& config, int, MixerSpec& mixer) {
       ReadHeadSizes(config, 256, 6, 2, mixer);
       ReadConvolution(config, mixer);
       mixer.output_gate = config.Bool("use_gate", true);
     },
     [](const MixerSpec& mixer, int width, json& config) {
       WriteHeadSizes(mixer, width, config);
       WriteConvolution(mixer, config);
       config["use_gate"] = mixer.output_gate;
     }},
    {"gated_deltaproduct", "gated-delta-product", 4,
     [](Config& config, int, MixerSpec& mixer) {
       ReadHeadSizes(config, 256, 6, 2, mixer);
       ReadConvolution(config, mixer);
       config.MustBe("use_forget_gate", true, false);
       mixer.output_gate = config.Bool("use_output_gate", true);
       mixer.householders = config.Int("num_householder", 1);
     },
     [](const MixerSpec& mixer, int width, json& config) {
       WriteHeadSizes(mixer, width, config);
       WriteConvolution(mixer, config);
       config["use_forget_gate"] = true;
       config["use_output_gate"] = mixer.output_gate;
       config["num_householder"] = mixer.householders;
     }},
    {"mamba2", "ssd", 0, ReadMamba2,
     [](const MixerSpec& mixer, int width, json& config) {
       const int values = mixer.heads * mixer.value_dim;
       if (values % width != 0) {
         throw InputError(
             "Mamba-2 needs heads x value_dim to be a multiple of d_model; here it is ", values);
       }
       if (mixer.short_convolution == 0) throw InputError("Mamba-2 needs a short convolution");
       config["num_heads"] = mixer.heads;
       config["head_dim"] = mixer.value_dim;
       config["expand"] = values / width;
       config["state_size"] = mixer.query_dim;
       config["n_groups"] = mixer.key_heads > 0 ? mixer.key_heads : mixer.heads;
       config["conv_kernel"] = mixer.short_convolution;
       // The transformers library's name for norm_eps.
       config["layer_norm_epsilon"] = Rounded(mixer.output_norm_eps);
     }},
    {"kda", "kda", 4,
     [](Config& config, int, MixerSpec& mixer) {
       ReadHeadSizes(config, 128, 16, 1, mixer);
       ReadConvolution(config, mixer);
       config.Has("safe_gate");  // allowed: its value follows from lower_bound
       mixer.decay_floor = static_cast<float>(config.Number("lower_bound", 0));
     },
     [](const MixerSpec& mixer, int width, json& config) {
       WriteHeadSizes(mixer, width, config);
       WriteConvolution(mixer, config);
       if (mixer.decay_floor < 0) {
         config["safe_gate"] = true, config["lower_bound"] = Rounded(mixer.decay_floor);
       }
     }},
    {"hgrn", "hgrn", 4, ReadHgrn,
     [](const MixerSpec& mixer, int width, json& config) {
       const int values = mixer.heads * mixer.value_dim;
       if (mixer.lower_bound && values != width) {
         throw InputError("hgrn with lower bounds needs heads x value_dim = d_model = ", width,
                          "; here it is ", values);
       }
       config["expand_ratio"] = ShareOf(values, width);
       config["use_short_conv"] = mixer.short_convolution > 0;
       if (mixer.short_convolution > 0) config["conv_size"] = mixer.short_convolution;
       config["use_lower_bound"] = mixer.lower_bound;
     }},
};

const Kind& KindOf(Config& config) {
  const std::string type = config.String("model_type", "");
  if (type.empty()) {
    config.Refuse("has no 'model_type'; it must describe a model of flash-linear-attention");
  }
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& one) { return one.type == type; });
  if (kind == std::end(kKinds)) {
    config.Refuse("a model of the type ", Quote(type), "; supported are ", FlaTypes());
  }
  return *kind;
}

// Reads the softmax attention of a hybrid from the object 'attn' of its config.
MixerSpec ReadSoftmax(Config& attn, int width) {
  const int heads = attn.Int("num_heads", 0);
  if (heads < 1 || width % heads != 0) {
    attn.Refuse("num_heads is ", heads, "; it must divide hidden_size = ", width);
  }
  const int key_heads = attn.Int("num_kv_heads", heads);
  if (key_heads < 1 || heads % key_heads != 0) {
    attn.Refuse("num_kv_heads is ", key_heads, "; it must divide num_heads = ", heads);
  }
  attn.MustBe("qk_norm", false, false), attn.MustNotBeNull("rope_theta");
  return {.kind = "full",
          .window = attn.Int("window_size", 0),
          .rotary = true,
          .rotary_base = static_cast<float>(attn.Number("rope_theta", 10000)),
          .qkv_bias = attn.Bool("qkv_bias", false),
          .out_bias = false,
          .key_heads = key_heads == heads ? 0 : key_heads,
          .heads = heads,
          .query_dim = width / heads,
          .value_dim = width / heads};
}

json WriteSoftmax(const MixerSpec& mixer, const StackSpec& stack) {
  if (!mixer.rotary || mixer.out_bias || mixer.scale != 0 || mixer.query_dim != mixer.value_dim ||
      mixer.heads * mixer.query_dim != stack.d_model) {
    throw InputError(
        "in flash-linear-attention, layers of softmax attention have rotary positions, no bias of "
        "the output (out_bias), d_model / heads dimensions per head and the default scale");
  }
  json layers = json::array();
  for (int i = 0; i < stack.layers(); ++i) {
    if (stack.mixer(static_cast<size_t>(i)).kind == mixer.kind) layers.push_back(i);
  }
  return {{"layers", layers},
          {"num_heads", mixer.heads},
          {"num_kv_heads", mixer.key_heads > 0 ? mixer.key_heads : mixer.heads},
          {"qkv_bias", mixer.qkv_bias},
          {"window_size", mixer.window > 0 ? json(mixer.window) : json()},
          {"rope_theta", Rounded(mixer.rotary_base)}};
}

// Sets the stack's pattern: the shortest one whose repetition gives these mixers.
void SetPattern(const std::vector<const MixerSpec*>& layers, StackSpec& stack) {
  const size_t count = layers.size();
  const auto repeats = [&](size_t period) {
    for (size_t i = period; i < count; ++i) {
      if (layers[i] != layers[i - period]) return false;
    }
    return count % period == 0;
  };
  size_t period = 1;
  while (period < count && !repeats(period)) ++period;
  stack.pattern.clear();
  for (size_t i = 0; i < period; ++i) stack.pattern.push_back(*layers[i]);
  stack.repeat = static_cast<int>(count / period);
}

// Reads a hybrid: a model in which some layers have softmax attention.
void ReadHybrid(Config& config, const MixerSpec& mixer, StackSpec& stack) {
  Config attn = config.Object("attn");
  const int count = stack.repeat;
  if (count > 1000) config.Refuse("num_hidden_layers is ", count, "; at most 1000 are supported");
  const std::set<int> softmax = attn.Indices("layers", count);
  const MixerSpec full = ReadSoftmax(attn, stack.d_model);
  attn.Finish();
  if (softmax.empty()) return;
  std::vector<const MixerSpec*> layers;
  layers.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) layers.push_back(softmax.count(i) > 0 ? &full : &mixer);
  SetPattern(layers, stack);
}

}  // namespace

json ReadJsonObject(const std::string& path) {
  std::string fault;
  json object = ParseJson(WithoutInfinity(ReadFile(path)), /*max_depth=*/8, fault);
  if (fault.empty() && !object.is_object()) fault = "is not a JSON object";
  if (!fault.empty()) throw InputError(path, ": ", fault);
  return object;
}

std::string FlaTypes() {
  std::string types;
  for (const Kind& kind : kKinds) types += StrCat(types.empty() ? "" : ", ", kind.type);
  return types;
}

FlaConfig ReadFlaConfig(const std::string& path) {
  Config config(path);
  const Kind& kind = KindOf(config);
  const int width = config.Int("hidden_size", 2048);
  MixerSpec mixer{.kind = kind.mixer};
  kind.read(config, width, mixer);
  const bool feeds = kind.hidden_ratio > 0;
  const double eps_of_kind = feeds ? 1e-6 : 1e-5;
  const auto eps = static_cast<float>(
      config.Number("norm_eps", config.Number("layer_norm_epsilon", eps_of_kind)));
  mixer.output_norm_eps = eps;
  int hidden = 1;
  if (feeds) {
    hidden = config.Int("intermediate_size", 0);
    const int ratio = config.Int("hidden_ratio", kind.hidden_ratio);
    const int64_t wanted = int64_t{width} * ratio * 2 / 3;
    if (hidden == 0) hidden = static_cast<int>((wanted + 255) / 256 * 256);
  }
  if (config.String("hidden_act", "swish") != "silu") config.MustBe("hidden_act", "swish");

  ModelSpec spec;
  spec.task = "tokens", spec.part = std::monostate();
  spec.stack = {.pattern = {mixer},
                .repeat = config.Int("num_hidden_layers", 24),
                .d_model = width,
                .d_ff = hidden,
                .feed_forward = feeds ? FeedForwardKind::kGated : FeedForwardKind::kNone,
                .norm = NormKind::kRms,
                .norm_first = true,
                .norm_eps = eps};
  if (!feeds) config.MustBeAbsent("attn");
  if (config.Has("attn")) ReadHybrid(config, mixer, spec.stack);
  spec.input.vocabulary = config.Int("vocab_size", 32000);
  spec.input.max_length = std::max(1, config.Int("max_position_embeddings", 2048));
  spec.input.value_embedding = width;
  spec.head = {.kind = HeadKind::kCategorical, .classes = spec.input.vocabulary, .bias = false};
  FlaConfig read = {spec, config.Bool("tie_word_embeddings", false),
                    config.First("eos_token_id", -1)};
  config.Finish();
  return read;
}

json WriteFlaConfig(const ModelSpec& spec, const std::string& where) {
  const StackSpec& stack = spec.stack;
  // Some layers may have softmax attention, but all such layers need the same parameters.
  const auto is_softmax = [](const MixerSpec& one) { return FindMixer(one.kind).windows; };
  const std::vector<MixerSpec>& pattern = stack.pattern;
  const auto softmax = std::find_if(pattern.begin(), pattern.end(), is_softmax);
  const auto other = std::find_if_not(pattern.begin(), pattern.end(), is_softmax);
  const MixerSpec& mixer = other == pattern.end() ? pattern[0] : *other;
  const bool alike = std::all_of(pattern.begin(), pattern.end(), [&](const MixerSpec& one) {
    return SameMixer(one, is_softmax(one) ? *softmax : mixer);
  });
  const auto require = [&](bool good, const auto&... message) {
    if (!good) throw InputError(where, ": ", message...);
  };
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& one) { return one.mixer == mixer.kind; });
  require(kind != std::end(kKinds) && alike,
          "flash-linear-attention needs the same attention in all layers, except that some may "
          "have softmax attention; its models are ",
          FlaTypes());
  const bool feeds = kind->hidden_ratio > 0;
  require(
      stack.feed_forward == (feeds ? FeedForwardKind::kGated : FeedForwardKind::kNone) &&
          stack.norm == NormKind::kRms && stack.norm_first && stack.convolution == 0 &&
          !spec.ReadsFrames() && spec.head.kind == HeadKind::kCategorical && !spec.head.tied &&
          !spec.head.bias && spec.PositionDims() == 0 && !spec.input.norm,
      "flash-linear-attention needs RMS norms with norm_first, ", feeds ? "gated" : "no",
      " feed-forward blocks, no position embedding, no norm of the embeddings, and a categorical "
      "head that is not tied and has no bias");
  require(mixer.output_norm_eps == stack.norm_eps,
          "flash-linear-attention has one eps for all norms; here norm_eps and output_norm_eps "
          "differ");
  json config = {{"model_type", kind->type},
                 {"hidden_size", stack.d_model},
                 {"num_hidden_layers", stack.layers()},
                 {"norm_eps", Rounded(stack.norm_eps)},
                 {"vocab_size", spec.input.vocabulary},
                 {"max_position_embeddings", spec.input.max_length},
                 {"tie_word_embeddings", false},
                 {"torch_dtype", "float32"}};
  if (feeds) config["intermediate_size"] = stack.d_ff, config["hidden_act"] = "swish";
  try {
    kind->write(mixer, stack.d_model, config);
    if (softmax != pattern.end()) config["attn"] = WriteSoftmax(*softmax, stack);
  } catch (const InputError& error) {
    throw InputError(where, ": ", error.what());
  }
  require(feeds || softmax == pattern.end(), kind->type, " has no layers of softmax attention");
  return config;
}

}  // namespace linnet
