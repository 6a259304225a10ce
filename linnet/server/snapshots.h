// A cache of snapshots: model states and outputs after prompts and their prefixes, keyed by the
// exact tokens. A prompt with a snapshot is not read again. If only a prefix has a snapshot, the
// model reads the rest of the prompt.
//
//   const auto folder = std::make_shared<SnapshotFolder>("snapshots", /*most_bytes=*/1e9);
//   Snapshots snapshots(model, {.bytes = 64e6, .folder = folder});
//   Snapshots::Found found = snapshots.Find(prompt);
//   ... the model reads prompt[found.length ..], starting from found.snapshot->state, and stops
//   after found.stops[i].length tokens of the prompt:
//   snapshots.Keep(std::span(prompt).first(stop.length), snapshot, stop.use);
//
// Prefixes of any length that is a multiple of Engine::kCutPositions can have a snapshot. They get
// one where the next prompt is likely to leave this one: at the place where two prompts parted
// before, at the prompt's end, and every few hundred tokens in between.
//
// The memory is limited to options.bytes: the least recently used snapshots are dropped first,
// those without a likely use before the others. The batcher, not this class, applies options.from
// to whole prompts. With a folder, snapshots survive the process: a background thread writes each
// one atomically, and Find() loads those that are not in memory. Once the folder's files exceed
// its limit, those written or loaded longest ago are deleted; a snapshot found in memory does not
// count as loaded. Not thread-safe, except for count(), bytes() and evictions().
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
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "linnet/io/sha256.h"
#include "linnet/state.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {

// The snapshot files in a folder, which several models may share. Thread-safe.
class SnapshotFolder {
 public:
  // Lists the files in the folder, which this creates if it does not exist. Considers only names
  // that Snapshots writes. Removes the temporary files that killed processes left. Throws
  // InputError if the folder cannot be read or written.
  SnapshotFolder(std::string folder, double most_bytes);

  std::string BaseOf(const std::string& name) const;  // for snapshot_files.h
  bool Has(const std::string& name) const;
  // Adds a snapshot that was written. Deletes the oldest ones if there are more than `most_bytes`.
  void Add(const std::string& name);
  void Remove(const std::string& name);

 private:
  void Trim();

  const std::string folder_;
  const double most_bytes_;
  mutable std::mutex mutex_;
  std::map<std::string, double> files_;  // name to bytes
};

struct SnapshotOptions {
  double bytes = 64e6;  // maximum memory; 0: no snapshots in memory, only in a folder
  size_t from = 32;     // tokens; shorter prompts get no snapshot: rereading them is faster
  // For snapshots that survive the process; null: none do.
  std::shared_ptr<SnapshotFolder> folder = nullptr;
  size_t folder_from = 128;  // tokens; snapshots of shorter prefixes get no file
};

class Snapshots {
 public:
  Snapshots(std::shared_ptr<const Model> model, const SnapshotOptions& options);
  ~Snapshots();  // writes all pending snapshots

  // kLikely: where prompts part or end. kSpare: somewhere between, in case a prompt parts there.
  enum class Use : uint8_t { kLikely, kSpare };
  struct Stop {
    size_t length;
    Use use;
  };
  struct Found {
    size_t length = 0;  // number of tokens that the snapshot has read; 0: no snapshot
    std::shared_ptr<const Snapshot> snapshot;
    // Longer prefixes that should get a snapshot, in ascending order: multiples of
    // Engine::kCutPositions, shorter than the prompt, and not below options.from.
    std::vector<Stop> stops;
  };
  // Returns the snapshot of the whole prompt if it exists and has outputs, else that of the longest
  // proper prefix that has one and whose length is a multiple of Engine::kCutPositions. Remembers
  // the prompt, so that later prompts stop where they part from it. Only prompts of the same owner
  // count (Work::owner).
  Found Find(std::span<const int32_t> prompt, uint64_t owner = 0);

  // Adds the snapshot of `prefix`. An existing one stays unless it lacks outputs that this one has.
  void Keep(std::span<const int32_t> prefix, std::shared_ptr<const Snapshot> snapshot,
            Use use = Use::kLikely, uint64_t owner = 0);

  // Waits until all pending snapshots are written to the folder.
  void Flush();

  // Thread-safe.
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_; }
  uint64_t evictions() const { return evictions_; }  // snapshots dropped to make room

 private:
  struct Entry {
    std::vector<int32_t> tokens;
    std::shared_ptr<const Snapshot> snapshot;
    size_t bytes;
    Use use;
    uint64_t key;  // KeysOf()
  };
  using Recent = std::list<Entry>;  // most recently used first

  // A hash of each prefix whose length is a multiple of Engine::kCutPositions, then one of the
  // whole prompt; they depend on the owner.
  static std::vector<uint64_t> KeysOf(std::span<const int32_t> tokens, uint64_t owner);
  // The names of the files of a prefix, and of all these prefixes; NamesOf() is empty without a
  // folder.
  Sha256 HashOfModel(uint64_t owner) const;
  std::string NameOf(std::span<const int32_t> tokens, uint64_t owner) const;
  std::vector<std::string> NamesOf(std::span<const int32_t> tokens, uint64_t owner) const;

  // Returns the length of the longest of these prefixes that an earlier prompt has, too.
  size_t Remember(std::span<const uint64_t> keys);
  std::vector<Stop> StopsOf(size_t known, size_t parted, size_t length) const;
  std::shared_ptr<const Snapshot> Get(std::span<const int32_t> tokens, uint64_t key,
                                      const std::string* name);
  std::optional<Recent::iterator> InMemory(std::span<const int32_t> tokens, uint64_t key);
  void Insert(std::span<const int32_t> tokens, uint64_t key,
              std::shared_ptr<const Snapshot> snapshot, Use use);
  void Drop(Recent::iterator entry);
  size_t MostStateBytes(size_t tokens) const;
  std::shared_ptr<const Snapshot> Load(std::span<const int32_t> tokens, uint64_t key,
                                       const std::string& name);
  void WriteLoop();

  std::shared_ptr<const Model> model_;
  SnapshotOptions options_;
  Recent likely_, spare_;
  std::unordered_multimap<uint64_t, Recent::iterator> index_;
  std::atomic<size_t> count_{0}, bytes_{0};
  std::atomic<uint64_t> evictions_{0};
  // Keys of earlier prompts' prefixes. When `seen_` is full, it becomes `seen_before_`.
  std::unordered_set<uint64_t> seen_, seen_before_;

  std::mutex mutex_;  // guards the pending writes
  std::condition_variable wake_, idle_;
  std::deque<std::pair<std::string, std::shared_ptr<const Snapshot>>> to_write_;
  bool writing_ = false, stop_ = false;
  std::thread writer_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_SNAPSHOTS_H_
