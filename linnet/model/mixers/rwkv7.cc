#include "linnet/model/mixer.h"

namespace linnet {
namespace {

std::vector<ProjectionInfo> Projections(const MixerSpec& spec) {
  const bool reads = spec.value_rank > 0;  // mixes in the values of an earlier layer
  std::vector<ProjectionInfo> all = {
      {.name = "receptance", .width = spec.query_dim, .bias = false, .shift = "x_r"},
      {.name = "key", .width = spec.query_dim, .bias = false, .shift = "x_k"},
      {.name = "value", .width = spec.value_dim, .bias = false, .shift = "x_v", .carries = !reads}};
  const auto shared = [&](const char* name, int rank, const char* shift) {
    all.push_back({.name = name, .width = rank, .bias = false, .shared = true, .shift = shift});
  };
  shared("w1", spec.decay_rank, "x_w");
  shared("a1", spec.rate_rank, "x_a");
  shared("g1", spec.gate_rank, "x_g");
  if (reads) shared("v1", spec.value_rank, "x_v");
  if (reads) all.push_back({.name = "v_first", .width = spec.value_dim, .carried = true});
  return all;
}

std::vector<TensorInfo> Tensors(const MixerSpec& spec) {
  const int64_t heads = spec.heads, keys = heads * spec.query_dim, values = heads * spec.value_dim;
  std::vector<TensorInfo> all = {{"w0", {keys}},
                                 {"w2", {spec.decay_rank, keys}},
                                 {"a0", {keys}},
                                 {"a2", {spec.rate_rank, keys}},
                                 {"g2", {spec.gate_rank, values}}};
  if (spec.value_rank > 0) {
    all.push_back({"v0", {values}});
    all.push_back({"v2", {spec.value_rank, values}});
  }
  all.insert(all.end(), {{"k_k", {keys}},
                         {"k_a", {keys}},
                         {"r_k", {heads, spec.query_dim}},
                         {"ln_x.weight", {values}},
                         {"ln_x.bias", {values}}});
  return all;
}

}  // namespace

MixerInfo Rwkv7Info() {
  return {.name = "rwkv7",
          .description =
              "delta rule with a decay and a rate per key channel, and token shifts "
              "(RWKV-7)",
          .causal = true,
          .always_causal = true,
          .recurrent = true,
          .constant_state = true,
          .options = {"decay_rank", "rate_rank", "gate_rank", "value_rank"},
          .beyond = BeyondGated,
          .projections = Projections,
          .tensors = Tensors,
          .out = "output",
          .out_bias = false};
}

}  // namespace linnet
