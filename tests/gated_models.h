// For tests: language models over gated recurrences (tests/golden/gated/lm_*.safetensors). The
// constructor writes a model of flash-linear-attention into a folder in Hugging Face's layout. For
// RWKV-7, it lists the tensors under BlinkDL's names. Import() converts either to linnet's format.
#ifndef LINNET_TESTS_GATED_MODELS_H_
#define LINNET_TESTS_GATED_MODELS_H_

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/fla.h"
#include "linnet/model/rwkv.h"

namespace linnet {

struct GatedModel {
  SafetensorsFile file;
  std::filesystem::path folder;  // temporary, removed by the destructor
  size_t sequences, length;      // of the input tokens
  std::vector<Tensor> rwkv;      // tensors of an RWKV-7 model; empty for others

  // shards: the number of files that share the tensors.
  explicit GatedModel(const std::string& name, size_t shards = 1)
      : file(SafetensorsFile::Open("tests/golden/gated/lm_" + name + ".safetensors")),
        folder(std::filesystem::temp_directory_path() / StrCat("linnet_gated_model.", getpid())) {
    std::filesystem::create_directory(folder);
    const std::vector<int64_t>& shape = file.Get("input_ids").shape;
    sequences = static_cast<size_t>(shape[0]), length = static_cast<size_t>(shape[1]);
    for (const Tensor& tensor : file.tensors()) {
      for (const char* begin : {"emb.", "blocks.", "ln_out.", "head."}) {
        if (tensor.name.starts_with(begin)) rwkv.push_back(tensor);
      }
    }
    if (!rwkv.empty()) return;
    nlohmann::json config = nlohmann::json::parse(file.metadata().at("config"));
    config["model_type"] = name == "gla" ? "gla" : "gated_deltanet";
    WriteText("config.json", config.dump());
    std::vector<SafetensorsWriter> writers(shards);
    nlohmann::json index;
    size_t next = 0;
    const auto name_of = [&](size_t shard) {
      return shards == 1 ? std::string("model.safetensors")
                         : StrCat("model-", shard + 1, ".safetensors");
    };
    for (const Tensor& tensor : file.tensors()) {
      if (!tensor.name.starts_with("model.") && !tensor.name.starts_with("lm_head.")) continue;
      const size_t shard = next++ % shards;
      writers[shard].Add(tensor.name, tensor.dtype, tensor.shape, tensor.data.data());
      index["weight_map"][tensor.name] = name_of(shard);
    }
    for (size_t i = 0; i < shards; ++i) writers[i].Write((folder / name_of(i)).string());
    if (shards > 1) WriteText("model.safetensors.index.json", index.dump());
  }
  ~GatedModel() { std::filesystem::remove_all(folder); }
  GatedModel(const GatedModel&) = delete;
  GatedModel& operator=(const GatedModel&) = delete;

  void WriteText(const std::string& name, const std::string& text) const {
    WriteFileAtomically((folder / name).string(), text);
  }

  // Imports the folder or the tensors into a model file in `folder`; returns its path.
  std::string Import() const {
    const std::string path = (folder / "linnet.safetensors").string();
    if (rwkv.empty()) {
      FlaModel::Open(folder.string()).Write(path, "{}");
    } else {
      RwkvModel::Of(rwkv, file.path()).Write(path, "{}");
    }
    return path;
  }

  std::vector<int64_t> Tokens() const {
    const std::span<const int64_t> ids = file.Get("input_ids").values<int64_t>();
    return {ids.begin(), ids.end()};
  }
  std::span<const double> Logits() const { return file.Get("logits").values<double>(); }
};

// The message of the InputError that importing a folder throws, or "none".
inline std::string ImportFault(const std::filesystem::path& folder,
                               const std::string& tokenizer = "") {
  try {
    FlaModel::Open(folder.string(), tokenizer);
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

// All numbers of a model file, tensor after tensor.
inline std::vector<float> AllTensors(const std::string& path) {
  const Checkpoint checkpoint = Checkpoint::Open(path);
  std::vector<float> all;
  for (const TensorInfo& info : TensorTable(checkpoint.spec())) {
    const auto values = checkpoint.Tensor(info.name);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace linnet

#endif  // LINNET_TESTS_GATED_MODELS_H_
