// A cache of snapshots: model states and outputs after prompts and their prefixes, keyed by the
// exact tokens. A prompt with a snapshot is not read again. If only a prefix has a snapshot, the
// model reads the rest of the prompt.
//
//   Snapshots snapshots(model, {.bytes = 64e6, .folder = "snapshots"});
//   Snapshots::Found found = snapshots.Find(prompt);
//   ... the model reads prompt[found.length ..], starting from found.snapshot->state ...
//   snapshots.Keep(std::span(prompt).first(128), std::make_shared<Snapshot>(std::move(state)));
//
// The memory is limited to options.bytes: the least recently used snapshots are dropped first. The
// batcher, not this class, applies options.from. With a folder, snapshots survive the process: a
// background thread writes each one atomically, and Find() loads those that are not in memory. Once
// the files exceed options.folder_bytes, those written or loaded longest ago are deleted; a
// snapshot found in memory does not count as loaded. The constructor removes temporary files that
// killed processes left. Not thread-safe, except for count() and bytes().
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

#include "linnet/state.h"

namespace linnet::server {

struct Snapshot {
  explicit Snapshot(State of, std::vector<float> at_the_end = {})
      : state(std::move(of)), outputs(std::move(at_the_end)) {}

  State state;                 // of one sequence
  std::vector<float> outputs;  // the model's outputs after the last token; may be empty
};

struct SnapshotOptions {
  double bytes = 64e6;        // maximum memory; 0: no snapshots in memory, only in a folder
  size_t from = 32;           // tokens; shorter prompts get no snapshot: rereading them is faster
  std::string folder = {};    // for snapshots that survive the process; "": no folder
  double folder_bytes = 1e9;  // maximum size of the folder's snapshot files
  size_t folder_from = 128;   // tokens; snapshots of shorter prefixes get no file
};

class Snapshots {
 public:
  // Throws InputError if the folder cannot be created, read or written.
  Snapshots(std::shared_ptr<const Model> model, const SnapshotOptions& options);
  ~Snapshots();  // writes all pending snapshots

  struct Found {
    size_t length = 0;  // number of tokens that the snapshot has read; 0: no snapshot
    std::shared_ptr<const Snapshot> snapshot;
  };
  // Returns the snapshot of the whole prompt if it exists and has outputs, else the snapshot of the
  // longest proper prefix that has one and whose length is a multiple of Scheduler::kPiece.
  Found Find(std::span<const int32_t> prompt);

  // Adds the snapshot of `prefix`. An existing one stays unless it lacks outputs that this one has.
  void Keep(std::span<const int32_t> prefix, std::shared_ptr<const Snapshot> snapshot);

  // Waits until all pending snapshots are written to the folder.
  void Flush();

  // Thread-safe.
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_; }

 private:
  struct HashOf {
    size_t operator()(const std::vector<int32_t>& tokens) const;
  };
  struct Entry {
    std::vector<int32_t> tokens;
    std::shared_ptr<const Snapshot> snapshot;
    size_t bytes;
  };
  using Recent = std::list<Entry>;  // most recently used first

  std::shared_ptr<const Snapshot> Get(std::span<const int32_t> tokens);
  void Insert(std::vector<int32_t> tokens, std::shared_ptr<const Snapshot> snapshot);
  std::string NameOf(std::span<const int32_t> tokens) const;
  size_t MostStateBytes(size_t tokens) const;
  std::shared_ptr<const Snapshot> Load(std::span<const int32_t> tokens);
  void WriteLoop();
  void Write(const std::string& name, const Snapshot& snapshot);
  void Trim();

  std::shared_ptr<const Model> model_;
  SnapshotOptions options_;
  Recent recent_;
  std::unordered_map<std::vector<int32_t>, Recent::iterator, HashOf> index_;
  std::atomic<size_t> count_{0}, bytes_{0};

  // The files in the folder and the pending writes, guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::map<std::string, double> files_;  // name to bytes
  std::deque<std::pair<std::string, std::shared_ptr<const Snapshot>>> to_write_;
  bool writing_ = false, stop_ = false;
  std::thread writer_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_SNAPSHOTS_H_
