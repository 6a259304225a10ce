// Many requests of different lengths through one engine: they join and leave between symbols, and what
// one gets does not depend, bit for bit, on its company.
//
//   Scheduler scheduler(engine, {.sequences = Scheduler::Fitting(engine.model(), /*bytes=*/1e9)});
//   scheduler.Submit({.prompt = prompt,
//                     .next = [&](std::span<const float> outputs) { return Draw(outputs); },
//                     .finished = [&](Finished why) { ... }});
//   while (scheduler.Run()) {}      // or as long as a server lives
//
// A sequence's state has one size, known beforehand: so as many are admitted as were asked for, the
// next ones wait in a queue, and where that is full Submit() says no. Memory is taken once, when the
// scheduler is made. For one thread at a time; callbacks are called by Run(), and may submit and
// cancel.
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
  kEnded,      // next() gave no symbol
  kFull,       // the model has no position for another one
  kCancelled,  // Cancel() was called
};

struct Request {
  // At least one symbol, each of the model's vocabulary; none where `from` and `outputs` say what came of it.
  std::vector<int32_t> prompt;
  // Called with the head's outputs at the last symbol of the prompt, and then at each symbol that it
  // returned, until it returns none.
  std::function<std::optional<int32_t>(std::span<const float> outputs)> next;
  // Called once, last, but where next() throws or gives no symbol of the vocabulary, and where the
  // scheduler goes before the request has ended; may be empty.
  std::function<void(Finished)> finished;
  // Where to begin: a state of one sequence, for a prompt that goes on from it; or none. Any number of
  // requests may share one, which is copied as they begin to run.
  std::shared_ptr<const State> from = {};
  // With an empty prompt: the head's outputs at the last symbol that `from` has read.
  std::shared_ptr<const std::vector<float>> outputs = {};
  // Called while the prompt is read, behind each kPiece symbols with the state there, and at its end with
  // the outputs too: another request whose prompt begins so may go on `from` it, and gets the same bits.
  // May be empty.
  std::function<void(State state, std::span<const float> outputs)> passed = {};
};

struct SchedulerOptions {
  size_t sequences = 64;  // that run together
  size_t queue = 1024;    // requests that may wait
  // Symbols of prompts that are read between two steps, so that a long one does not hold up those
  // that are generating; at least one piece a round is read.
  size_t prompt_symbols = 512;
  // Calls next() of several requests at once, on the engine's threads; it may then neither submit nor
  // cancel.
  bool parallel_next = false;
};

class Scheduler {
 public:
  // Prompts are read in pieces of this length: of a prompt's own, so that the company that it happens to
  // have does not decide how it is cut, and with it the last bits.
  static constexpr size_t kPiece = 128;

  // How many sequences' states fit into so many bytes.
  static size_t Fitting(const Model& model, double bytes);

  // Positions that a sequence can have: memory is taken once, so that caches end where training did.
  static size_t MostPositions(const Model& model);

  // Throws InputError where options make no sense, or the states do not fit into memory. The engine
  // must outlive the scheduler, and may be used for nothing else meanwhile.
  Scheduler(Engine& engine, const SchedulerOptions& options);

  // The request's number, or nothing where the queue is full; it is moved from only where it is taken.
  // Throws InputError, and takes nothing, where the request cannot be run: no prompt, symbols outside the vocabulary, a prompt longer than
  // the model has positions, a state of another model or of several sequences, no next().
  std::optional<uint64_t> Submit(Request&& request);

  // Whether it was there: running or waiting. Its place is free at once.
  bool Cancel(uint64_t id);

  // One round: admits what fits, reads pieces of prompts, and one symbol of each running sequence.
  // Whether anything is left to do. An exception of a callback ends its request (kEnded is not
  // reported) and comes out of here after the round.
  bool Run();

  size_t running() const { return running_; }
  size_t waiting() const { return waiting_.size(); }
  size_t capacity() const { return slots_.size(); }

 private:
  struct Entry {
    uint64_t id = 0;
    Request request;
    size_t read = 0;                // symbols of the prompt
    std::optional<int32_t> symbol;  // to be read next, once the prompt is
  };

  void Admit();
  void ReadPrompts();
  void Generate();
  void Pass(size_t slot, std::span<const float> outputs);
  // What next() gave, or threw.
  struct Drawn {
    std::optional<int32_t> symbol;
    std::exception_ptr error;
  };
  Drawn Draw(const Entry& entry, std::span<const float> outputs) const;
  // Draws for these sequences, and takes what was drawn: outputs [sequences, width].
  void Deliver(std::span<const size_t> slots, std::span<const float> outputs);
  void Take(size_t slot, const std::shared_ptr<Entry>& entry, const Drawn& drawn);
  void End(size_t slot, std::optional<Finished> why);
  // Keeps what a callback throws for the end of the round.
  void Report(const std::function<void(Finished)>& finished, Finished why);

  Engine& engine_;
  SchedulerOptions options_;
  size_t most_positions_;
  State state_;
  // Shared with the callback that is running, which may cancel itself.
  std::vector<std::shared_ptr<Entry>> slots_;
  std::deque<Entry> waiting_;
  size_t running_ = 0, first_prompt_ = 0;
  uint64_t last_id_ = 0;
  std::exception_ptr error_;
  // Of a round.
  std::vector<size_t> stepping_, reading_, lengths_;
  std::vector<Drawn> drawn_;
  std::vector<int32_t> symbols_;
  std::vector<float> outputs_;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_SCHEDULER_H_
