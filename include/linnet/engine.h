// Runs a trained model as an RNN: constant memory and time per token, no libtorch.
//
//   auto model = Model::Open("models/digits.safetensors");
//   Engine engine(model);                        // owns threads and scratch
//   State state = engine.NewState(/*batch=*/1);
//   std::vector<float> out(engine.output_size());
//   const int32_t token = 0;
//   engine.Step(state, {&token, 1}, out);        // the head's outputs for the next token
//   State fork = state.Clone();                  // two continuations of one prefix
//
// The outputs of a sequence do not depend on the number of threads or on the other sequences of its
// batch, bit for bit. Nor do they depend on how a text is divided into calls of Prefix(), if these
// calls end at multiples of kCutPositions positions (and none has a single frame). Prefix() and
// Step() give the same outputs, up to rounding; with patches (PatchSpec), bit for bit, wherever
// calls end. A model without recurrent state (Model::steps() is false) keeps its tokens as its
// state and reads all of them again at each step.
//
// An encoder-decoder also reads a single token sequence: its encoder reads the tokens before the
// first Vocabulary::kSeparator, its decoder the separator and the tokens after it. Outputs before
// the separator are 0.
#ifndef LINNET_ENGINE_H_
#define LINNET_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "linnet/export.h"
#include "linnet/model.h"
#include "linnet/state.h"

namespace linnet {

class ThreadPool;

struct EngineOptions {
  int threads = 0;  // 0: one per processor available to this process
};

// Steps one model. Owns its threads and its scratch memory. Allows only one call at a time.
class LINNET_API Engine {
 public:
  // Prefix() computes a text in pieces that end at multiples of this many positions, counted from
  // the beginning of the text.
  static constexpr size_t kCutPositions = 32;

  explicit Engine(std::shared_ptr<const Model> model, const EngineOptions& options = {});
  ~Engine();

  const Model& model() const;
  int threads() const;
  size_t output_size() const;  // floats per position: the spec's OutputSize()

  // A state of `batch` sequences that have read nothing. Throws InputError if `batch` is 0, if the
  // state exceeds this machine's memory, or if the model is not causal or reads frames without a
  // recurrent state.
  State NewState(size_t batch) const;

  // Reads one token of each sequence: tokens [batch] -> outputs [batch, output_size], the head's
  // outputs, from which the next token is drawn. Throws InputError for a token outside the
  // vocabulary or a position past Model::most_positions(); the state is then unchanged.
  void Step(State& state, std::span<const int32_t> tokens, std::span<float> outputs);

  // Reads `length` tokens of each sequence in one pass over the layers: tokens [batch, length];
  // outputs is empty, [batch, output_size] (last position only) or [batch, length, output_size].
  // Linear attention runs its chunked kernel; if its feature map is rff, it runs single steps.
  // Errors as for Step.
  void Prefix(State& state, std::span<const int32_t> tokens, size_t length,
              std::span<float> outputs);

  // As Prefix(), but outputs and state are bit-identical to those of one call of Step() for each
  // position. The weights are read once, so a few positions take little longer than one step. (A
  // model without recurrent state saves nothing: it reads all its tokens again for each position.)
  void Steps(State& state, std::span<const int32_t> tokens, size_t length,
             std::span<float> outputs);

  // Step() and Prefix() for a subset of the state's sequences, given by distinct indices: `tokens`
  // and `outputs` are in the order of `sequences`. The state's other sequences are unchanged.
  void Step(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
            std::span<float> outputs);
  void Prefix(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
              size_t length, std::span<float> outputs);

  // Reads prefixes of different lengths in one call, so that sequences share reads of the weights
  // where possible: sequence sequences[i] reads the next lengths[i] elements of `tokens`. outputs
  // is empty or [sequences.size(), output_size]: the outputs of each sequence's last position.
  // Results are bit-identical to those of separate calls.
  void Prefix(State& state, std::span<const size_t> sequences, std::span<const size_t> lengths,
              std::span<const int32_t> tokens, std::span<float> outputs);

  // Reads whole sequences without keeping a state: tokens [batch, length] -> outputs
  // [batch, output_size] (last position only) or [batch, length, output_size]. Errors as for Step.
  void Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
             std::span<float> outputs);

  // Prefix() and Whole() for models that read frames [batch, length, spec().speech()->Inputs()]. A
  // single frame is read as in a step.
  void Prefix(State& state, std::span<const float> frames, size_t length, std::span<float> outputs);
  void Whole(size_t batch, std::span<const float> frames, size_t length, std::span<float> outputs);

  // The engine's threads, for linnet's own tasks.
  ThreadPool& pool();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet

#endif  // LINNET_ENGINE_H_
