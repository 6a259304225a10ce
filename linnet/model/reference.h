// Models of the Python library fast-transformers, by the names and shapes of their tensors: those
// of TensorTable(spec) but for first_value.probability, which only linnet keeps. Shapes tell nearly
// all of a model; ReferenceChoices is the rest.
//
//   PyTorchFile file = PyTorchFile::Open("model.pth");
//   const ReferenceModel model = FromReference(file.tensors(), file.path(), {.heads = 8});
//   WriteCheckpoint(path, model.spec(), "", [&](const TensorInfo& t) { return model.Tensor(t.name); });
#ifndef LINNET_MODEL_REFERENCE_H_
#define LINNET_MODEL_REFERENCE_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "linnet/io/safetensors.h"
#include "linnet/model/spec.h"

namespace linnet {

// What the tensors do not tell; of attention, beside the kind, a reformer's parameters. Defaults are the reference's, also of its reformer, which has 63 bits
// in its builder: twice as many buckets.
struct ReferenceChoices {
  int heads = 0;  // 0: not known
  Activation activation = Activation::kRelu;
  MixerSpec attention = {.lsh_buckets = 126, .lsh_variant = LshVariant::kSimple};
  bool norm_first = false;
  int width = 0, height = 0, channels = 0;  // of images; 0: those of MNIST or CIFAR-10, by length
};

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

 private:
  friend ReferenceModel FromKnownSpec(std::span<const linnet::Tensor>, const std::string&,
                                      const ModelSpec&);
  ReferenceModel() = default;
  void Take(std::span<const linnet::Tensor> tensors, const std::string& path);

  ModelSpec spec_;
  std::map<std::string, std::vector<float>> own_;  // converted, cut short, or made here
  std::map<std::string, std::span<const float>> tensors_;
  bool has_first_value_ = false;
};

// The name that linnet gives a tensor of the reference's: without the prefixes that wrappers add
// ("module.", "model.", "_orig_mod."), and with "transformer." before the names of a stack.
std::string ReferenceName(const std::string& name);

// The model that the tensors make. F16, BF16 and F64 are converted. Throws InputError, beginning
// with `path`: tensors that are missing or left over, a weight that is no number or beyond a float's
// range, or what is not known and how to say it.
ReferenceModel FromReference(std::span<const Tensor> tensors, const std::string& path,
                             const ReferenceChoices& choices);
// The same for a spec that is known.
ReferenceModel FromKnownSpec(std::span<const Tensor> tensors, const std::string& path,
                             const ModelSpec& spec);

}  // namespace linnet

#endif  // LINNET_MODEL_REFERENCE_H_
