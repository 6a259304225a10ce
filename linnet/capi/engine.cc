// Engines, states, and the functions that read tokens and frames.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "linnet/capi/capi.h"
#include "linnet/rng.h"

namespace linnet::capi {
namespace {

Engine& EngineOf(linnet_engine* engine) { return Given(engine, "the engine").engine; }
const Engine& EngineOf(const linnet_engine* engine) { return Given(engine, "the engine").engine; }
State& StateOf(linnet_state* state) { return Given(state, "the state").state; }
const State& StateOf(const linnet_state* state) { return Given(state, "the state").state; }

// Returns a new handle of the state that make() returns, or null on failure.
template <class Make>
linnet_state* NewState(const Make& make) {
  return ValueOf<linnet_state*>(nullptr, [&] { return new linnet_state{make()}; });
}

// A caller's array for the outputs of `rows` positions; an empty span if the array is null.
std::span<float> OptionalOutputs(const Engine& engine, float* outputs, size_t rows) {
  if (outputs == nullptr) return {};
  return {outputs, Product({rows, engine.output_size()})};
}
std::span<float> Outputs(const Engine& engine, float* outputs, size_t rows) {
  Given(outputs, "outputs");
  return OptionalOutputs(engine, outputs, rows);
}

// Returns the number of floats per frame. Throws InputError if the model reads tokens.
size_t FrameWidth(const Engine& engine) {
  const ModelSpec& spec = engine.model().spec();
  if (!spec.ReadsFrames()) {
    throw InputError(engine.model().path(), ": a model of the task '", spec.task,
                     "', which reads tokens, not frames");
  }
  return static_cast<size_t>(spec.speech()->Inputs());
}

void CheckCount(size_t count) {
  if (count == 0) throw InputError("the number of sequences is 0; name at least one");
}

}  // namespace
}  // namespace linnet::capi

using namespace linnet::capi;

extern "C" {

linnet_engine* linnet_engine_new(const linnet_model* model, int threads) {
  return ValueOf<linnet_engine*>(nullptr, [&] {
    if (threads < 0 || threads > 1024) {
      throw linnet::InputError("an engine has 0 (one per processor) to 1024 threads, not ",
                               threads);
    }
    return new linnet_engine(Given(model, "the model").model, threads);
  });
}
void linnet_engine_free(linnet_engine* engine) { delete engine; }

int linnet_engine_threads(const linnet_engine* engine) {
  return ValueOf(0, [&] { return Given(engine, "the engine").threads; });
}

linnet_state* linnet_state_new(const linnet_engine* engine, size_t batch) {
  return NewState([&] { return EngineOf(engine).NewState(batch); });
}
void linnet_state_free(linnet_state* state) { delete state; }

linnet_state* linnet_state_clone(const linnet_state* state) {
  return NewState([&] { return StateOf(state).Clone(); });
}
linnet_state* linnet_state_fork(const linnet_state* state, size_t copies) {
  return NewState([&] { return StateOf(state).Fork(copies); });
}
linnet_state* linnet_state_select(const linnet_state* state, const size_t* sequences,
                                  size_t count) {
  return NewState([&] {
    CheckCount(count);
    return StateOf(state).Select(Array(sequences, count, "sequences"));
  });
}
int linnet_state_append(linnet_state* state, const linnet_state* other) {
  return StatusOf([&] { StateOf(state).Append(Given(other, "the other state").state); });
}
int linnet_state_assign(linnet_state* state, size_t sequence, const linnet_state* other) {
  return StatusOf([&] { StateOf(state).Assign(sequence, Given(other, "the other state").state); });
}
int linnet_state_reset(linnet_state* state) {
  return StatusOf([&] { StateOf(state).Reset(); });
}
int linnet_state_reset_sequence(linnet_state* state, size_t sequence) {
  return StatusOf([&] { StateOf(state).Reset(sequence); });
}

size_t linnet_state_batch(const linnet_state* state) {
  return ValueOf<size_t>(0, [&] { return StateOf(state).batch(); });
}
size_t linnet_state_position(const linnet_state* state, size_t sequence) {
  return ValueOf<size_t>(0, [&] { return StateOf(state).position(sequence); });
}
size_t linnet_state_bytes(const linnet_state* state) {
  return ValueOf<size_t>(0, [&] { return StateOf(state).bytes(); });
}
int linnet_state_save(const linnet_state* state, const linnet_engine* engine, const char* path) {
  return StatusOf([&] {
    Given(path, "the path");
    StateOf(state).Save(path, EngineOf(engine).model());
  });
}
linnet_state* linnet_state_load(const linnet_engine* engine, const char* path) {
  return NewState([&] {
    Given(path, "the path");
    return linnet::State::Load(path, EngineOf(engine).model());
  });
}

int linnet_state_save_memory(const linnet_state* state, const linnet_engine* engine, void* bytes,
                             size_t capacity, size_t* size) {
  return StatusOf([&] {
    Given(size, "the size") = 0;
    const std::vector<std::byte> file = StateOf(state).ToBytes(EngineOf(engine).model());
    *size = file.size();
    CopyOut(file.data(), file.size(), static_cast<std::byte*>(bytes), capacity);
  });
}
linnet_state* linnet_state_load_memory(const linnet_engine* engine, const void* bytes,
                                       size_t size) {
  return NewState([&] {
    const auto file = Array(static_cast<const std::byte*>(bytes), size, "the state in memory");
    return linnet::State::FromBytes(file, "memory", EngineOf(engine).model());
  });
}

int linnet_step(linnet_engine* engine, linnet_state* state, const int32_t* tokens, float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    const size_t batch = StateOf(state).batch();
    runs.Step(StateOf(state), Array(tokens, batch, "tokens"), Outputs(runs, outputs, batch));
  });
}

