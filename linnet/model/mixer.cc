#include "linnet/model/mixer.h"

#include <cmath>
#include <set>

#include "linnet/model/registry.h"
#include "linnet/rng.h"

namespace linnet {

#define LINNET_MIXER(Name) MixerInfo Name##Info();
#include "linnet/model/mixers/list.h"

namespace {

Registry<MixerInfo>& Kinds() {
#define LINNET_MIXER(Name) Name##Info(),
  static Registry<MixerInfo> kinds("attention", {
#include "linnet/model/mixers/list.h"
                                                });
  return kinds;
}

}  // namespace

std::vector<MixerInfo> Mixers() { return Kinds().all(); }
const MixerInfo& FindMixer(const std::string& name) { return Kinds().Find(name); }
MixerInfo FindMixer(const MixerSpec& spec) {
  MixerInfo info = FindMixer(spec.kind);
  if (!info.windows) return info;
  if (spec.window > 0) info.always_causal = info.constant_state = true;
  info.out_bias = spec.out_bias;
  return info;
}
void AddMixer(const MixerInfo& info) { Kinds().Add(info); }

MixerSpec CrossMixer(const MixerSpec& spec) {
  MixerSpec cross = spec;
  cross.kind = FindMixer(spec.kind).cross;
  cross.window = 0, cross.rotary = false;
  if (cross.kind.empty()) {
    throw InputError("attention '", spec.kind, "' does not support cross attention");
  }
  return cross;
}

std::string Describe(const MixerSpec& spec) {
  const MixerInfo& info = FindMixer(spec.kind);
  return info.describe ? info.describe(spec) : info.name;
}

std::string DescribeFeatureMap(const MixerSpec& spec) {
  const bool random = OmegaColumns(spec, spec.query_dim) > 0;
  return StrCat(spec.kind, ", feature map ", spec.feature_map,
                random ? StrCat(", ", FeatureSize(spec, spec.query_dim), " features") : "");
}

std::string BeyondGated(const MixerSpec& spec) { return StrCat("attention ", spec.kind); }

std::vector<ProjectionInfo> MixerProjections(const MixerSpec& spec) {
  const MixerInfo info = FindMixer(spec);
  if (info.projections) return info.projections(spec);
  const bool bias = !info.windows || spec.qkv_bias;
  const int readers = info.windows ? KeyReaders(spec) : 1;
  return {{.name = "query_projection", .width = spec.query_dim, .bias = bias},
          {.name = "key_projection", .width = spec.query_dim, .bias = bias, .readers = readers},
          {.name = "value_projection", .width = spec.value_dim, .bias = bias, .readers = readers}};
}

void MixerTensors(const MixerSpec& spec, int64_t d_model, const std::string& name,
                  std::vector<TensorInfo>& table) {
  const MixerInfo info = FindMixer(spec);
  const auto linear = [&](const std::string& projection, int64_t out, int64_t in, bool bias) {
    table.push_back({StrCat(name, ".", projection, ".weight"), {out, in}});
    if (bias) table.push_back({StrCat(name, ".", projection, ".bias"), {out}});
  };
  std::set<std::string> shifts;
  for (const ProjectionInfo& projection : MixerProjections(spec)) {
    if (projection.carried) continue;
    if (!projection.shift.empty() && shifts.insert(projection.shift).second) {
      table.push_back({StrCat(name, ".", projection.shift), {d_model}});
    }
    linear(projection.name, projection.Columns(spec.heads), d_model, projection.bias);
  }
  const int64_t omega = info.maps ? OmegaColumns(spec, spec.query_dim) : 0;
  if (omega > 0) {
    table.push_back({name + ".inner_attention.feature_map.omega", {spec.query_dim, omega}});
  }
  if (info.tensors) {
    for (const TensorInfo& own : info.tensors(spec)) {
      table.push_back({StrCat(name, ".", own.name), own.shape});
    }
  }
  linear(info.out, d_model, int64_t{spec.heads} * spec.value_dim, info.out_bias);
}

void Validate(const MixerSpec& spec, int query_dim, const std::string& where) {
  const auto require = [&](bool good, const auto&... message) {
    if (!good) throw InputError(where, ": ", message...);
  };
  const auto in_range = [&](const char* name, int value, int low, int high) {
    require(value >= low && value <= high, name, " is ", value, "; it must be between ", low,
            " and ", high);
  };
  try {
    FindMixer(spec.kind);
  } catch (const Error& error) {
    throw InputError(where, ": ", error.what());
  }
  require(spec.eps >= 0 && spec.eps < 1, "attention_eps is ", spec.eps, "; it must lie in [0, 1)");
  require(spec.scale >= 0 && spec.scale < 1e6f, "softmax_scale is ", spec.scale,
          "; it must lie in [0, 1e6)");
  in_range("window", spec.window, 0, 1 << 24);
  require(FindMixer(spec.kind).windows || (spec.window == 0 && !spec.rotary), "attention '",
          spec.kind, "' has neither a window nor rotary positions; they are options of 'full'");
  require(spec.rotary_base >= 1 && spec.rotary_base <= 1e12f, "rotary_base is ", spec.rotary_base,
          "; it must lie in [1, 1e12]");
  ValidateFeatureMap(spec, query_dim, where);
  in_range("lsh_rounds", spec.lsh_rounds, 1, 64);
  in_range("lsh_buckets", spec.lsh_buckets, 1, 1 << 16);
  require(spec.lsh_buckets == 1 || spec.lsh_buckets % 2 == 0, "lsh_buckets is ", spec.lsh_buckets,
          "; it must be 1 or even");
  in_range("lsh_chunk", spec.lsh_chunk, 1, 1 << 20);
  in_range("short_convolution", spec.short_convolution, 0, 64);
  in_range("gate_rank", spec.gate_rank, 1, 4096);
  in_range("decay_rank", spec.decay_rank, 1, 4096);
  in_range("rate_rank", spec.rate_rank, 1, 4096);
  in_range("value_rank", spec.value_rank, 0, 4096);
  in_range("householders", spec.householders, 1, 16);
  require(spec.key_heads == 0 || (spec.key_heads > 0 && spec.heads % spec.key_heads == 0),
          "key_heads is ", spec.key_heads, "; it must divide the number of heads, ", spec.heads,
          ", or be 0");
  require(spec.decay_floor <= 0 && spec.decay_floor >= -1000, "decay_floor is ", spec.decay_floor,
          "; it must lie in [-1000, 0]");
  require(spec.output_norm_eps > 0 && spec.output_norm_eps < 1, "output_norm_eps is ",
          spec.output_norm_eps, "; it must lie in (0, 1)");
}

float SoftmaxScale(const MixerSpec& spec) {
  return spec.scale > 0 ? spec.scale : 1 / std::sqrt(static_cast<float>(spec.query_dim));
}

std::vector<float> LshPlanes(const MixerSpec& spec, int query_dim) {
  std::vector<float> planes(static_cast<size_t>(spec.lsh_rounds) * static_cast<size_t>(query_dim) *
                            static_cast<size_t>((spec.lsh_buckets + 1) / 2));
  Philox rng(/*seed=*/1);
  for (float& number : planes) number = rng.Normal();
  return planes;
}

}  // namespace linnet
