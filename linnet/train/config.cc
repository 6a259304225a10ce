#include "linnet/train/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet::train {

using nlohmann::json;

namespace {

std::string Flag(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

}  // namespace

bool Takes(const std::string& tasks, const std::string& task) {
  return tasks.empty() || (" " + tasks + " ").find(" " + task + " ") != std::string::npos;
}

std::vector<const char*> FormerNames(std::string_view name) {
  std::vector<const char*> names;
  for (const FormerName& one : kFormerNames) {
    if (name == one.name) names.push_back(one.former);
  }
  return names;
}

std::string ToJson(const TrainConfig& config) {
  nlohmann::ordered_json object;
  object["task"] = config.task;
  VisitFields(config,
              [&](const char* name, const std::string& task, const char*, const auto& field) {
                if (Takes(task, config.task)) object[name] = field;
              });
  // Paths may hold invalid UTF-8, on which dump() throws by default.
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::set<std::string> ApplyJson(const std::string& text, const std::string& where,
                                TrainConfig& config) {
  std::set<std::string> names;
  std::string fault;
  json object = ParseJson(text, /*max_depth=*/4, fault);
  if (!fault.empty()) throw InputError(where, ": the configuration ", fault);
  if (!object.is_object()) throw InputError(where, ": not a JSON object");
  if (object.contains("task")) {
    if (object["task"] != config.task) {
      throw InputError(where, ": a configuration for the task ", Brief(object["task"].dump()),
                       ", not for '", config.task, "'");
    }
    object.erase("task");
  }
  for (const auto& [former, name] : kFormerNames) {
    if (!object.contains(former) || object.contains(name)) continue;
    object[name] = object[former];
    object.erase(former);
  }
  VisitFields(config, [&](const char* name, const std::string& task, const char*, auto& field) {
    const auto found = object.find(name);
    if (found == object.end() || !Takes(task, config.task)) return;
    using Field = std::decay_t<decltype(field)>;
    bool good;
    if constexpr (std::is_same_v<Field, std::string>) {
      good = found->is_string();
    } else if constexpr (std::is_same_v<Field, bool>) {
      good = found->is_boolean();
    } else if constexpr (std::is_same_v<Field, uint64_t>) {
      good = found->is_number_unsigned();
    } else if constexpr (std::is_integral_v<Field>) {
      good = found->is_number_integer() && *found >= std::numeric_limits<Field>::min() &&
             *found <= std::numeric_limits<Field>::max();
    } else {
      good = found->is_number();
    }
    if (!good) throw InputError(where, ": '", name, "' cannot be ", Brief(found->dump()));
    field = found->template get<Field>();
    object.erase(found);
    names.insert(name);
  });
  if (!object.empty()) {
    throw InputError(where, ": the task '", config.task, "' has no setting ",
                     Quote(object.begin().key()), "; see linnet train ", config.task, " --help");
  }
  return names;
}

void Validate(const TrainConfig& config) {
  const auto require = [](bool good, const auto&... message) {
    if (!good) throw InputError(message...);
  };
  const auto at_least = [&](const char* name, auto value, auto low) {
    require(value >= low, Flag(name), " is ", value, "; it must be at least ", low);
  };
  const auto in_range = [&](const char* name, auto value, auto low, auto high) {
    require(value >= low && value <= high, Flag(name), " is ", value, "; it must lie between ", low,
            " and ", high);
  };
  require(!config.out.empty(), "--out is missing: name the folder for the run's checkpoints");
  require(config.out.find('\0') == std::string::npos, "--out contains a zero byte");
  in_range("layers", config.layers, 1, 1000);
  in_range("heads", config.heads, 1, 1000);
  in_range("d_model", config.d_model, 2, 65536);
  in_range("d_ff", config.d_ff, 0, 1 << 20);
  in_range("query_dim", config.query_dim, 0, 4096);
  in_range("value_dim", config.value_dim, 0, 4096);
  in_range("stem", config.stem, 0, 4096);
  in_range("patch", config.patch, 1, 1 << 16);
  in_range("patch_width", config.patch_width, 0, 65536);
  in_range("patch_d_ff", config.patch_d_ff, 0, 1 << 16);
  in_range("patch_convolution", config.patch_convolution, 0, 1 << 16);
  in_range("max_length", config.max_length, 1, 1 << 22);
  in_range("min_length", config.min_length, 1, 1 << 22);
  in_range("symbols", config.symbols, 1, 1 << 19);
  in_range("batch", config.batch, 1, 1 << 20);
  in_range("steps", config.steps, int64_t{0}, int64_t{1'000'000'000'000});
  at_least("train_images", config.train_images, 0);
  at_least("validation_images", config.validation_images, 0);
  at_least("held_out", config.held_out, 0);
  at_least("lr_warmup", config.lr_warmup, int64_t{0});
  at_least("lr_drop_at", config.lr_drop_at, int64_t{0});
  at_least("lr_decay", config.lr_decay, int64_t{0});
  in_range("threads", config.threads, 0, 1024);
  at_least("log_every", config.log_every, int64_t{1});
  at_least("validate_every", config.validate_every, int64_t{0});
  at_least("checkpoint_every", config.checkpoint_every, int64_t{1});
  in_range("checkpoint_minutes", config.checkpoint_minutes, 0.0, 1e6);
  in_range("weight_decay", config.weight_decay, 0.0, 1e3);
  in_range("lr_drop_factor", config.lr_drop_factor, 0.0, 1.0);
  at_least("clip", config.clip, 0.0);
  require(config.epochs > 0 && std::isfinite(config.epochs), "--epochs must be above 0");
  require(config.lr > 0 && config.lr <= 1e30, "--lr is ", config.lr,
          "; it must be above 0, and no more than 1e30");
  in_range("accumulate", config.accumulate, 1, config.batch);
  require(config.lr_decay_form == "linear" || config.lr_decay_form == "cosine",
          "unknown --lr-decay-form '", config.lr_decay_form, "'; choose linear or cosine");
  require(config.ema >= 0 && config.ema < 1, "--ema must lie in [0, 1)");
  ParseName<TextUnit>(config.unit, Flag("unit"));
  in_range("characters", config.characters, 1, 1 << 19);
  in_range("min_count", config.min_count, 1, 1 << 30);
  in_range("context", config.context, 1, 1 << 20);
  in_range("validation_share", config.validation_share, 0.0, 0.9);
  in_range("validation_windows", config.validation_windows, 1, 1 << 30);
  at_least("validation_pairs", config.validation_pairs, 0);
  in_range("other_lengths", config.other_lengths, 0, 1);
  require(config.beta2 > 0 && config.beta2 < 1, "--beta2 must lie in (0, 1)");
  in_range("lr_patience", config.lr_patience, 0, 1'000'000);
  in_range("lr_patience_factor", config.lr_patience_factor, 0.0, 1.0);
  in_range("max_seconds", config.max_seconds, 0.1, 86'400.0);
  in_range("speed_perturbation", config.speed_perturbation, 0.0, 0.5);
  in_range("band_masks", config.band_masks, 0, 100);
  in_range("band_mask_width", config.band_mask_width, 0, config.bands);
  in_range("time_masks", config.time_masks, 0, 1000);
  in_range("time_mask_share", config.time_mask_share, 0.0, 1.0);
  require(config.device == "cpu" || config.device == "cuda", "unknown --device '", config.device,
          "'; choose cpu or cuda");
  require(config.dropout >= 0 && config.dropout < 1, "--dropout must lie in [0, 1)");
  require((config.query_dim > 0 && config.value_dim > 0) || config.d_model % config.heads == 0,
          "--d-model ", config.d_model, " is not a multiple of --heads ", config.heads,
          "; set --query-dim and --value-dim");
}

// Validate() reports "model: FIELD is ..." or "model: unknown FIELD ...". Removes "model: " and, if
// the field has a flag, replaces FIELD by it.
void ValidateSpec(const ModelSpec& spec) {
  constexpr std::string_view kWhere = "model";
  try {
    Validate(spec, std::string(kWhere));
  } catch (const Error& error) {
    const TrainConfig names;
    std::string text = std::string(error.what()).substr(kWhere.size() + 2);
    VisitFields(names, [&](const char* name, const std::string& task, const char*, const auto&) {
      if (!Takes(task, spec.task)) return;
      for (const std::string before : {"", "unknown "}) {
        const std::string begin = before + name;
        if (text.starts_with(begin + " ")) text = before + Flag(name) + text.substr(begin.size());
      }
    });
    throw InputError(text);
  }
}

double LearningRate(const TrainConfig& config, int64_t step, int64_t steps) {
  double rate = config.lr;
  if (step < config.lr_warmup) rate *= static_cast<double>(step + 1) / config.lr_warmup;
  if (config.lr_drop_at > 0 && step >= config.lr_drop_at) rate *= config.lr_drop_factor;
  // A decay longer than the run begins with the run, at the full rate.
  const int64_t decay = std::min(config.lr_decay, steps), left = steps - step;
  if (left < decay) {
    const double rest = static_cast<double>(left) / static_cast<double>(decay);
    rate *= config.lr_decay_form == "cosine" ? (1 - std::cos(std::numbers::pi * rest)) / 2 : rest;
  }
  return rate;
}

namespace {

// The mixers' names in a pattern, one for each layer: "gla:2,full" is gla, gla, full.
std::vector<std::string> PatternOf(const std::string& attention) {
  constexpr int kMost = 1000;
  std::vector<std::string> kinds;
  std::istringstream parts(attention + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t colon = part.find(':');
    int count = 1;
    if (colon != part.npos) {
      const char* end = part.data() + part.size();
      const auto [last, error] = std::from_chars(part.data() + colon + 1, end, count);
      if (error != std::errc() || last != end || count < 1 || count > kMost) {
        throw InputError("--attention has the part ", Quote(part),
                         "; write NAME, or NAME:COUNT with 1 to ", kMost, " layers");
      }
    }
    kinds.insert(kinds.end(), static_cast<size_t>(count), part.substr(0, colon));
  }
  return kinds;
}

// Which mixers have an option: softmax attention, those with a feature map, or those whose
// MixerInfo::options list it.
enum class Has : uint8_t { kSoftmax, kMaps, kListed };

// Calls visit(name, which mixers, c's field, mixer's field) for options that only some mixers have.
// Both fields have the same default.
template <class Config, class Visit>
void VisitMixerOptions(Config& c, MixerSpec& mixer, const Visit& visit) {
  visit("feature_map", Has::kMaps, c.feature_map, mixer.feature_map);
  visit("features", Has::kMaps, c.features, mixer.features);
  visit("short_convolution", Has::kListed, c.short_convolution, mixer.short_convolution);
  visit("output_gate", Has::kListed, c.output_gate, mixer.output_gate);
  visit("negative_eigenvalues", Has::kListed, c.negative_eigenvalues, mixer.negative_eigenvalues);
  visit("gate_rank", Has::kListed, c.gate_rank, mixer.gate_rank);
  visit("window", Has::kSoftmax, c.window, mixer.window);
  visit("rotary", Has::kSoftmax, c.rotary, mixer.rotary);
  visit("rotary_base", Has::kSoftmax, c.rotary_base, mixer.rotary_base);
  visit("qkv_bias", Has::kSoftmax, c.qkv_bias, mixer.qkv_bias);
  visit("out_bias", Has::kSoftmax, c.out_bias, mixer.out_bias);
  visit("lower_bound", Has::kListed, c.lower_bound, mixer.lower_bound);
  visit("householders", Has::kListed, c.householders, mixer.householders);
  visit("decay_rank", Has::kListed, c.decay_rank, mixer.decay_rank);
  visit("rate_rank", Has::kListed, c.rate_rank, mixer.rate_rank);
  visit("value_rank", Has::kListed, c.value_rank, mixer.value_rank);
}

bool HasOption(const MixerInfo& info, const char* name, Has has) {
  if (has == Has::kSoftmax) return info.windows;  // true for softmax attention only
  if (has == Has::kMaps) return info.maps;
  return std::find(info.options.begin(), info.options.end(), name) != info.options.end();
}

// The infos of mixers, one for each kind; empty if a kind is unknown (ValidateSpec() reports it).
std::vector<MixerInfo> InfosOf(const std::vector<std::string>& kinds) {
  std::vector<MixerInfo> infos;
  const std::vector<MixerInfo> all = Mixers();
  for (const std::string& kind : kinds) {
    const auto info = std::find_if(all.begin(), all.end(),
                                   [&](const MixerInfo& one) { return one.name == kind; });
    if (info == all.end()) return {};
    infos.push_back(*info);
  }
  return infos;
}

// Calls visit(name, which mixers, setting, default) for each option that no layer has.
template <class Config, class Visit>
void VisitUnusedOptions(Config& config, const Visit& visit) {
  const std::vector<MixerInfo> infos = InfosOf(PatternOf(config.attention));
  MixerSpec plain;
  VisitMixerOptions(config, plain, [&](const char* name, Has has, auto& set, auto& own) {
    const bool unused = std::none_of(infos.begin(), infos.end(), [&](const MixerInfo& info) {
      return HasOption(info, name, has);
    });
    if (unused && !infos.empty()) visit(name, has, set, own);
  });
}

// The layers' mixers, each with the options that its kind has. Throws InputError for an option that
// no layer has.
std::vector<MixerSpec> MixersOf(const TrainConfig& config, const MixerSpec& options) {
  VisitUnusedOptions(config, [&](const char* name, Has has, const auto& set, auto plain) {
    if (set == plain) return;
    if (has != Has::kSoftmax) {
      throw InputError(Flag(name), " is not an option of --attention ", config.attention);
    }
    throw InputError(Flag(name), " is for softmax attention, and --attention is ", config.attention,
                     "; add a full layer, as in gated-delta-net:3,full");
  });
  std::vector<MixerSpec> mixers;
  const TrainConfig plain;
  for (const std::string& kind : PatternOf(config.attention)) {
    MixerSpec& mixer = mixers.emplace_back(options);
    mixer.kind = kind;
    for (const MixerInfo& info : InfosOf({kind})) {
      VisitMixerOptions(plain, mixer, [&](const char* name, Has has, auto set, auto& own) {
        if (!HasOption(info, name, has))
          own = static_cast<std::remove_reference_t<decltype(own)>>(set);
      });
    }
  }
  return mixers;
}

// Sets the kind of positions and the width of the value embedding: the width of all embeddings if
// --positions is none, otherwise half of it, rounded so that an even number of dimensions remains
// for positions.
void SetPositions(const TrainConfig& config, InputSpec& input) {
  const bool none = config.positions == "none", grid = config.positions == "grid";
  if (!none && !grid && config.positions != "sequence") {
    throw InputError("unknown ", Flag("positions"), " ", Quote(config.positions),
                     "; choose sequence, grid or none");
  }
  input.positions = grid ? Positions::kGrid : Positions::kSequence;
  const int width = EmbeddingWidth(config);
  input.value_embedding = none ? width : width / 2;
  if ((width - input.value_embedding) % 2 == 1) ++input.value_embedding;
}

// Expands the pattern to one mixer per layer. Sets value_rank to 0 in the first layer that would
// mix in the values of an earlier layer, because there are none yet. All later ones mix in the
// values of this first layer.
void PassFirstValues(StackSpec& stack) {
  std::vector<MixerSpec> layers;
  bool first = true;
  for (size_t i = 0; i < static_cast<size_t>(stack.layers()); ++i) {
    MixerSpec& mixer = layers.emplace_back(stack.mixer(i));
    for (const ProjectionInfo& projection : MixerProjections(mixer)) {
      if (projection.carried && first) first = false, mixer.value_rank = 0;
    }
  }
  stack.pattern = layers, stack.repeat = 1;
}

}  // namespace

void DropUnusedOptions(TrainConfig& config) {
  VisitUnusedOptions(config, [](const char*, Has, auto& set, auto plain) { set = plain; });
}

bool HasShortConvolutions(const TrainConfig& config) {
  const std::vector<MixerInfo> infos = InfosOf(PatternOf(config.attention));
  return config.short_convolution >= std::max(config.convolution, 1) && !infos.empty() &&
         std::all_of(infos.begin(), infos.end(), [](const MixerInfo& info) {
           return HasOption(info, "short_convolution", Has::kListed);
         });
}

ModelSpec BaseSpec(const TrainConfig& config) {
  const int per_head = config.d_model / config.heads;
  ModelSpec spec;
  spec.task = config.task;
  spec.part = std::monostate();
  spec.network = ParseName<NetworkKind>(config.network, Flag("network"));
  const MixerSpec mixer = {
      .feature_map = config.feature_map,
      .features = config.features,
      .similarity = ParseName<Similarity>(config.similarity, Flag("similarity")),
      .lsh_rounds = config.lsh_rounds,
      .lsh_buckets = config.lsh_buckets,
      .lsh_chunk = config.lsh_chunk,
      .lsh_variant = ParseName<LshVariant>(config.lsh_variant, Flag("lsh_variant")),
      .window = config.window,
      .rotary = config.rotary,
      .rotary_base = static_cast<float>(config.rotary_base),
      .qkv_bias = config.qkv_bias,
      .out_bias = config.out_bias,
      .short_convolution = config.short_convolution,
      .output_gate = config.output_gate,
      .negative_eigenvalues = config.negative_eigenvalues,
      .gate_rank = config.gate_rank,
      .key_heads = config.key_heads,
      .householders = config.householders,
      .decay_floor = static_cast<float>(config.decay_floor),
      .lower_bound = config.lower_bound,
      .decay_rank = config.decay_rank,
      .rate_rank = config.rate_rank,
      .value_rank = config.value_rank,
      .heads = config.heads,
      .query_dim = config.query_dim > 0 ? config.query_dim : per_head,
      .value_dim = config.value_dim > 0 ? config.value_dim : per_head};
  spec.stack.pattern = MixersOf(config, mixer);
  const int pattern = static_cast<int>(spec.stack.pattern.size());
  if (config.layers % pattern != 0) {
    throw InputError("--layers is ", config.layers, "; it must be a multiple of ", pattern,
                     ", the number of layers in --attention");
  }
  spec.stack.repeat = config.layers / pattern;
  if (config.value_rank > 0) PassFirstValues(spec.stack);
  spec.stack.d_model = config.d_model;
  spec.stack.d_ff = config.d_ff > 0 ? config.d_ff : 4 * config.d_model;
  spec.stack.feed_forward = ParseName<FeedForwardKind>(config.feed_forward, Flag("feed_forward"));
  spec.stack.activation = ParseName<Activation>(config.activation, Flag("activation"));
  spec.stack.norm = ParseName<NormKind>(config.norm, Flag("norm"));
  spec.stack.norm_first = config.norm_first;
  spec.stack.convolution = config.convolution;
  SetPositions(config, spec.input);
  spec.input.norm = config.embedding_norm;
  return spec;
}

}  // namespace linnet::train
