// The clients of a server that has several: each has a key and quotas.
//
//   Clients clients;
//   clients.Set(ReadClients("clients.json", ""));
//   const std::shared_ptr<Client> client = clients.Find(key);   // null: no client has this key
//   client->Begin();                        // throws Refusal (429) beyond a quota
//   ...
//   client->End(/*tokens=*/120);
//
// docs/operating.md describes the file.
#ifndef LINNET_SERVER_CLIENTS_H_
#define LINNET_SERVER_CLIENTS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/server/state_store.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {

// Returns the key in `text` without the white space around it. HTTP strips white space around a
// header's value, so a key with such white space would never match. Throws InputError, beginning
// with `where`, unless the key consists of visible ASCII characters.
std::string CheckedKey(const std::string& text, const std::string& where);

// Compares in a time that does not depend on where the texts differ.
bool SameSecret(std::string_view a, std::string_view b);

struct ClientOptions {
  std::string name, key;
  double tokens_per_minute = std::numeric_limits<double>::infinity();
  size_t requests = std::numeric_limits<size_t>::max();  // that run or wait at the same time
  double state_bytes = -1;  // of kept states, when they are first used; negative: the server's
};

// Reads the file of --clients. Throws InputError, beginning with the path; also if a client has the
// server's own key ("": it has none).
std::vector<ClientOptions> ReadClients(const std::string& path, const std::string& server_key);

// Thread-safe.
class Client {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static Time Now() { return std::chrono::steady_clock::now(); }

  explicit Client(ClientOptions options, Time now = Now());

  const std::string& name() const { return name_; }
  uint64_t id() const;  // a hash of the name, not 0
  bool HasKey(std::string_view key) const;
  double state_bytes() const;
  // The quotas and the key from now on. The name stays, and so does the share of the tokens that is
  // left.
  void Set(ClientOptions options, Time now = Now());

  // A request begins, unless a quota is used up: then throws Refusal (429). A quota of tokens is
  // refilled continuously and holds the tokens of a minute at most. The tokens of a request are
  // taken from it when the request ends, so they may exceed it; the next requests then wait longer.
  void Begin(Time now = Now());
  void End(size_t tokens, Time now = Now());

  struct Counts {
    uint64_t requests = 0, refused = 0, tokens = 0;
    size_t running = 0;
  };
  Counts counts() const;

 private:
  void Refill(Time now);

  const std::string name_;
  mutable std::mutex mutex_;
  ClientOptions options_;
  double left_ = 0;  // tokens; negative if requests have used more than the quota
  Time filled_;      // when left_ was refilled
  Counts counts_;
};

// Thread-safe.
class Clients {
 public:
  // The clients from now on. A client that stays keeps its use of the quotas.
  void Set(std::vector<ClientOptions> options);
  bool empty() const { return All().empty(); }
  std::shared_ptr<Client> Find(std::string_view key) const;
  // In the order of the options.
  std::vector<std::shared_ptr<Client>> All() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Client>> clients_;
};

// The states of a client, in a folder that is opened when they are first used. Thread-safe.
class ClientStates : public StateKeeper {
 public:
  explicit ClientStates(StateStoreOptions options) : options_(std::move(options)) {}

  // Throws InputError if the folder cannot be used.
  void Open();
  // Opens the folder if necessary. If it cannot be used, logs the reason, which has paths, and
  // throws Refusal (500).
  StateStore& store();

  std::string NewName() override;
  std::shared_ptr<void> Reserve(const Model& model, size_t count,
                                const std::optional<std::string>& name) override;
  void Keep(const std::string& model_name, std::shared_ptr<const Model> model,
            const std::string& name, Snapshot snapshot,
            std::function<void(const std::string& fault)> done) override;
  std::shared_ptr<const Snapshot> Find(const std::string& model_name, const Model& model,
                                       const std::string& name) override;

 private:
  const StateStoreOptions options_;
  std::mutex mutex_;
  std::unique_ptr<StateStore> store_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_CLIENTS_H_
