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
// batch, bit for bit. Prefix() and Step() agree to rounding. A model without recurrent state
// (Model::steps() is false) keeps its tokens as its state and reads all of them again at each step.
//
// An encoder-decoder also reads one sequence: its encoder takes the tokens before the first
// Vocabulary::kSeparator, its decoder the separator and the tokens after it. Outputs before the
// separator are 0.
#ifndef LINNET_RUNTIME_ENGINE_H_
#define LINNET_RUNTIME_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "linnet/base/thread_pool.h"
#include "linnet/runtime/model.h"
#include "linnet/runtime/state.h"

namespace linnet {

struct EngineOptions {
  int threads = 0;  // 0: one per processor available to this process
};

// Steps one model. Owns its threads and its scratch memory. One call at a time.
class Engine {
 public:
  explicit Engine(std::shared_ptr<const Model> model, const EngineOptions& options = {});
  ~Engine();

  const Model& model() const { return *model_; }
  ThreadPool& pool() { return pool_; }
  size_t output_size() const;  // floats per position: the spec's OutputSize()

  // A state of `batch` sequences that have read nothing. Throws InputError if `batch` is 0, if the
  // state exceeds this machine's memory, or if the model is not causal or reads frames without a
  // recurrent state.
  State NewState(size_t batch) const;

  // Reads one token of each sequence: tokens [batch] -> outputs [batch, output_size], the head's
  // outputs, from which the next token is drawn. Throws InputError for a token outside the
  // vocabulary or a position past Model::most_positions(); the state is then unchanged.
  void Step(State& state, std::span<const int32_t> tokens, std::span<float> outputs);

  // Reads `length` tokens of each sequence at once with the chunked kernel (feature map rff: step
  // by step within each layer): tokens [batch, length]; outputs is empty, [batch, output_size]
  // (last position only) or [batch, length, output_size]. Errors as for Step.
  void Prefix(State& state, std::span<const int32_t> tokens, size_t length,
              std::span<float> outputs);

  // The same for a subset of a state's sequences, given by distinct indices: `tokens` and `outputs`
  // are in this order, and the other sequences are unchanged.
  void Step(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
            std::span<float> outputs);
  void Prefix(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
              size_t length, std::span<float> outputs);

  // Prefixes of different lengths in one call, which shares reads of the weights where possible:
  // sequence i reads the next lengths[i] of `tokens`. outputs is empty or [sequences, output_size],
  // for each one's last position. Each result is bit-identical to that of a separate call.
  void Prefix(State& state, std::span<const size_t> sequences, std::span<const size_t> lengths,
              std::span<const int32_t> tokens, std::span<float> outputs);

  // Reads whole sequences without keeping a state: tokens [batch, length] -> outputs
  // [batch, output_size] (last position only) or [batch, length, output_size]. Errors as for Step.
  void Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
             std::span<float> outputs);

  // The same for models that read frames [batch, length, spec().speech()->Inputs()].
  void Prefix(State& state, std::span<const float> frames, size_t length, std::span<float> outputs);
  void Whole(size_t batch, std::span<const float> frames, size_t length, std::span<float> outputs);

 private:
  // Tokens or frames passed to a call.
  struct Source {
    const int32_t* tokens = nullptr;
    const float* frames = nullptr;
    size_t width = 1;  // floats per frame
    Source From(size_t position) const {
      return {tokens ? tokens + position : nullptr, frames ? frames + position * width : nullptr,
              width};
    }
  };
  // A sequence read from its first position, and the destination of its outputs.
  struct Sequence {
    Source source;
    size_t length;
    float* outputs;
    bool only_last;
  };

  // The threads of a call. If `alone`, each runs its own sequences through all layers without
  // barriers. Otherwise all threads run all sequences together, splitting each layer.
  struct Division {
    size_t threads;
    bool few = false;  // a step of so few sequences that one thread may be faster
    bool alone = false;
  };

  Division Divide(size_t batch, size_t length);
  // Calls walk(0), .., walk(threads - 1), each on its thread. If `few`, times the call
  // for Divide()'s next choice between one thread and all.
  void RunOn(const Division& division, FunctionRef<void(int)> walk);
  void Read(State& state, const size_t* chosen, size_t batch, std::span<const int32_t> tokens,
            size_t length, std::span<float> outputs);
  void ReadRows(State& state, const size_t* chosen, size_t batch, Source source, size_t length,
                std::span<float> outputs);
  void ReadAgain(State& state, const size_t* chosen, size_t batch, std::span<const int32_t> tokens,
                 size_t length, std::span<float> outputs);
  void ReadPair(State& state, const size_t* chosen, size_t batch, std::span<const int32_t> tokens,
                size_t length, std::span<float> outputs);
  void ReadUnequal(State& state, std::span<const size_t> sequences, std::span<const size_t> offsets,
                   std::span<const int32_t> tokens, std::span<float> outputs);
  void Encode(State& state, size_t place);
  void ReadWhole(std::span<const Sequence> sequences);
  void CheckPlaces(const State& state, const size_t* chosen, size_t batch, size_t length) const;
  void CheckTokens(std::span<const int32_t> tokens) const;
  void CheckLength(size_t length) const;
  void CheckFirstPart(State& state, size_t place, std::span<const int32_t> tokens) const;
  size_t CheckFrames(size_t batch, std::span<const float> frames, size_t length,
                     std::span<const float> outputs) const;
  bool CheckOutputs(size_t batch, size_t length, std::span<const float> outputs) const;
  // The sequences' positions as the layers count them: in a decoder, from the separator on.
  const size_t* Positions(State& state);
  void Passed(State& state, size_t place, Source source, size_t length) const;

  struct Scratch;
  std::shared_ptr<const Model> model_;
  ThreadPool pool_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_ENGINE_H_
