#include "bench/random_model.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <system_error>
#include <variant>
#include <vector>

#include "linnet/error.h"
#include "linnet/model/mixer.h"
#include "linnet/rng.h"

namespace linnet::bench {

namespace fs = std::filesystem;

ModelSpec RandomSpec(const std::string& dataset, const MixerSpec& attention) {
  ModelSpec spec;  // the default is the paper's MNIST model
  spec.stack.mixer() = attention;
  if (dataset == "mnist") return spec;
  if (dataset != "cifar10") {
    throw InputError("no model with random weights for '", dataset, "'; choose mnist or cifar10");
  }
  spec.stack.repeat = 16, spec.image()->width = spec.image()->height = 32,
  spec.image()->channels = 3, spec.input.max_length = 3071;
  return spec;
}

ModelSpec RandomLanguageSpec(const std::string& kind) {
  constexpr int kWidth = 768, kHeads = 12, kTokens = 32'000;
  MixerSpec mixer{.kind = kind, .heads = kHeads, .query_dim = 64, .value_dim = 64};
  ModelSpec spec;
  spec.task = "tokens", spec.part = std::monostate();
  spec.input = {.vocabulary = kTokens, .max_length = 2048, .value_embedding = kWidth};
  spec.head = {.kind = HeadKind::kCategorical, .classes = kTokens, .bias = false};
  spec.stack = {.pattern = {mixer}, .repeat = 12, .d_model = kWidth, .norm_first = true};
  const MixerInfo info = FindMixer(kind);
  if (info.gated != nullptr) {
    spec.stack.d_ff = 2048;
    spec.stack.feed_forward = FeedForwardKind::kGated;
    spec.stack.norm = NormKind::kRms;
    return spec;
  }
  if (info.projections == nullptr) {
    throw InputError("no language model with random weights has attention '", kind,
                     "'; choose a gated recurrence or rwkv7");
  }
  mixer.decay_rank = 64, mixer.rate_rank = 64, mixer.gate_rank = 128;
  spec.stack.pattern = {mixer};  // the first layer has no earlier values to mix in
  mixer.value_rank = 32;
  spec.stack.pattern.resize(12, mixer);
  spec.stack.repeat = 1;
  spec.stack.d_ff = 4 * kWidth;
  spec.stack.feed_forward = FeedForwardKind::kShifted;
  spec.input.norm = true;
  return spec;
}

Checkpoint RandomModel(const ModelSpec& spec) {
  std::map<std::string, std::vector<float>> tensors;
  for (const TensorInfo& info : TensorTable(spec)) {
    size_t size = 1;
    for (int64_t n : info.shape) size *= static_cast<size_t>(n);
    Philox rng(/*seed=*/1, /*stream=*/tensors.size());
    const float scale = 1.0f / std::sqrt(static_cast<float>(spec.stack.d_model));
    std::vector<float>& values = tensors[info.name];
    for (values.resize(size); float& value : values) value = scale * (2 * rng.Uniform() - 1);
  }
  // The probabilities of the first byte must not be negative, so they are made uniform.
  const auto first = tensors.find("first_value.probability");
  if (first != tensors.end()) {
    std::fill(first->second.begin(), first->second.end(),
              1.0f / static_cast<float>(first->second.size()));
  }

  std::error_code none;
  const fs::path temporary = fs::temp_directory_path(none);
  if (none) throw RuntimeError("no folder for temporary files; set TMPDIR to one");
  struct TemporaryFolder {
    TemporaryFolder() {
      if (mkdtemp(path.data()) == nullptr) throw RuntimeError(path, ": cannot be created");
    }
    ~TemporaryFolder() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
    std::string path = fs::temp_directory_path() / "linnet-bench-XXXXXX";
  } folder;
  const std::string path = folder.path + "/random.safetensors";
  WriteCheckpoint(path, spec, /*training=*/"", [&](const TensorInfo& info) {
    return std::span<const float>(tensors.at(info.name));
  });
  return Checkpoint::Open(path);  // its memory mapping stays valid after the file is removed
}

}  // namespace linnet::bench
