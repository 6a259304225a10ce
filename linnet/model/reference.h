// Imports models of the Python library fast-transformers by the names and shapes of their tensors.
// The names are those of TensorTable(spec), but first_value.probability, which only linnet has, is
// optional. Names and shapes determine nearly all of a spec; ReferenceChoices holds the rest.
// "Reference" in identifiers here means fast-transformers, not a kernel's double-precision twin.
//
//   PyTorchFile file = PyTorchFile::Open("model.pth");
//   const ReferenceModel model = FromReference(file.tensors(), file.path(), {.heads = 8});
//   WriteCheckpoint(path, model.spec(), "",
//                   [&](const TensorInfo& t) { return model.Tensor(t.name); });
//
// A head of logistics over 256 byte values is one of images; one output per token belongs to the
// other tasks, and to images if there are 256 tokens and a choice or first_value.probability speaks
// of images. A vocabulary of 259 tokens is linnet's bytes; 256 tokens are bytes without the special
// tokens of linnet/vocabulary.h; a character vocabulary needs `characters`. Any other vocabulary
// belongs to the copy task.
#ifndef LINNET_MODEL_REFERENCE_H_
#define LINNET_MODEL_REFERENCE_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "linnet/io/safetensors.h"
#include "linnet/model/spec.h"

namespace linnet {

// Properties that the tensors do not determine. Defaults are those of fast-transformers: its
// reformer builder has bits = 63, which means 126 buckets.
struct ReferenceChoices {
  int heads = 0;  // 0: unknown
  Activation activation = Activation::kRelu;
  // Kind and parameters; sizes come from the tensors. The number of random features is needed if
  // omega does not determine it.
  MixerSpec attention = {.lsh_buckets = 126, .lsh_variant = LshVariant::kSimple};
  bool norm_first = false;
  // Sizes of images. If all are 0: those of MNIST or CIFAR-10, by the number of positions.
  int width = 0, height = 0, channels = 0;
  bool images = false;          // whether it is a model of images, if the shapes leave that open
  std::string task = {};        // one of ReferenceTasks(); "": determined by the shapes
  std::string characters = {};  // the text vocabulary, as in TextSpec; "": bytes
  int context = 1024;           // max_length of a model without a position table
};

// Tasks of importable models.
std::vector<std::string> ReferenceTasks();

class ReferenceModel {
 public:
  ReferenceModel(ReferenceModel&&) = default;  // a copy's spans would point into the original
  ReferenceModel& operator=(ReferenceModel&&) = default;

  const ModelSpec& spec() const { return spec_; }
  // A tensor of TensorTable(spec()), valid as long as this model and the imported tensors exist.
  std::span<const float> Tensor(const std::string& name) const { return tensors_.at(name); }
  // Sets the distribution of the first byte, [vocabulary]. The default is the file's distribution
  // or, if the file has none, the uniform one.
  void SetFirstValue(std::vector<float> probability);
  // Whether the file has a first_value.probability, as a file written by linnet may.
  bool has_first_value() const { return has_first_value_; }
  // Whether the file's vocabulary lacks the special tokens. They are then inserted before its
  // tokens, with zero embeddings and with logits so low that they are never sampled.
  bool adds_special_tokens() const { return special_tokens_ > 0; }

 private:
  friend ReferenceModel FromReference(std::span<const linnet::Tensor>, const std::string&,
                                      const ReferenceChoices&);
  friend ReferenceModel FromKnownSpec(std::span<const linnet::Tensor>, const std::string&,
                                      const ModelSpec&);
  ReferenceModel() = default;
  void Take(std::span<const linnet::Tensor> tensors, const std::string& path);

  ModelSpec spec_;
  std::map<std::string, std::vector<float>> own_;  // converted, extended or created here
  std::map<std::string, std::span<const float>> tensors_;
  bool has_first_value_ = false;
  int special_tokens_ = 0;   // number of rows inserted before the vocabulary's rows
  bool both_signs_ = false;  // each row of the file's omega is extended by its negative
};

// linnet's name for a tensor of fast-transformers: without the prefixes of wrappers ("module.",
// "model.", "_orig_mod."), and with "transformer." before the names of a stack.
std::string ReferenceName(const std::string& name);

// Converts `count` elements, from index `first` on, of an F32, F16, BF16 or F64 tensor to floats.
// Values beyond a float's range become infinity. Throws InputError for other types.
std::vector<float> ToFloats(const Tensor& tensor, size_t first, size_t count);

// Whether a tensor is F32, F16 or BF16 and has this shape, not counting axes of size 1.
bool HoldsFloats(const Tensor& tensor, const std::vector<int64_t>& shape);

// Imports a model from its tensors. F16, BF16 and F64 are converted. Throws InputError, with a
// message that begins with `path`, for parts of models (a stack, a decoder), missing or extra
// tensors, and a weight that is NaN or beyond a float's range. If the tensors do not determine a
// property, the message names the options that specify it.
ReferenceModel FromReference(std::span<const Tensor> tensors, const std::string& path,
                             const ReferenceChoices& choices);
// Like FromReference(), for a spec that is already known.
ReferenceModel FromKnownSpec(std::span<const Tensor> tensors, const std::string& path,
                             const ModelSpec& spec);

}  // namespace linnet

#endif  // LINNET_MODEL_REFERENCE_H_
