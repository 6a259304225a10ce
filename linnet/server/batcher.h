// Serves one model to many concurrent requests: one thread steps all running sequences together.
//
//   Batcher batcher(model, {.sequences = 64});
//   auto ticket = batcher.Submit({.prompt = prompt, .sequences = 5, .next = ..., .ended = ...});
//   if (!ticket) ...                     // the queue is full: retry later
//   batcher.Cancel(*ticket);             // the client has disconnected
//
// Requests join and leave between tokens. A request's result depends neither on the other requests
// nor on cached states of earlier prompts (snapshots.h). A state has a fixed size, there are
// options.sequences states, and the tokens of prompts are limited, so memory is, too.
#ifndef LINNET_SERVER_BATCHER_H_
#define LINNET_SERVER_BATCHER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "linnet/engine.h"
#include "linnet/scheduler.h"
#include "linnet/server/snapshots.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {

struct BatcherOptions {
  int threads = 0;        // threads of the engine; 0: one per processor
  size_t sequences = 64;  // sequences that run together
  size_t queue = 256;     // sequences that wait
  // Tokens of the prompts of all unfinished requests. A single request may have more.
  size_t prompt_tokens = size_t{8} << 20;
  SnapshotOptions snapshots = {};
};

class Batcher : public Worker {
 public:
  // Throws InputError if the states do not fit into memory.
  Batcher(std::shared_ptr<const Model> model, const BatcherOptions& options);
  ~Batcher() override;  // cancels all remaining requests

  const Model& model() const override { return engine_.model(); }
  std::shared_ptr<const Model> shared_model() const override { return model_; }
  size_t most_sequences() const override { return options_.sequences + options_.queue; }
  using Worker::Submit;
  std::optional<uint64_t> Submit(std::vector<Work> prompts) override;
  void Cancel(uint64_t request) override;
  // Cancels all current requests.
  void CancelAll();
  // Waits until all pending snapshots are written to their folder. Call it only while no request
  // runs.
  void Flush() { snapshots_.Flush(); }

  // running, waiting, capacity: numbers of sequences. generated: tokens. read: prompt tokens that
  // the model has read. known: prompt tokens restored from snapshots. hits: prompts with a snapshot
  // of the prompt or of a prefix. misses: prompts without one. evictions: snapshots dropped from
  // memory to make room.
  struct Counts {
    size_t running = 0, waiting = 0, capacity = 0;
    uint64_t generated = 0, read = 0, known = 0, hits = 0, misses = 0, evictions = 0;
    size_t snapshots = 0, snapshot_bytes = 0;
  };
  Counts counts() const;
  bool idle() const { return outstanding_ == 0; }

 private:
  struct Job;  // one prompt of a request, and its sequences

  void Loop();
  // Begins waiting prompts, but only some at a time: all running sequences wait meanwhile.
  void BeginSome();
  void Begin(const std::shared_ptr<Job>& job);
  // Starts a sequence from a snapshot (null: an empty state). The sequence first reads `rest`, the
  // tokens of the prompt after the snapshot.
  void Start(const std::shared_ptr<Job>& job, size_t sequence,
             const std::shared_ptr<const Snapshot>& from, std::vector<int32_t> rest = {});
  // Request::passed, called at each stop of the prompt in turn, and at its end with the outputs. If
  // `keeps`, keeps snapshots. At the end, calls StartRest().
  std::function<void(State, std::span<const float>)> KeepAndStart(const std::shared_ptr<Job>& job,
                                                                  bool keeps);
  // Starts the job's other sequences from the state after the prompt.
  void StartRest(const std::shared_ptr<Job>& job, const std::shared_ptr<const Snapshot>& from);
  void End(const std::shared_ptr<Job>& job, size_t sequence, Ended how, const std::string& why);
  void Fail(const std::shared_ptr<Job>& job, const std::string& why);
  // Cancel(), on the stepping thread.
  void CancelNow(uint64_t request);

  const std::shared_ptr<const Model> model_;
  Engine engine_;
  BatcherOptions options_;
  Snapshots snapshots_;
  Scheduler scheduler_;
  // The unfinished prompts of each request, by request number. Only the stepping thread uses them.
  std::unordered_multimap<uint64_t, std::shared_ptr<Job>> jobs_;
  // Numbers of sequences: running or waiting, and running.
  std::atomic<size_t> outstanding_{0}, running_{0};
  std::atomic<size_t> prompt_tokens_{0};      // of unfinished requests
  std::deque<std::shared_ptr<Job>> waiting_;  // received by the stepping thread, not begun yet
  std::atomic<uint64_t> generated_{0}, read_{0}, known_{0}, hits_{0}, misses_{0};

  mutable std::mutex mutex_;  // guards the members from inbox_ to cancel_all_
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Job>> inbox_;  // submitted, not begun yet
  std::vector<uint64_t> cancels_;            // requests to cancel
  uint64_t last_ = 0;                        // number of the last request
  bool stop_ = false, cancel_all_ = false;
  std::thread thread_;  // the stepping thread, which runs Loop()
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_BATCHER_H_
