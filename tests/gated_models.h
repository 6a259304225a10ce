// For tests: language models of flash-linear-attention over gated recurrences
// (tests/golden/gated/lm_*.safetensors), as linnet's checkpoints.
#ifndef LINNET_TESTS_GATED_MODELS_H_
#define LINNET_TESTS_GATED_MODELS_H_

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/checkpoint.h"

namespace linnet {

struct GatedModel {
  SafetensorsFile file;
  ModelSpec spec;
  size_t sequences, length;

  explicit GatedModel(const std::string& name)
      : file(SafetensorsFile::Open("tests/golden/gated/lm_" + name + ".safetensors")) {
    const auto config = nlohmann::json::parse(file.metadata().at("config"));
    const auto rows = [&](const std::string& tensor) {
      return static_cast<int>(file.Get("model.layers.0." + tensor + ".weight").shape[0]);
    };
    MixerSpec mixer{.kind = name == "gla" ? "gla" : "gated-delta-net"};
    mixer.heads = config.at("num_heads");
    mixer.query_dim = rows("attn.q_proj") / mixer.heads;
    mixer.value_dim = rows("attn.v_proj") / mixer.heads;
    mixer.output_norm_eps = config.at("norm_eps");
    spec.task = "copy", spec.part = std::monostate();
    spec.stack = {.pattern = {mixer},
                  .repeat = config.at("num_hidden_layers"),
                  .d_model = config.at("hidden_size"),
                  .d_ff = config.at("intermediate_size"),
                  .feed_forward = FeedForwardKind::kGated,
                  .norm = NormKind::kRms,
                  .norm_first = true,
                  .norm_eps = config.at("norm_eps")};
    spec.input.vocabulary = config.at("vocab_size"),
    spec.input.value_embedding = spec.stack.d_model;
    const std::vector<int64_t>& shape = file.Get("input_ids").shape;
    sequences = static_cast<size_t>(shape[0]), length = static_cast<size_t>(shape[1]);
    spec.input.max_length = static_cast<int>(length);
    spec.head = {.kind = HeadKind::kCategorical, .classes = spec.input.vocabulary, .bias = false};
  }

  std::vector<int64_t> Tokens() const {
    const std::span<const int64_t> ids = file.Get("input_ids").values<int64_t>();
    return {ids.begin(), ids.end()};
  }
  std::span<const double> Logits() const { return file.Get("logits").values<double>(); }

  // Writes the model as a checkpoint and returns its path.
  std::string Write() const {
    const std::string path =
        (std::filesystem::temp_directory_path() / StrCat("linnet_gated_model.", getpid()));
    WriteCheckpoint(path, spec, "{}",
                    [&](const TensorInfo& info) { return file.Get(Source(info.name)).f32(); });
    return path;
  }

  // The source's name of a tensor.
  static std::string Source(std::string name) {
    const std::pair<std::string, std::string> changes[] = {{"value_embedding", "model.embeddings"},
                                                           {"predictor", "lm_head"},
                                                           {"transformer.", "model."},
                                                           {".attention.", ".attn."},
                                                           {".norm1.", ".attn_norm."},
                                                           {".norm2.", ".mlp_norm."},
                                                           {".gate.", ".mlp.gate_proj."},
                                                           {".linear1.", ".mlp.up_proj."},
                                                           {".linear2.", ".mlp.down_proj."}};
    for (const auto& [from, to] : changes) {
      const size_t at = name.find(from);
      if (at != name.npos) name.replace(at, from.size(), to);
    }
    return name;
  }
};

}  // namespace linnet

#endif  // LINNET_TESTS_GATED_MODELS_H_
