// Keeps sequences for clients, by name, in files that survive the process.
//
//   StateStore store({.folder = "states", .bytes = 1e9});
//   const auto room = store.Reserve(*model, /*count=*/1, "name");
//   store.Keep("shakespeare", model, "name", std::move(snapshot),
//              [](const std::string& fault) { ... });          // on the store's thread
//   auto snapshot = store.Find("shakespeare", *model, "name");
//   store.Remove("name");
//
// A state never changes: a continued text makes a new one. It is kept until somebody removes it;
// once the files reach options.bytes, further states are refused. A state has the file
// FOLDER/MODEL.states/NAME.state and, for the outputs, NAME.outputs (snapshot_files.h). Files are
// written on a thread of their own and synced before `done` is called.
//
// Several stores, of processes on one or several machines, may share a folder. Each has an index of
// the files, which it compares with the folder: for one name whenever the name is used; for all
// names when states are listed, and at most once a second when room is reserved (less often if
// there are so many files that this takes more than 20 ms). Between two comparisons, a store does
// not know what others have written, so together they may exceed options.bytes by that. While a
// store writes or removes a name, it locks the file FOLDER/NAME.claim; the lock ends with the
// process.
#ifndef LINNET_SERVER_STATE_STORE_H_
#define LINNET_SERVER_STATE_STORE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "linnet/tasks/endpoint.h"

namespace linnet::server {

struct StateStoreOptions {
  std::string folder;
  double bytes = 1e9;  // maximum size of the files
  // Called with a line about each file that cannot be read or written, from any thread; may be
  // empty. Clients do not learn the paths.
  std::function<void(const std::string& line)> log = {};
};

class StateStore : public StateKeeper {
 public:
  // Throws InputError if the folder cannot be created, read or written. If no other store uses the
  // folder, removes what killed processes left: temporary files, claims, outputs without a state.
  explicit StateStore(const StateStoreOptions& options);
  ~StateStore() override;  // writes all pending states

  std::string NewName() override;
  std::shared_ptr<void> Reserve(const Model& model, size_t count,
                                const std::optional<std::string>& name) override;
  void Keep(const std::string& model_name, std::shared_ptr<const Model> model,
            const std::string& name, Snapshot snapshot,
            std::function<void(const std::string& fault)> done) override;
  std::shared_ptr<const Snapshot> Find(const std::string& model_name, const Model& model,
                                       const std::string& name) override;

  struct Info {
    std::string name, model;
    double bytes = 0;
    int64_t created = 0;  // seconds since 1970
  };
  // All states, in the order of their names.
  std::vector<Info> List();
  // Throw Refusal (404) if there is no such state. Remove() throws RuntimeError if that fails, and
  // Refusal (409) if the state is still being written.
  Info Get(const std::string& name);
  void Remove(const std::string& name);

 private:
  // Tells a file from another one that later has its path.
  struct FileId {
    uint64_t inode = 0;
    int64_t nanoseconds = 0;  // when its inode was last changed
    std::string model;
    bool operator==(const FileId&) const = default;
  };
  struct Entry {
    Info info;
    FileId file;
    std::weak_ptr<const Snapshot> snapshot = {};  // if it is in use
  };
  using Index = std::map<std::string, Entry>;  // by name
  class Claim;
  struct Ticket;  // what Reserve() returns
  struct Pending {
    Info info;
    std::shared_ptr<const Model> model;
    Snapshot snapshot;
    std::function<void(const std::string& fault)> done;
  };

  void Lock();
  void Sweep() const;
  // The files in a folder. An error is logged, and sets *complete to false unless it is null.
  std::vector<std::filesystem::directory_entry> FilesIn(const std::string& folder,
                                                        bool* complete = nullptr) const;
  // The folders FOLDER/MODEL.states, by model.
  std::map<std::string, std::string> ModelFolders(bool* complete = nullptr) const;
  std::string BaseOf(const Info& info) const;
  // The entry of a state, from its files; nullopt if there are none.
  std::optional<Entry> Look(const std::string& model, const std::string& name) const;
  // Compare the index with the files of a name, or with all files. No file is looked at under
  // mutex_, for which the thread that steps all sequences may wait.
  void Refresh(const std::string& name);
  void RefreshAll();
  // At(), Set() and Erase() require mutex_. At() throws Refusal (404) if there is no such state.
  Entry& At(const std::string& name);
  void Set(const Entry& entry);
  void Erase(const std::string& name);
  void Log(const std::string& line) const;
  // Null if the name is taken. Throws RuntimeError if the claim's file cannot be created; with
  // `full_disk`, a full disk is no reason to fail.
  std::unique_ptr<Claim> Take(const std::string& name, bool full_disk);
  void WriteLoop();
  bool Write(Pending& pending) const;

  const StateStoreOptions options_;
  int lock_ = -1;             // the file whose lock says that a store uses the folder
  std::mutex scan_mutex_;     // held by RefreshAll()
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  Index states_;
  std::chrono::steady_clock::time_point fresh_until_;  // when RefreshAll() is due again
  std::set<std::string> changed_;                      // entries changed since RefreshAll() began
  std::set<std::string> taken_;                        // names that this store has claimed
  double bytes_ = 0, reserved_ = 0;  // of the files, and for states that are not written yet
  std::deque<Pending> pending_;
  bool stop_ = false;
  std::thread writer_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_STATE_STORE_H_
