// A trained model with its weights packed for the engine.
//
//   auto model = Model::Open("models/digits.safetensors");
//   auto small = Model::Open("models/digits.safetensors", {.precision = Precision::kInt8});
#ifndef LINNET_MODEL_H_
#define LINNET_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "linnet/export.h"
#include "linnet/precision.h"
#include "linnet/spec.h"

namespace linnet {

class Checkpoint;

struct ModelOptions {
  // Precision of the matrix products; default: the file's. If it has fewer bits than the file's,
  // weights are rounded when they are packed. Compared with f32, a step reads half as many bytes of
  // matrices in bf16 and a quarter in int8. Activations are rounded to the matrix's type before
  // each product, and the states of linear attention are partly bf16
  // (docs/kernels/linear_step.md). Norms, residuals, outputs and the head of image models are f32.
  std::optional<Precision> precision;
};

// A model's weights, packed in the order in which a step reads them. Immutable: any number of
// engines in any threads may share a model.
class LINNET_API Model {
 public:
  // Throw InputError. Its message names the file and the fault, or a mixer kind that the engine
  // does not support. FromMemory() reads the bytes of a model file; `label` stands for its path.
  static std::shared_ptr<const Model> Open(const std::string& path,
                                           const ModelOptions& options = {});
  static std::shared_ptr<const Model> FromMemory(std::span<const std::byte> bytes,
                                                 const std::string& label,
                                                 const ModelOptions& options = {});
  static std::shared_ptr<const Model> FromCheckpoint(const Checkpoint& checkpoint,
                                                     const ModelOptions& options = {});
  ~Model();

  const ModelSpec& spec() const;
  const std::string& path() const;
  const std::string& training() const;  // the record of its training: JSON, or ""
  Precision precision() const;          // precision of the matrix products
  // Bytes of the packed weights and biases, without embedding tables. A step at batch 1 reads all
  // of them, except those that an encoder-decoder uses only to encode.
  size_t weight_bytes() const;
  // Hash of the spec, the precision of the products and the file's weights. Identifies the model.
  uint64_t fingerprint() const;
  // Whether the model runs as an RNN. Other models (such as a reformer) read the whole sequence at
  // each step.
  bool steps() const;
  // Maximum number of positions of a sequence. None: unlimited. Sine positions then continue past
  // the spec's max_length, although the model was not trained on them.
  std::optional<size_t> most_positions() const;
  // Images: the probability of each value of the first byte. Empty for other tasks, and if the
  // model reads whole pixels.
  std::span<const float> first_value() const;
  // Speech: each mel band's mean and standard deviation over the corpus; empty if each utterance is
  // normalized by its own statistics.
  std::span<const float> input_mean() const;
  std::span<const float> input_deviation() const;

  struct Packed;  // the packed weights, for linnet's own code
  const Packed& packed() const { return *packed_; }

 private:
  explicit Model(std::unique_ptr<Packed> packed);
  std::unique_ptr<Packed> packed_;
};

}  // namespace linnet

#endif  // LINNET_MODEL_H_