int linnet_step_sequences(linnet_engine* engine, linnet_state* state, const size_t* sequences,
                          size_t count, const int32_t* tokens, float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    CheckCount(count);
    runs.Step(StateOf(state), Array(sequences, count, "sequences"), Array(tokens, count, "tokens"),
              Outputs(runs, outputs, count));
  });
}

int linnet_prefix(linnet_engine* engine, linnet_state* state, const int32_t* tokens, size_t length,
                  float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    const size_t batch = StateOf(state).batch();
    runs.Prefix(StateOf(state), Array(tokens, Product({batch, length}), "tokens"), length,
                OptionalOutputs(runs, outputs, batch));
  });
}

int linnet_prefix_all(linnet_engine* engine, linnet_state* state, const int32_t* tokens,
                      size_t length, float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    const size_t rows = Product({StateOf(state).batch(), length});
    runs.Prefix(StateOf(state), Array(tokens, rows, "tokens"), length,
                Outputs(runs, outputs, rows));
  });
}

int linnet_prefix_sequences(linnet_engine* engine, linnet_state* state, const size_t* sequences,
                            const size_t* lengths, size_t count, const int32_t* tokens,
                            float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    CheckCount(count);
    const std::span<const size_t> each = Array(lengths, count, "lengths");
    size_t total = 0;
    for (const size_t length : each) {
      if (length > std::numeric_limits<size_t>::max() - total) {
        throw linnet::InputError("the sum of the lengths is too large");
      }
      total += length;
    }
    runs.Prefix(StateOf(state), Array(sequences, count, "sequences"), each,
                Array(tokens, total, "tokens"), OptionalOutputs(runs, outputs, count));
  });
}

int linnet_whole(linnet_engine* engine, const int32_t* tokens, size_t batch, size_t length,
                 float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    runs.Whole(batch, Array(tokens, Product({batch, length}), "tokens"), length,
               Outputs(runs, outputs, batch));
  });
}

int linnet_whole_all(linnet_engine* engine, const int32_t* tokens, size_t batch, size_t length,
                     float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    const size_t rows = Product({batch, length});
    runs.Whole(batch, Array(tokens, rows, "tokens"), length, Outputs(runs, outputs, rows));
  });
}

int linnet_prefix_frames(linnet_engine* engine, linnet_state* state, const float* frames,
                         size_t length, float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    const size_t rows = Product({StateOf(state).batch(), length});
    runs.Prefix(StateOf(state), Array(frames, Product({rows, FrameWidth(runs)}), "frames"), length,
                Outputs(runs, outputs, rows));
  });
}

int linnet_whole_frames(linnet_engine* engine, const float* frames, size_t batch, size_t length,
                        float* outputs) {
  return StatusOf([&] {
    linnet::Engine& runs = EngineOf(engine);
    const size_t rows = Product({batch, length});
    runs.Whole(batch, Array(frames, Product({rows, FrameWidth(runs)}), "frames"), length,
               Outputs(runs, outputs, rows));
  });
}

int linnet_sampling_init(linnet_sampling* sampling, size_t size) {
  return StatusOf([&] { Initialize(sampling, size, kSampling, "linnet_sampling"); });
}

int linnet_choose(const float* logits, size_t count, const linnet_sampling* sampling, uint64_t draw,
                  int32_t* token) {
  return StatusOf([&] {
    const linnet_sampling own = ReadSampling(sampling);
    const linnet::ChoiceOptions choice = ChoiceOf(own);
    Validate(choice);
    if (count > std::numeric_limits<int32_t>::max()) {
      throw linnet::InputError(count, " logits, but tokens are 32-bit numbers; pass fewer");
    }
    Given(token, "the token");
    // A Philox block holds four random numbers. Choose() takes two of them, so draw n has half
    // n % 2 of block n / 2, as in TextDraft (tasks/text/text.h).
    linnet::Philox rng(own.seed, own.stream, draw / 2);
    if (draw % 2 == 1) rng.Next64();
    *token = Choose(Array(logits, count, "logits"), choice, rng);
  });
}

}  // extern "C"
