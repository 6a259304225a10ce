// Language models of RWKV-7 as BlinkDL's programs save them: a state_dict with emb, blocks.N.att,
// blocks.N.ffn, ln_out and head. Sizes and ranks come from the tensors' shapes.
//
//   PyTorchFile file = PyTorchFile::Open("RWKV-x070-World-0.1B.pth");
//   if (IsRwkv(file.tensors())) RwkvModel::Of(file.tensors(), file.path()).Write(path, training);
//
// The imported model reads and writes token numbers, because the file has no tokenizer.
#ifndef LINNET_MODEL_RWKV_H_
#define LINNET_MODEL_RWKV_H_

#include <map>
#include <span>
#include <string>

#include "linnet/io/safetensors.h"
#include "linnet/model/spec.h"
#include "linnet/precision.h"

namespace linnet {

// Whether the tensors have the names of an RWKV model, of any version.
bool IsRwkv(std::span<const Tensor> tensors);

class RwkvModel {
 public:
  // The tensors' data must outlive the model. context: the longest sequence in training. Throws
  // InputError, with a message that begins with `path`, for an earlier version of RWKV, and for
  // tensors that are missing, unknown or of the wrong size.
  static RwkvModel Of(std::span<const Tensor> tensors, const std::string& path, int context = 4096);

  const ModelSpec& spec() const { return spec_; }
  // kBf16 if every matrix is BF16, otherwise kF32.
  Precision precision() const;

  // Writes a model file in the precision that precision() returns. Throws InputError if a value is
  // not finite.
  void Write(const std::string& path, const std::string& training) const;

 private:
  const Tensor& Get(const std::string& name) const;
  // Size of an axis of a tensor, which must have two axes.
  int Size(const std::string& name, size_t axis) const;
  void ReadSpec(int context);
  void CheckTensors() const;

  std::string path_;
  ModelSpec spec_;
  std::map<std::string, const Tensor*> tensors_;
};

// The name of a tensor of TensorTable() in BlinkDL's files, and whether they hold its transpose.
struct RwkvPart {
  std::string name;
  bool transposed = false;
};
RwkvPart RwkvPartOf(const std::string& tensor);

}  // namespace linnet

#endif  // LINNET_MODEL_RWKV_H_
