#include "linnet/model/gated.h"

#include <cmath>
#include <string>
#include <utility>

namespace linnet {

std::vector<ProjectionInfo> GatedProjections(const MixerSpec& spec, const GatedForm& form) {
  // A projection in which each head has its own columns.
  const auto own = [](const char* name, int width) {
    return ProjectionInfo{.name = name, .width = width, .bias = false};
  };
  // A projection with one block of columns for each delta step.
  const auto each = [&](const char* name, int width, int readers) {
    return ProjectionInfo{.name = name,
                          .width = form.householders * width,
                          .bias = false,
                          .readers = readers,
                          .blocks = form.householders};
  };
  // The first factor of a low-rank projection; all heads share its columns.
  const auto shared = [](const char* name, int rank) {
    return ProjectionInfo{.name = name, .width = rank, .bias = false, .shared = true};
  };
  if (form.by_channel()) {
    return {own("i_proj", spec.value_dim), own("f_proj", spec.value_dim),
            own("g_proj", spec.value_dim)};
  }
  std::vector<ProjectionInfo> all = {
      {.name = "q_proj", .width = spec.query_dim, .bias = false, .readers = form.query_readers()},
      each("k_proj", spec.query_dim, form.readers),
      each("v_proj", spec.value_dim, form.value_readers())};
  if (form.write == GatedWrite::kDelta) all.push_back(each("b_proj", 1, 1));
  if (form.write == GatedWrite::kTwoSided) {
    all.push_back(own("b_proj", spec.query_dim));
    all.push_back(own("w_proj", spec.value_dim));
  }
  if (form.decay == GatedDecay::kHead) all.push_back(own("a_proj", 1));
  if (form.decay == GatedDecay::kKey) all.push_back(shared("gk_proj.0", spec.gate_rank));
  if (form.decay == GatedDecay::kKeyRate) all.push_back(shared("f_proj.0", spec.value_dim));
  if (form.gate == OutputGate::kSilu) all.push_back(own("g_proj", spec.value_dim));
  if (form.gate == OutputGate::kSigmoid) all.push_back(shared("g_proj.0", spec.value_dim));
  return all;
}

std::vector<TensorInfo> GatedTensors(const MixerSpec& spec, const GatedForm& form) {
  const int64_t heads = spec.heads, keys = heads * spec.query_dim, values = heads * spec.value_dim;
  std::vector<TensorInfo> all;
  std::vector<std::pair<const char*, int64_t>> convolved = {
      {"q_conv1d", keys / form.query_readers()},
      {"k_conv1d", form.householders * keys / form.readers},
      {"v_conv1d", form.householders * values / form.value_readers()}};
  if (form.by_channel()) convolved = {{"i_conv1d", values}, {"f_conv1d", values}};
  for (const auto& [name, channels] : convolved) {
    if (form.convolution == 0) break;
    all.push_back({std::string(name) + ".weight", {channels, 1, form.convolution}});
    if (form.timed) all.push_back({std::string(name) + ".bias", {channels}});
  }
  const bool rates = form.decay == GatedDecay::kHead || form.decay == GatedDecay::kKeyRate;
  if (rates) all.push_back({"A_log", {heads}});
  if (rates) all.push_back({"dt_bias", {form.decay == GatedDecay::kHead ? heads : keys}});
  if (form.decay == GatedDecay::kKey) {
    all.push_back({"gk_proj.1.weight", {keys / form.value_readers(), spec.gate_rank}});
    all.push_back({"gk_proj.1.bias", {keys / form.value_readers()}});
  }
  if (form.decay == GatedDecay::kKeyRate) {
    all.push_back({"f_proj.1.weight", {keys, spec.value_dim}});
  }
  if (form.gate == OutputGate::kSigmoid) {
    all.push_back({"g_proj.1.weight", {values, spec.value_dim}});
    all.push_back({"g_proj.1.bias", {values}});
  }
  if (form.timed) all.push_back({"D", {heads}});
  if (form.bounded) all.push_back({"lower_bound", {values}});
  all.push_back({std::string(form.norm) + ".weight",
                 {form.timed || form.by_channel() ? values : spec.value_dim}});
  return all;
}

int KeyReaders(const MixerSpec& spec) {
  return spec.key_heads > 0 ? spec.heads / spec.key_heads : 1;
}

double RetentionDecay(int head) { return std::log1p(-std::exp2(-5.0 - head)); }

double RotaryFrequency(int i, int query_dim, double base) {
  return std::pow(base, -2.0 * i / query_dim);
}

}  // namespace linnet
