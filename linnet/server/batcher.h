// One model for many requests at once: a thread that steps all sequences that are running together.
//
//   Batcher batcher(model, {.sequences = 64});
//   auto ticket = batcher.Submit({.prompt = prompt, .sequences = 5, .next = ..., .ended = ...});
//   if (!ticket) ...                     // full: come again later
//   batcher.Cancel(*ticket);             // the client has left
//
// Requests join and leave between symbols. What one gets depends neither on its company nor on what is
// kept of prompts that were read before. How many sequences fit is known beforehand from the state's size,
// so memory does not grow with the load.
#ifndef LINNET_SERVER_BATCHER_H_
#define LINNET_SERVER_BATCHER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "linnet/runtime/engine.h"
#include "linnet/runtime/scheduler.h"
#include "linnet/server/snapshots.h"

namespace linnet::server {

struct BatcherOptions {
  int threads = 0;        // of the engine; 0: one for each processor
  size_t sequences = 64;  // that run together
  size_t queue = 256;     // that may wait
  SnapshotOptions snapshots = {};
};

enum class Ended : uint8_t { kDone, kFull, kCancelled, kFailed };

// Several sequences that go on from one prompt. The functions are called on the batcher's thread, but for
// next(), which may be called for several sequences at once, on the engine's. They must not block: those
// that are running wait meanwhile.
struct Work {
  std::vector<int32_t> prompt;
  size_t sequences = 1;
  // The next symbol of a sequence, or none where it ends (with the one before).
  std::function<std::optional<int32_t>(size_t sequence, std::span<const float> outputs)> next;
  // Once for each sequence, last. What an exception of next() said is in `why`.
  std::function<void(size_t sequence, Ended how, const std::string& why)> ended;
  // Once, before the first symbol: the prompt has been read, but for `known` symbols of it; may be empty,
  // and be called on a thread as next() is.
  std::function<void(size_t known)> begun = {};
};

class Batcher {
 public:
  // Throws InputError where the states do not fit into memory.
  Batcher(std::shared_ptr<const Model> model, const BatcherOptions& options);
  ~Batcher();  // cancels what is left

  const Model& model() const { return engine_.model(); }
  // Of one request's sequences, at most.
  size_t most_sequences() const { return options_.sequences + options_.queue; }

  // The request's number; nothing where the queue is full. Throws InputError on a prompt that the model
  // cannot read, and on no sequences or more than most_sequences().
  std::optional<uint64_t> Submit(Work work);

  // Ends what is left of a request, as soon as the symbol that is being computed is there.
  void Cancel(uint64_t request);
  // The same for all requests that there are.
  void CancelAll();
  // Waits until the snapshots' folder has all of them. With nothing running.
  void Flush() { snapshots_.Flush(); }

  // Sequences, and symbols so far.
  struct Counts {
    size_t running = 0, waiting = 0, capacity = 0;
    uint64_t generated = 0, read = 0, known = 0, hits = 0, misses = 0;
    size_t snapshots = 0, snapshot_bytes = 0;
  };
  Counts counts() const;
  bool idle() const { return outstanding_ == 0; }

 private:
  struct Job;

  void Loop();
  void Begin(const std::shared_ptr<Job>& job);
  // From a snapshot, or none: behind the prompt, or to read the rest of it.
  void Start(const std::shared_ptr<Job>& job, size_t sequence,
             const std::shared_ptr<const Snapshot>& from, std::vector<int32_t> rest = {});
  void StartRest(const std::shared_ptr<Job>& job, const std::shared_ptr<const Snapshot>& from);
  void End(const std::shared_ptr<Job>& job, size_t sequence, Ended how, const std::string& why);
  void Fail(const std::shared_ptr<Job>& job, const std::string& why);
  void CancelNow(uint64_t request);

  Engine engine_;
  BatcherOptions options_;
  Snapshots snapshots_;
  Scheduler scheduler_;
  std::unordered_map<uint64_t, std::shared_ptr<Job>> jobs_;  // of the thread
  std::atomic<size_t> outstanding_{0}, running_{0};
  std::atomic<uint64_t> generated_{0}, read_{0}, known_{0}, hits_{0}, misses_{0};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Job>> inbox_;
  std::vector<uint64_t> cancels_;
  uint64_t last_ = 0;
  bool stop_ = false, cancel_all_ = false;
  std::thread thread_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_BATCHER_H_
