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
// written on a thread of their own and synced before `done` is called. A folder belongs to one
// store at a time.
#ifndef LINNET_SERVER_STATE_STORE_H_
#define LINNET_SERVER_STATE_STORE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
  // Throws InputError if the folder cannot be created, read or written, or if another store uses
  // it. Removes what killed processes left: temporary files, and outputs without a state.
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
  std::vector<Info> List() const;
  // Throw Refusal (404) if there is no such state. Remove() throws RuntimeError if that fails.
  Info Get(const std::string& name) const;
  void Remove(const std::string& name);

 private:
  struct Entry {
    Info info;
    uint64_t number;                         // different for each state that is ever kept
    std::weak_ptr<const Snapshot> snapshot;  // if it is in use
  };
  struct Ticket;  // what Reserve() returns
  struct Pending {
    Info info;
    std::shared_ptr<const Model> model;
    Snapshot snapshot;
    std::function<void(const std::string& fault)> done;
  };

  void Scan(const std::string& folder);
  std::string BaseOf(const Info& info) const;
  // The entry of this name. Requires mutex_; throws Refusal (404).
  const Entry& At(const std::string& name) const;
  void Add(const Info& info);  // requires mutex_
  void Log(const std::string& line) const;
  void WriteLoop();
  bool Write(Pending& pending) const;

  const StateStoreOptions options_;
  int lock_ = -1;             // the file whose lock says that this store uses the folder
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  std::map<std::string, Entry> states_;  // by name
  // Names that are reserved, or whose files are being removed, and the number of their owner: of
  // the Ticket, or of the call of Remove().
  std::map<std::string, uint64_t> taken_;
  double bytes_ = 0, reserved_ = 0;  // of the files, and for states that are not written yet
  uint64_t last_number_ = 0;
  std::deque<Pending> pending_;
  bool stop_ = false;
  std::thread writer_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_STATE_STORE_H_
