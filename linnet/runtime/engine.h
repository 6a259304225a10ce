// Running a trained model as the RNN that it is: constant memory and time a token, no libtorch.
//
//   auto model = Model::Open("models/digits.safetensors");
//   Engine engine(model);                        // owns threads and scratch
//   State state = engine.NewState(/*batch=*/1);
//   std::vector<float> out(engine.output_size());
//   const int32_t token = 0;
//   engine.Step(state, {&token, 1}, out);        // the head's outputs for the next token
//   State fork = state.Clone();                  // two continuations of one past
//
// What a sequence gets does not depend on the number of threads nor on the other sequences of its
// batch, bit for bit; Prefix() and Step() agree to rounding. A model that is no RNN (Model::steps()) has
// its tokens for a state, and reads all of them again at each step.
//
// An encoder-decoder reads one sequence as well: its encoder takes what stands before the first
// Vocabulary::kSeparator, its decoder what follows, the separator included. Outputs before the separator are 0.
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

  // Of `batch` sequences that have read nothing. Throws InputError for none, for more than this
  // machine's memory holds, or where the model's layers see the future.
  State NewState(size_t batch) const;

  // Reads one token of each sequence: tokens [batch], outputs [batch, output_size]: the head's
  // outputs, from which the next token is drawn. Throws InputError on a token outside the
  // vocabulary, or past Model::most_positions(); the state is then as it was.
  void Step(State& state, std::span<const int32_t> tokens, std::span<float> outputs);

  // Reads `length` tokens of each sequence at once, through the chunked kernel (but with the feature
  // map rff, in steps within each layer): tokens
  // [batch, length]. outputs is empty, [batch, output_size] (of the last position) or
  // [batch, length, output_size]. Errors as for Step.
  void Prefix(State& state, std::span<const int32_t> tokens, size_t length,
              std::span<float> outputs);

  // The same for some sequences of a state, each named once: `tokens` and `outputs` are theirs, in
  // this order, and the others stay as they are.
  void Step(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
            std::span<float> outputs);
  void Prefix(State& state, std::span<const size_t> sequences, std::span<const int32_t> tokens,
              size_t length, std::span<float> outputs);

  // Pieces of different lengths at once, which costs the weights once: sequence i reads the next
  // lengths[i] of `tokens`. outputs is empty or [sequences, output_size], of each one's last position. Each
  // gets what it would get alone, to the bit.
  void Prefix(State& state, std::span<const size_t> sequences, std::span<const size_t> lengths,
              std::span<const int32_t> tokens, std::span<float> outputs);

  // Reads sequences from their first token to their last and keeps nothing: tokens [batch, length],
  // outputs [batch, output_size] (of the last position) or [batch, length, output_size]. Errors as for Step.
  void Whole(size_t batch, std::span<const int32_t> tokens, size_t length,
             std::span<float> outputs);

  // The same for models that read frames: [batch, length, spec().speech()->Inputs()].
  void Prefix(State& state, std::span<const float> frames, size_t length, std::span<float> outputs);
  void Whole(size_t batch, std::span<const float> frames, size_t length, std::span<float> outputs);

 private:
  // Tokens, or frames, of a call.
  struct Source {
    const int32_t* tokens = nullptr;
    const float* frames = nullptr;
    size_t width = 1;  // floats of a frame
    Source From(size_t position) const {
      return {tokens ? tokens + position : nullptr, frames ? frames + position * width : nullptr,
              width};
    }
  };
  // A sequence that is read from its beginning, and where its outputs go.
  struct Sequence {
    Source source;
    size_t length;
    float* outputs;
    bool only_last;
  };

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
  // What sequences' positions are to the layers: in a decoder, those behind the first part.
  const size_t* Positions(State& state);
  void Passed(State& state, size_t place, Source source, size_t length) const;

  struct Scratch;
  std::shared_ptr<const Model> model_;
  ThreadPool pool_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_ENGINE_H_
