// Reads and writes the config.json of flash-linear-attention's models.
//
//   FlaConfig config = ReadFlaConfig("gla-340M/config.json");
//   nlohmann::json again = WriteFlaConfig(config.spec, "gla.safetensors");
#ifndef LINNET_MODEL_FLA_CONFIG_H_
#define LINNET_MODEL_FLA_CONFIG_H_

#include <nlohmann/json.hpp>
#include <string>

#include "linnet/model/spec.h"

namespace linnet {

// The model_types that are supported: "gla, retnet, ...".
std::string FlaTypes();

struct FlaConfig {
  ModelSpec spec;     // its task is "tokens": the config has no tokenizer
  bool tied = false;  // the embedding is also the head
  int end = -1;       // eos_token_id; -1: none
};

// Throws InputError on unknown options and values, and if the file is not a JSON object.
FlaConfig ReadFlaConfig(const std::string& path);

// Throws InputError, with a message that begins with `where`, for models that
// flash-linear-attention does not have.
nlohmann::json WriteFlaConfig(const ModelSpec& spec, const std::string& where);

// Reads a file with a JSON object; Python's Infinity becomes 1e308. Throws InputError if the file
// has other contents.
nlohmann::json ReadJsonObject(const std::string& path);

}  // namespace linnet

#endif  // LINNET_MODEL_FLA_CONFIG_H_
