// A trained model, ready to run: its weights packed for the engine.
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
  // What its matrices are multiplied in; without one, what the file has them in. Narrower than the
  // file: they are rounded as they are packed. bf16 and int8 read a half and a quarter of the bytes a
  // step; activations are rounded to the same type before each product, and everything else (sums,
  // the state, norms, outputs) is fp32.
  std::optional<Precision> precision;
};

// A model's weights, packed in the order in which they are read. Immutable: any number of engines,
// in any threads, may share one.
class Model {
 public:
  // Throws InputError naming the file and what is wrong with it, or the attention kind that this
  // runtime does not run.
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
  Precision precision() const;          // that it runs in
  // Bytes that one step at batch 1 must read: the packed weights and biases.
  size_t weight_bytes() const;
  // Of the description and every weight as it runs: what tells one model from another.
  uint64_t fingerprint() const;
  // Whether it runs as an RNN. What does not (a reformer, say) reads everything again at each step.
  bool steps() const;
  // Positions that a sequence can have; none: any number, since sine positions go on behind those of
  // training (spec().input.max_length), which the model has not seen.
  std::optional<size_t> most_positions() const;
  // Images: the probability of each first byte; empty for other tasks.
  std::span<const float> first_value() const;
  // Speech: each band's mean and deviation over the corpus; empty where utterances normalize themselves.
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
