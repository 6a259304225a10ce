// Models of the Python library fast-transformers, by the names and shapes of their tensors: those of
// TensorTable(spec) but for first_value.probability, which only linnet keeps. Shapes tell nearly all
// of a model; ReferenceChoices is the rest.
//
//   PyTorchFile file = PyTorchFile::Open("model.pth");
//   const ReferenceModel model = FromReference(file.tensors(), file.path(), {.heads = 8});
//   WriteCheckpoint(path, model.spec(), "", [&](const TensorInfo& t) { return model.Tensor(t.name); });
//
// The head tells images (logistics over 256 byte values) from tokens (an output each). A vocabulary of
// 259 is linnet's bytes, one of 256 bytes without the special tokens of model/vocabulary.h; one of
// characters needs `characters`. Others are of the copy task.
#ifndef LINNET_MODEL_REFERENCE_H_
#define LINNET_MODEL_REFERENCE_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "linnet/io/safetensors.h"
#include "linnet/model/spec.h"

namespace linnet {

// What the tensors do not tell. Defaults are those of fast-transformers: its reformer builder has 63
// bits, which make twice as many buckets.
struct ReferenceChoices {
  int heads = 0;  // 0: not known
  Activation activation = Activation::kRelu;
  // Kind and parameters; the sizes come from the tensors. A random feature map's number of features is
  // needed where omega does not tell it.
  MixerSpec attention = {.lsh_buckets = 126, .lsh_variant = LshVariant::kSimple};
  bool norm_first = false;
  int width = 0, height = 0, channels = 0;  // of images; 0: those of MNIST or CIFAR-10, by length
  std::string task = {};                    // one of ReferenceTasks(); "": by the shapes
  std::string characters = {};              // the text's vocabulary, as in TextSpec; "": bytes
  int context = 1024;                       // max_length of a model without a table of positions
};

// Tasks of the models that tensors make.
std::vector<std::string> ReferenceTasks();

class ReferenceModel {
 public:
  ReferenceModel(ReferenceModel&&) = default;  // a copy's views would be of the original
  ReferenceModel& operator=(ReferenceModel&&) = default;

  const ModelSpec& spec() const { return spec_; }
  // Of every name in TensorTable(spec()). Lives as long as the model and the tensors it came from.
  std::span<const float> Tensor(const std::string& name) const { return tensors_.at(name); }
  // Replaces the first byte's distribution, [vocabulary], which is uniform unless the file has it.
  void SetFirstValue(std::vector<float> probability);
  // The file has a first_value.probability, as what linnet wrote may.
  bool has_first_value() const { return has_first_value_; }
  // The file's vocabulary had no special tokens. They stand in front of it now, with embeddings of
  // zeros and outputs so low that they are never drawn.
  bool adds_special_tokens() const { return special_tokens_ > 0; }

 private:
  friend ReferenceModel FromReference(std::span<const linnet::Tensor>, const std::string&,
                                      const ReferenceChoices&);
  friend ReferenceModel FromKnownSpec(std::span<const linnet::Tensor>, const std::string&,
                                      const ModelSpec&);
  ReferenceModel() = default;
  void Take(std::span<const linnet::Tensor> tensors, const std::string& path);

  ModelSpec spec_;
  std::map<std::string, std::vector<float>> own_;  // converted, cut short, or made here
  std::map<std::string, std::span<const float>> tensors_;
  bool has_first_value_ = false;
  int special_tokens_ = 0;   // rows that are put in front of the vocabulary's
  bool both_signs_ = false;  // a file's omega stands for [omega, -omega]
};

// The name that linnet gives a tensor of fast-transformers: without the prefixes that wrappers add
// ("module.", "model.", "_orig_mod."), and with "transformer." before the names of a stack.
std::string ReferenceName(const std::string& name);

// The model that the tensors make. F16, BF16 and F64 are converted. Throws InputError, beginning with
// `path`: parts of models (a stack, a decoder), tensors that are missing or left over, a weight that is
// NaN or beyond a float's range, or what is not known and how to say it.
ReferenceModel FromReference(std::span<const Tensor> tensors, const std::string& path,
                             const ReferenceChoices& choices);
// The same for a spec that is known.
ReferenceModel FromKnownSpec(std::span<const Tensor> tensors, const std::string& path,
                             const ModelSpec& spec);

}  // namespace linnet

#endif  // LINNET_MODEL_REFERENCE_H_
