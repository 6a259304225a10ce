// Language models of flash-linear-attention in Hugging Face's layout: a folder with config.json,
// safetensors (one file, or several with an index) and tokenizer.json.
//
//   FlaModel model = FlaModel::Open("gla-340M");
//   model.Write("gla.safetensors", training);
//   WriteFla(Checkpoint::Open("gla.safetensors"), "gla-again");
//
// Kinds: gla, retnet, delta_net, gated_deltanet, gated_deltaproduct, kda, hgrn and mamba2; all of
// them except mamba2 may have layers of softmax attention. If config.json sets an option that
// changes the outputs and that linnet does not have, the error names the option.
#ifndef LINNET_MODEL_FLA_H_
#define LINNET_MODEL_FLA_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/spec.h"
#include "linnet/precision.h"

namespace linnet {

class FlaModel {
 public:
  // tokenizer: path of a tokenizer.json; "": the folder's tokenizer.json, if it has one. Without a
  // tokenizer the model's task is "tokens": it reads and writes token numbers, not text. Throws
  // InputError if a file, field or tensor is missing, unknown or of the wrong size.
  static FlaModel Open(const std::string& folder, const std::string& tokenizer = "");

  const ModelSpec& spec() const { return spec_; }
  // kBf16 if every matrix is stored in BF16, otherwise kF32.
  Precision precision() const;
  // Number of safetensors files in the folder.
  size_t files() const { return files_.size(); }

  // Writes a model file in the precision that precision() returns. Throws InputError if a value is
  // not finite.
  void Write(const std::string& path, const std::string& training) const;

 private:
  // A tensor of the folder, or some of its rows. For a lower bound of hgrn: the whole tensor
  // model.lower_bounds, from which the bound is computed.
  struct Source {
    const Tensor* tensor;
    size_t first, count;  // elements
  };

  void OpenTensors(const std::string& folder);
  void CheckTensors();
  Source SourceOf(const TensorInfo& info) const;
  const Tensor& Fitting(const std::string& name, const std::vector<int64_t>& shape) const;

  std::string folder_;
  ModelSpec spec_;
  bool tied_ = false;  // the embedding is also the head
  std::list<SafetensorsFile> files_;
  std::map<std::string, const Tensor*> tensors_;  // of all files, by name
};

// Where flash-linear-attention's files hold a tensor of TensorTable(): in the tensor `name`, from
// row `first` on. `rows` is the number of all rows of `name`. Mamba-2 stores a layer's input
// projections as one tensor and its convolutions as another. Does not apply to hgrn's lower bounds,
// which are converted (SourceOf(), WriteFla()).
struct FlaPart {
  std::string name;
  int64_t first = 0, rows = 0;
};
FlaPart FlaPartOf(const MixerSpec& mixer, const TensorInfo& info);

// Whether a path is a folder with a config.json.
bool IsModelFolder(const std::string& path);

// Writes config.json, model.safetensors and, if the model has a tokenizer, tokenizer.json into a
// new or empty folder. Throws InputError for models that flash-linear-attention does not have.
void WriteFla(const Checkpoint& checkpoint, const std::string& folder);

}  // namespace linnet

#endif  // LINNET_MODEL_FLA_H_
