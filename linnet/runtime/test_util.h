// For tests: token models with random weights.
#ifndef LINNET_RUNTIME_TEST_UTIL_H_
#define LINNET_RUNTIME_TEST_UTIL_H_

#include <unistd.h>

#include <filesystem>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/io/file.h"
#include "linnet/model.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/spec.h"
#include "linnet/rng.h"
#include "linnet/vocabulary.h"

namespace linnet {

inline std::shared_ptr<const Model> RandomModel(const std::string& task, const TextSpec& text,
                                                int max_length, uint64_t seed = 11,
                                                const MixerSpec& mixer = {}) {
  ModelSpec spec;
  spec.task = task, spec.head.kind = HeadKind::kCategorical,
  spec.input.positions = Positions::kAdded, spec.head.tied = true;
  spec.part = text;
  spec.input.vocabulary = spec.head.classes = static_cast<int>(Vocabulary(text).size());
  spec.stack.mixer() = mixer;
  spec.stack.repeat = 2, spec.stack.mixer().heads = 2, spec.stack.mixer().query_dim = 4,
  spec.stack.mixer().value_dim = 4, spec.stack.d_model = 16;
  spec.stack.d_ff = 24, spec.input.value_embedding = 16, spec.input.max_length = max_length;
  const std::string path =
      std::filesystem::temp_directory_path() / ("linnet_random_model." + std::to_string(getpid()));
  std::list<std::vector<float>> tensors;
  WriteCheckpoint(path, spec, "", [&](const TensorInfo& info) -> std::span<const float> {
    size_t size = 1;
    for (const int64_t n : info.shape) size *= static_cast<size_t>(n);
    Philox rng(seed, tensors.size());
    std::vector<float>& values = tensors.emplace_back(size);
    for (float& value : values) value = 0.4f * rng.Normal();
    return values;
  });
  auto model = Model::Open(path);
  std::filesystem::remove(path);
  return model;
}

// With unit "character", the vocabulary is `characters`: letters, two punctuation marks and four
// Chinese characters.
inline std::shared_ptr<const Model> RandomModel(
    const std::string& task, const std::string& unit, int max_length = 40, uint64_t seed = 11,
    const std::string& characters = "abcdefghijkl，。海上明月", const MixerSpec& mixer = {}) {
  TextSpec text;
  if (unit == "character") text = {TextUnit::kCharacter, characters};
  return RandomModel(task, text, max_length, seed, mixer);
}

// A byte-pair vocabulary that begins each text with two special tokens.
inline TextSpec TwoTokensBegin() {
  auto tokenizer = nlohmann::json::parse(ReadFile("tests/golden/tokenizer/byte_fallback.json"));
  tokenizer["post_processor"]["special_tokens"]["<s>"]["ids"] = {1, 1};
  return Vocabulary::OfTokenizer(tokenizer.dump(), /*end=*/-1, "test").Save();
}

}  // namespace linnet

#endif  // LINNET_RUNTIME_TEST_UTIL_H_
