// Keeps sequences for clients, by name, in files that survive the process.
//
//   StateStore store({.folder = "states", .bytes = 1e9});
//   store.Keep("shakespeare", model, store.NewName(), std::move(snapshot),
//              [](const std::string& fault) { ... });          // on the store's thread
//   auto snapshot = store.Find("shakespeare", *model, name);
//   store.Remove(name);
//
// A state never changes: what continues it makes a new one. It is kept until somebody removes it;
// once the files reach options.bytes, further states are refused. A state has the file
// FOLDER/MODEL/NAME.state and, for the outputs, NAME.outputs (snapshot_files.h). Files are written
// on a thread of their own and synced to the disk before `done` is called.
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
};

class StateStore : public StateKeeper {
 public:
  // Throws InputError if the folder cannot be created, read or written. Removes what killed
  // processes left: temporary files, and outputs without a state.
  explicit StateStore(const StateStoreOptions& options);
  ~StateStore() override;  // writes all pending states

  std::string NewName() override;
  void CheckNew(const std::string& name) const override;
  void CheckRoom(const Model& model, size_t count) const override;
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
  std::optional<Info> Get(const std::string& name) const;
  // Returns whether there was such a state.
  bool Remove(const std::string& name);

 private:
  struct Pending {
    Info info;
    std::shared_ptr<const Model> model;
    Snapshot snapshot;
    std::function<void(const std::string& fault)> done;
  };

  std::string BaseOf(const Info& info) const;
  void WriteLoop();
  std::string Write(Pending& pending);

  const StateStoreOptions options_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  std::map<std::string, Info> states_;  // by name; those being written have the creation time 0
  std::deque<Pending> pending_;
  bool stop_ = false;
  std::thread writer_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_STATE_STORE_H_
