// A trained model with its weights packed for the engine.
//
//   auto model = Model::Open("models/digits.safetensors");
//   auto small = Model::Open("models/digits.safetensors", {.precision = Precision::kInt8});
#ifndef LINNET_RUNTIME_MODEL_H_
#define LINNET_RUNTIME_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "linnet/model/checkpoint.h"
#include "linnet/model/precision.h"

namespace linnet {

struct ModelOptions {
  // Precision of the matrix products; default: that of the file. If it is narrower than the file's,
  // weights are rounded as they are packed. bf16 and int8 read a half and a quarter of the bytes
  // per step. Activations are rounded to the same type before each product; everything else (sums,
  // the state, norms, outputs) is fp32.
  std::optional<Precision> precision;
};

// A model's weights, packed in the order in which they are read. Immutable: any number of engines
// in any threads may share one.
class Model {
 public:
  // Throws InputError naming the file and the fault, or the mixer kind that this runtime lacks.
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
  const std::string& training() const;  // Checkpoint::training()
  Precision precision() const;          // precision of the matrix products
  // Bytes that one step at batch 1 reads: the packed weights and biases.
  size_t weight_bytes() const;
  // Hash of the spec and of every weight as it runs. Identifies the model.
  uint64_t fingerprint() const;
  // Whether it runs as an RNN. Other models (a reformer, say) read the whole sequence at each step.
  bool steps() const;
  // Maximum number of positions of a sequence. None: unlimited, since sine positions continue past
  // those of training (spec().input.max_length); the model has not been trained on those.
  std::optional<size_t> most_positions() const;
  // Images: the probability of each first byte; empty for other tasks.
  std::span<const float> first_value() const;
  // Speech: each band's mean and deviation over the corpus; empty if each utterance is normalized
  // by its own statistics.
  std::span<const float> input_mean() const;
  std::span<const float> input_deviation() const;

  struct Packed;
  const Packed& packed() const { return *packed_; }

 private:
  explicit Model(std::unique_ptr<Packed> packed);
  std::unique_ptr<Packed> packed_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_MODEL_H_
