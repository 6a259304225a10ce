// Running a trained model as the RNN that it is: constant memory and time a token, no libtorch.
//
//   auto model = Model::Open("models/digits.safetensors");
//   Engine engine(model);                        // owns threads and scratch
//   State state = engine.NewState(/*batch=*/1);
//   std::vector<float> out(engine.output_size());
//   const int32_t token = 0;
//   engine.Step(state, {&token, 1}, out);        // the head's outputs for the next symbol
//   State fork = state.Clone();                  // two continuations of one past
//
// What a sequence gets does not depend on the number of threads nor on the other sequences of its
// batch, bit for bit; Prefix() and Step() agree to rounding.
#ifndef LINNET_RUNTIME_ENGINE_H_
#define LINNET_RUNTIME_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/thread_pool.h"
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
  // runtime cannot step.
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
  // Images: the probability of each first byte; empty for other tasks.
  std::span<const float> first_value() const;

  struct Packed;
  const Packed& packed() const { return *packed_; }

 private:
  explicit Model(std::unique_ptr<Packed> packed);
  std::unique_ptr<Packed> packed_;
};

// The memory of `batch` sequences that have read the same number of symbols. A value: Clone() forks
// it, a moved-from State is empty.
class State {
 public:
  State() = default;
  State(State&& other) noexcept { *this = std::move(other); }
  State& operator=(State&& other) noexcept {
    batch_ = std::exchange(other.batch_, 0);
    position_ = std::exchange(other.position_, 0);
    per_sequence_ = std::exchange(other.per_sequence_, 0);
    data_ = std::move(other.data_);
    recent_ = std::move(other.recent_);
    return *this;
  }
  size_t batch() const { return batch_; }
  size_t position() const { return position_; }  // symbols read so far
  size_t bytes() const {
    return data_.size() * sizeof(float) + recent_.size() * sizeof(recent_[0]);
  }
  State Clone() const;
  void Reset();  // back to before the first symbol

 private:
  friend class Engine;
  size_t batch_ = 0, position_ = 0, per_sequence_ = 0;
  AlignedBuffer<float> data_;    // [batch][layers]: s [heads, D, M], then z [heads, D]
  std::vector<int32_t> recent_;  // [batch, reach]: the symbol of position p at p mod reach
};

struct EngineOptions {
  int threads = 0;  // 0: one for each processor this process may run on
};

// Steps one model; owns its threads and its scratch. One call at a time.
class Engine {
 public:
  explicit Engine(std::shared_ptr<const Model> model, const EngineOptions& options = {});
  ~Engine();

  const Model& model() const { return *model_; }
  ThreadPool& pool() { return pool_; }
  size_t output_size() const;  // floats a position: the spec's OutputSize()

  State NewState(size_t batch) const;

  // Reads one symbol of each sequence: tokens [batch], outputs [batch, output_size]: the head's
  // outputs, from which the next symbol is drawn. Throws InputError on a symbol outside the
  // vocabulary, or past the last position the model has an embedding for; the state is then as it
  // was.
  void Step(State& state, std::span<const int32_t> tokens, std::span<float> outputs);

  // Reads `length` symbols of each sequence at once, through the chunked kernel: tokens
  // [batch, length]. outputs is empty, [batch, output_size] (of the last position) or
  // [batch, length, output_size]. Errors as for Step.
  void Prefix(State& state, std::span<const int32_t> tokens, size_t length,
              std::span<float> outputs);

 private:
  struct Scratch;
  std::shared_ptr<const Model> model_;
  ThreadPool pool_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_ENGINE_H_
