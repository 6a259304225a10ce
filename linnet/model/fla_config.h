// config.json of flash-linear-attention's models, and the spec that it describes.
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
  ModelSpec spec;     // without a vocabulary: the task is "tokens"
  bool tied = false;  // the embedding is also the head
  int end = -1;       // eos_token_id; -1: none
};

// Throws InputError on unknown options and values, and on a file that is no JSON object.
FlaConfig ReadFlaConfig(const std::string& path);

// Throws InputError, beginning with `where`, for models that flash-linear-attention does not have.
nlohmann::json WriteFlaConfig(const ModelSpec& spec, const std::string& where);

// A JSON object from a file; Python's Infinity is 1e308. Throws InputError.
nlohmann::json ReadJsonObject(const std::string& path);

}  // namespace linnet

#endif  // LINNET_MODEL_FLA_CONFIG_H_
