// What prompts left behind, kept by their exact symbols, so that a prompt that comes again, or one that
// begins like it, is not read again.
//
//   Snapshots snapshots(*model, {.bytes = 64e6, .folder = "snapshots"});
//   Snapshots::Found found = snapshots.Find(prompt);        // the longest beginning that is known
//   ... reads prompt[found.length ..] on from found.snapshot->state ...
//   snapshots.Keep(std::span(prompt).first(128), std::make_shared<Snapshot>(std::move(state)));
//
// Bounded: the least recently used go first. (Which prompts are worth keeping, options.from, the batcher
// decides.) With a folder they outlive the process: each is written there
// in the background, whole or not at all, and read when it is asked for. For one thread at a time, but for
// the counts.
#ifndef LINNET_SERVER_SNAPSHOTS_H_
#define LINNET_SERVER_SNAPSHOTS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "linnet/runtime/state.h"

namespace linnet::server {

struct Snapshot {
  explicit Snapshot(State of, std::vector<float> at_the_end = {})
      : state(std::move(of)), outputs(std::move(at_the_end)) {}

  State state;                 // of one sequence
  std::vector<float> outputs;  // the head's at the last symbol; empty where they were not computed
};

struct SnapshotOptions {
  double bytes = 64e6;  // in memory; 0: none are kept
  size_t from = 32;     // symbols: shorter prompts are read again in less time than a copy takes
  std::string folder = {};    // where they outlive the process; "": nowhere
  double folder_bytes = 1e9;  // in there
  size_t folder_from = 128;   // symbols: shorter prompts are read faster than files
};

class Snapshots {
 public:
  // Throws InputError on a folder that cannot be made, read or written.
  Snapshots(std::shared_ptr<const Model> model, const SnapshotOptions& options);
  ~Snapshots();  // writes what is still to be written

  struct Found {
    size_t length = 0;  // symbols; 0: none is known
    std::shared_ptr<const Snapshot> snapshot;
  };
  // The whole prompt, where that is known with outputs; else its longest beginning of a multiple of
  // Scheduler::kPiece symbols that leaves some to read.
  Found Find(std::span<const int32_t> prompt);

  void Keep(std::span<const int32_t> prefix, std::shared_ptr<const Snapshot> snapshot);

  // Waits until the folder has all of it.
  void Flush();

  // For any thread.
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_; }

 private:
  struct HashOf {
    size_t operator()(const std::vector<int32_t>& symbols) const;
  };
  struct Entry {
    std::vector<int32_t> symbols;
    std::shared_ptr<const Snapshot> snapshot;
    size_t bytes;
  };
  using Recent = std::list<Entry>;  // the last used first

  std::shared_ptr<const Snapshot> Get(std::span<const int32_t> symbols);
  void Insert(std::vector<int32_t> symbols, std::shared_ptr<const Snapshot> snapshot);
  std::string NameOf(std::span<const int32_t> symbols) const;
  std::shared_ptr<const Snapshot> Load(std::span<const int32_t> symbols);
  void WriteLoop();
  void Write(const std::string& name, const Snapshot& snapshot);
  void Trim();

  std::shared_ptr<const Model> model_;
  SnapshotOptions options_;
  Recent recent_;
  std::unordered_map<std::vector<int32_t>, Recent::iterator, HashOf> index_;
  std::atomic<size_t> count_{0}, bytes_{0};

  // What is in the folder, and what is on its way there.
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::map<std::string, double> files_;  // name to bytes
  std::deque<std::pair<std::string, std::shared_ptr<const Snapshot>>> to_write_;
  bool writing_ = false, stop_ = false;
  std::thread writer_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_SNAPSHOTS_H_
