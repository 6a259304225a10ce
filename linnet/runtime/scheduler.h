// Runs many requests of different lengths through one engine. Requests join and leave between
// tokens; the outputs of a request do not depend on the other requests, bit for bit.
//
//   Scheduler scheduler(engine, {.sequences = Scheduler::Fitting(engine.model(), /*bytes=*/1e9)});
//   scheduler.Submit({.prompt = prompt,
//                     .next = [&](std::span<const float> outputs) { return Draw(outputs); },
//                     .finished = [&](Finished why) { ... }});
//   while (scheduler.Run()) {}      // or as long as a server lives
//
// The size of a sequence's state is known in advance, so a fixed number of sequences runs at a
// time, further requests wait in a queue, and Submit() refuses them once it is full. The states'
// memory is allocated once, at construction. Call a scheduler from one thread at a time. Run()
// calls the callbacks, which may submit and cancel.
#ifndef LINNET_RUNTIME_SCHEDULER_H_
#define LINNET_RUNTIME_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "linnet/runtime/engine.h"

namespace linnet {

enum class Finished : uint8_t {
  kEnded,      // next() returned no token
  kFull,       // the model has no position for another token
  kCancelled,  // Cancel() was called
};

struct Request {
  // At least one token, each in the model's vocabulary. May be empty if `from` and `outputs` are
  // given.
  std::vector<int32_t> prompt;
  // Returns the next token, or none to end the request. Called with the head's outputs at the
  // prompt's last token, then at each token that it returned.
  std::function<std::optional<int32_t>(std::span<const float> outputs)> next;
  // Called once, as the last callback; may be empty. Not called if next() or passed() throws, if
  // next() returns a token outside the vocabulary, or if the scheduler is destroyed before the
  // request ends.
  std::function<void(Finished)> finished;
  // State of one sequence that the prompt continues; null: none. Requests may share one: each
  // copies it when it starts to run.
  std::shared_ptr<const State> from = {};
  // With an empty prompt: the head's outputs at the last token that `from` has read.
  std::shared_ptr<const std::vector<float>> outputs = {};
  // Called while the prompt is read: after each kPiece tokens with the state there, and at the
  // prompt's end with the outputs too. A request whose prompt has the same prefix may continue
  // `from` that state. It gets the same bits if the prefix is a multiple of kPiece tokens or its
  // whole prompt. May be empty.
  std::function<void(State state, std::span<const float> outputs)> passed = {};
};

struct SchedulerOptions {
  size_t sequences = 64;  // maximum number of running requests
  size_t queue = 1024;    // maximum number of waiting requests
  // Prompt tokens read between two steps, so that a long prompt does not delay generating requests.
  // At least one piece is read per round.
  size_t prompt_tokens = 512;
  // Calls next() of several requests concurrently, on the engine's threads. next() may then neither
  // submit nor cancel.
  bool parallel_next = false;
};

class Scheduler {
 public:
  // Prompts are read in pieces of this length, counted from each prompt's own beginning, so that
  // other requests change neither the cuts nor, thereby, the last bits of the outputs.
  static constexpr size_t kPiece = 128;

  // Number of sequences whose states fit into `bytes`.
  static size_t Fitting(const Model& model, double bytes);

  // Maximum number of positions of a sequence. Memory is allocated once, so models with caches end
  // at the training length.
  static size_t MostPositions(const Model& model);

  // Throws InputError if an option is invalid or the states do not fit into memory. The engine must
  // outlive the scheduler and must not be used for anything else meanwhile.
  Scheduler(Engine& engine, const SchedulerOptions& options);

  // Returns the request's id, or nothing if the queue is full; only an accepted request is moved
  // from. Throws InputError, and accepts nothing, if the request cannot run: no prompt, tokens
  // outside the vocabulary, a prompt longer than the model's positions, a state of another model or
  // of several sequences, no next().
  std::optional<uint64_t> Submit(Request&& request);

  // Ends a request and frees its slot at once. Returns whether it was running or waiting.
  bool Cancel(uint64_t id);

  // One round: admits waiting requests, reads pieces of prompts, and steps each running sequence by
  // one token. Returns whether any request is left. An exception of a callback ends its request
  // without a call of `finished`; the round's first exception is rethrown at its end.
  bool Run();

  size_t running() const { return running_; }
  size_t waiting() const { return waiting_.size(); }
  size_t capacity() const { return slots_.size(); }

 private:
  struct Entry {
    uint64_t id = 0;
    Request request;
    size_t read = 0;               // tokens of the prompt read so far
    std::optional<int32_t> token;  // next token to read, once the prompt is read
  };

  void Admit();
  void ReadPrompts();
  void Generate();
  void Pass(size_t slot, std::span<const float> outputs);
  // Result of next(), or its exception.
  struct Drawn {
    std::optional<int32_t> token;
    std::exception_ptr error;
  };
  Drawn Draw(const Entry& entry, std::span<const float> outputs) const;
  // Draws a token for each of these sequences and applies the result: outputs [sequences, width].
  void Deliver(std::span<const size_t> slots, std::span<const float> outputs);
  void Take(size_t slot, const std::shared_ptr<Entry>& entry, const Drawn& drawn);
  void End(size_t slot, std::optional<Finished> why);
  // Calls `finished`; Run() rethrows its exception at the end of the round.
  void Report(const std::function<void(Finished)>& finished, Finished why);

  Engine& engine_;
  SchedulerOptions options_;
  size_t most_positions_;
  State state_;
  // Shared with the running callback, which may cancel its own request.
  std::vector<std::shared_ptr<Entry>> slots_;
  std::deque<Entry> waiting_;
  size_t running_ = 0, first_prompt_ = 0;
  uint64_t last_id_ = 0;
  std::exception_ptr error_;
  // Buffers of one round.
  std::vector<size_t> stepping_, reading_, lengths_;
  std::vector<Drawn> drawn_;
  std::vector<int32_t> tokens_;
  std::vector<float> outputs_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_SCHEDULER_H_
