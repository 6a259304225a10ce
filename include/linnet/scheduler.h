// Runs many requests of different lengths through one engine. Requests join and leave between
// tokens; the outputs of a request do not depend on the other requests, bit for bit.
//
//   Scheduler scheduler(engine, {.sequences = Scheduler::Fitting(engine.model(), /*bytes=*/1e9)});
//   scheduler.Submit({.prompt = prompt,
//                     .next = [&](std::span<const float> outputs) { return Draw(outputs); },
//                     .finished = [&](Finished) {}});
//   while (scheduler.Run()) {}      // until all requests have ended
//
// The size of a sequence's state is known in advance, so the states' memory is allocated once, at
// construction, for a fixed number of sequences that run at a time. Further requests wait in a
// queue; once it is full, Submit() refuses requests. Call a scheduler from one thread at a time.
// Run() calls the callbacks, which may submit and cancel.
#ifndef LINNET_SCHEDULER_H_
#define LINNET_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "linnet/engine.h"
#include "linnet/export.h"

namespace linnet {

enum class Finished : uint8_t {
  kEnded,      // next() returned no token
  kFull,       // the model has no position for another token
  kCancelled,  // Cancel() was called
};

struct Request {
  // Tokens of the model's vocabulary. Must have at least one, unless `from` and `outputs` are
  // given.
  std::vector<int32_t> prompt;
  // Returns the next token, or none to end the request. Called first with the head's outputs at
  // the prompt's last token, then with the outputs at each token that it has returned.
  std::function<std::optional<int32_t>(std::span<const float> outputs)> next;
  // Called once, as the last callback; may be null. Not called if another callback throws, if
  // next() returns a token outside the vocabulary, or if the scheduler is destroyed before the
  // request ends.
  std::function<void(Finished)> finished;
  // Called when the request leaves the queue and gets a sequence; may be null. It may call
  // Cancel().
  std::function<void()> admitted = {};
  // State of one sequence, which the prompt continues; null: the prompt begins a sequence. Requests
  // may share a state: each copies it when it starts to run.
  std::shared_ptr<const State> from = {};
  // Used only with an empty prompt: the head's outputs at the last token that `from` has read.
  std::shared_ptr<const std::vector<float>> outputs = {};
  // Called while the prompt is read: after each position in `stops` with the state and empty
  // outputs, and, after the first token is drawn, with the state at the prompt's end and the
  // outputs. May be null. A later request that begins with the same tokens can pass that state as
  // `from` and leave these tokens out of its prompt: its outputs are bit-identical to those without
  // `from`. (The state at the end of a prompt whose length is not a multiple of
  // Engine::kCutPositions is an exception: it continues the prompt only up to rounding.)
  std::function<void(State state, std::span<const float> outputs)> passed = {};
  // Called when next() has ended the request, before `finished`, with the state and the outputs
  // after the last token that next() returned, or at the prompt's end. May be null.
  std::function<void(State state, std::span<const float> outputs)> at_end = {};
  // Positions inside the prompt, ascending, at which passed() is called: numbers of tokens, those
  // of `from` included. Multiples of Engine::kCutPositions.
  std::vector<size_t> stops = {};
};

struct SchedulerOptions {
  size_t sequences = 64;  // maximum number of running requests
  size_t queue = 1024;    // maximum number of waiting requests
  // Maximum number of prompt tokens read between two steps, so that a long prompt does not stall
  // generating requests. Run() reads at least one piece of a prompt in any case.
  size_t prompt_tokens = 512;
  // Calls next() of several requests concurrently, on the engine's threads. next() may then neither
  // submit nor cancel.
  bool parallel_next = false;
};

class LINNET_API Scheduler {
 public:
  // Maximum length of a piece of a prompt. Pieces end at multiples of Engine::kCutPositions, so the
  // outputs do not depend on where the prompt is cut.
  static constexpr size_t kPiece = 128;

  // Number of sequences whose states fit into `bytes`.
  static size_t Fitting(const Model& model, double bytes);

  // Maximum number of positions of a sequence. The scheduler allocates memory once, so sequences
  // whose states would grow (caches, kept tokens) end at the training length.
  static size_t MostPositions(const Model& model);

  // Throws InputError if an option is invalid or the states do not fit into memory. The engine must
  // outlive the scheduler and must not be used for anything else meanwhile.
  Scheduler(Engine& engine, const SchedulerOptions& options);
  ~Scheduler();

  // Returns the request's id, or nothing if the queue is full; only an accepted request is moved
  // from. Throws InputError, and accepts nothing, if the request cannot run: no prompt, tokens
  // outside the vocabulary, a prompt longer than the model's positions, a state of another model or
  // of several sequences, no next(), stops at other positions than described above.
  std::optional<uint64_t> Submit(Request&& request);

  // Ends a request at once: it frees its sequence or leaves the queue. Returns whether the request
  // was running or waiting.
  bool Cancel(uint64_t id);

  // Runs one round: admits waiting requests, reads pieces of prompts, and steps each running
  // sequence by one token. Returns whether any request is left. If a callback other than
  // finished() throws, the request ends without a call of finished(). At its end, Run() rethrows
  // the first exception of the round's callbacks.
  bool Run();

  size_t running() const;
  size_t waiting() const;
  size_t capacity() const;  // SchedulerOptions::sequences

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet

#endif  // LINNET_SCHEDULER_H_
