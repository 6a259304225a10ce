// For tests: loads layers of gated recurrences (weights, inputs, outputs and gradients) that other
// programs computed, flash-linear-attention and RWKV-7 (tests/golden/gated/layer_*.safetensors).
#ifndef LINNET_TESTS_GATED_LAYERS_H_
#define LINNET_TESTS_GATED_LAYERS_H_

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "linnet/io/safetensors.h"
#include "linnet/model/fla.h"
#include "linnet/model/mixer.h"
#include "linnet/model/rwkv.h"

namespace linnet {

struct GatedLayer {
  SafetensorsFile file;
  MixerSpec spec;
  int64_t width;  // d_model

  explicit GatedLayer(const std::string& name)
      : file(SafetensorsFile::Open("tests/golden/gated/layer_" + name + ".safetensors")) {
    static const std::map<std::string, std::string> kinds = {{"delta_net", "delta-net"},
                                                             {"gated_deltanet", "gated-delta-net"},
                                                             {"gla", "gla"},
                                                             {"retnet", "retention"},
                                                             {"kda", "kda"},
                                                             {"mamba2", "ssd"},
                                                             {"rwkv7", "rwkv7"}};
    const auto config = nlohmann::json::parse(file.metadata().at("config"));
    const auto rows = [&](const char* tensor) {
      return static_cast<int>(file.Get(tensor).shape[0]);
    };
    spec.kind = kinds.at(name.substr(0, name.rfind('_')));
    width = file.Get("hidden_states").shape[2];
    if (spec.kind == "rwkv7") {
      const std::vector<int> ranks = config.at("ranks_w_a_v_g");
      spec.decay_rank = ranks[0], spec.rate_rank = ranks[1];
      spec.value_rank = ranks[2], spec.gate_rank = ranks[3];
      spec.heads = rows("r_k");
      spec.query_dim = spec.value_dim = config.at("head_size");
      return;
    }
    if (spec.kind == "ssd") {
      spec.heads = rows("A_log");
      spec.key_heads = config.at("n_groups");
      spec.query_dim = config.at("state_size"), spec.value_dim = config.at("head_dim");
      return;
    }
    const int key_heads = config.at("num_heads");
    spec.heads = config.value("num_v_heads", key_heads);
    spec.key_heads = spec.heads == key_heads ? 0 : key_heads;
    spec.query_dim = rows("q_proj.weight") / key_heads;
    spec.value_dim = rows("v_proj.weight") / spec.heads;
    const Tensor* taps = file.Find("q_conv1d.weight");
    spec.short_convolution = taps ? static_cast<int>(taps->shape[2]) : 0;
    spec.output_gate = file.Find("g_proj.weight") != nullptr;
    spec.negative_eigenvalues = config.value("allow_neg_eigval", false);
    spec.decay_floor = config.value("lower_bound", 0.0f);
    if (file.Find("gk_proj.0.weight")) spec.gate_rank = rows("gk_proj.0.weight");
  }

  // The data of the mixer's tensor `name`: a tensor of the file, some of its rows, or its
  // transpose. prefix: "grad." for the gradient.
  Tensor Get(const std::string& name, const std::string& prefix = "") const {
    if (spec.kind == "rwkv7") {
      const RwkvPart part = RwkvPartOf(name);
      const Tensor& tensor = file.Get(prefix + part.name);
      return part.transposed ? Turned(tensor) : tensor;
    }
    std::vector<TensorInfo> table;
    MixerTensors(spec, width, "mixer", table);
    for (const TensorInfo& info : table) {
      if (info.name != "mixer." + name) continue;
      const FlaPart part = FlaPartOf(spec, {name, info.shape});
      Tensor tensor = file.Get(prefix + part.name);
      if (part.rows == info.shape[0]) return tensor;
      const size_t row = tensor.data.size() / static_cast<size_t>(part.rows);
      tensor.data = tensor.data.subspan(static_cast<size_t>(part.first) * row,
                                        static_cast<size_t>(info.shape[0]) * row);
      tensor.shape[0] = info.shape[0];
      return tensor;
    }
    return file.Get(prefix + name);
  }

  // The transpose of a tensor; this object owns its data.
  Tensor Turned(Tensor tensor) const {
    std::vector<float>& turned = turned_[tensor.name];
    turned.resize(static_cast<size_t>(tensor.numel()));
    const std::span<const float> from = tensor.f32();
    const auto rows = static_cast<size_t>(tensor.shape[0]), columns = from.size() / rows;
    for (size_t i = 0; i < from.size(); ++i) turned[i % columns * rows + i / columns] = from[i];
    std::swap(tensor.shape[0], tensor.shape[1]);
    tensor.data = std::as_bytes(std::span(turned));
    return tensor;
  }

  std::vector<double> Doubles(const std::string& name) const {
    const std::span<const double> from = file.Get(name).values<double>();
    return {from.begin(), from.end()};
  }

  // The final state [batch, heads, query_dim, value_dim]. Files of ssd store the last two axes in
  // the opposite order.
  std::vector<double> FinalState() const {
    const std::vector<double> from = Doubles("final_state");
    if (spec.kind != "ssd") return from;
    const auto keys = static_cast<size_t>(spec.query_dim),
               values = static_cast<size_t>(spec.value_dim), size = keys * values;
    std::vector<double> turned(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      turned[i] = from[i / size * size + i % values * keys + i % size / values];
    }
    return turned;
  }

 private:
  mutable std::map<std::string, std::vector<float>> turned_;  // data of the transposes, by name
};

inline const std::vector<std::string>& GatedLayerNames() {
  static const std::vector<std::string> names = {
      "gated_deltanet_1", "gated_deltanet_2", "delta_net_1", "gla_1", "retnet_1", "kda_1", "kda_2",
      "mamba2_1",         "rwkv7_1"};
  return names;
}

}  // namespace linnet

#endif  // LINNET_TESTS_GATED_LAYERS_H_
