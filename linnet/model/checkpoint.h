// A model file: safetensors with two entries in its metadata. "linnet" is the ModelSpec. "training"
// is a record of the training: JSON for people and tools, not used when the model is loaded.
//
//   Checkpoint checkpoint = Checkpoint::Open("models/digits.safetensors");
//   std::span<const float> w = checkpoint.Tensor("predictor.weight");
//
// Files may come from anywhere, so opening one validates the spec and checks that each tensor of
// TensorTable(spec) is present, has the right shape, and is stored as F32, BF16 or, for matrices,
// I8 (precision.h). A file may leave out its table of sinusoidal position embeddings, which is then
// computed (HasComputedPositions()).
#ifndef LINNET_MODEL_CHECKPOINT_H_
#define LINNET_MODEL_CHECKPOINT_H_

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/function_ref.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/precision.h"
#include "linnet/model/spec.h"

namespace linnet {

class Checkpoint {
 public:
  // Maps the file at `path` into memory or, if `path` is the folder of a training run, the folder's
  // model.safetensors. Throws InputError naming the file and the fault; for a PyTorch file, the
  // message suggests 'linnet import'.
  static Checkpoint Open(const std::string& path);
  // Reads from memory, which must outlive the Checkpoint; `label` replaces the path in messages.
  static Checkpoint FromMemory(std::span<const std::byte> bytes, const std::string& label);

  const ModelSpec& spec() const { return spec_; }
  const std::string& path() const { return file_.path(); }
  // The "training" metadata: JSON, or "" if the file has none.
  const std::string& training() const { return training_; }
  // The lowest precision of any stored matrix.
  Precision precision() const { return precision_; }
  // A tensor of TensorTable(spec()), row-major; BF16 and I8 are converted to float.
  std::span<const float> Tensor(const std::string& name) const;
  bool Has(const std::string& name) const;
  const SafetensorsFile& file() const { return file_; }

 private:
  explicit Checkpoint(SafetensorsFile file);

  SafetensorsFile file_;
  ModelSpec spec_;
  std::string training_;
  Precision precision_ = Precision::kF32;
  // The BF16 and I8 tensors, converted to floats, and a computed position table.
  std::map<std::string, AlignedBuffer<float>, std::less<>> widened_;
};

// Whether a file may leave out this tensor of TensorTable(spec), because PositionTable(spec)
// computes it. True only for the position table, if it has at most 2^26 values.
bool HasComputedPositions(const ModelSpec& spec, const std::string& tensor_name);

// Throws InputError naming file and tensor if a value is infinite or NaN.
void CheckFinite(std::span<const float> values, const std::string& path,
                 const std::string& tensor_name);

// Writes a model file atomically. `tensor` returns the data of each tensor of TensorTable(spec),
// which must stay valid during the call.
void WriteCheckpoint(const std::string& path, const ModelSpec& spec, const std::string& training,
                     FunctionRef<std::span<const float>(const TensorInfo&)> tensor);

// The file of a model: `path`, or the model.safetensors of a folder. Throws InputError for a folder
// without one.
std::string ModelFile(const std::string& path);

// The display name of a model: "digits" for models/digits.safetensors, and the folder's name for a
// training run (runs/text or runs/text/model.safetensors: "text").
std::string ModelName(const std::string& path);

}  // namespace linnet

#endif  // LINNET_MODEL_CHECKPOINT_H_
