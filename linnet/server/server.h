// Serves models over HTTP: JSON requests, JSON or server-sent events as responses, and web pages.
//
//   std::vector<Served> models;
//   models.push_back({"couplet", std::move(batcher)});
//   Server server(std::move(models), {.http = {.port = 8080}});
//   const int port = server.Bind();       // accepts connections from here on
//   server.Run();                         // until another thread calls Drain()
//
// docs/http.md specifies the protocol. The transport (http_server.h) has a few threads for all
// connections; each model has one thread that computes (batcher.h).
#ifndef LINNET_SERVER_SERVER_H_
#define LINNET_SERVER_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "linnet/server/batcher.h"
#include "linnet/server/clients.h"
#include "linnet/server/http_server.h"
#include "linnet/server/state_store.h"

namespace linnet::server {

// A model and the name under which it is served.
struct Served {
  std::string name;
  std::unique_ptr<Batcher> batcher;
};

struct ServerOptions {
  HttpOptions http = {};
  std::string api_key = {};  // required by /v1 and /metrics; "": none
  // Clients with keys of their own, for /v1 but not for /metrics; may be empty. If there are any,
  // /v1 needs the key of one of them, or api_key, which has no quotas.
  std::vector<ClientOptions> clients = {};
  EndpointLimits limits = {};
  std::shared_ptr<const ChatFormat> chat = nullptr;  // of text models; null: no chats
  StateStoreOptions states = {};  // with an empty folder, clients cannot keep states
  double seconds = 60;            // maximum time of a request, waiting in the queue included
  std::string traces = {};        // file for traces of requests; "": none
  std::string site = {};          // folder of the web pages; "": those built into the server
  // For tests: replaces the check whether a request takes longer than `seconds`; may be empty.
  std::function<bool(const Account& request)> expired = {};
  // Called with one log line per finished request, from any thread; may be empty.
  std::function<void(const std::string& line)> log = {};
  // Called with faults that no answer reports, such as lost traces, from any thread; may be empty.
  std::function<void(const std::string& line)> warn = {};
};

class Server {
 public:
  // Throws InputError if the site, the folder of states or the file of traces cannot be used.
  Server(std::vector<Served> models, ServerOptions options);
  ~Server();

  // Binds the port and returns it. Throws InputError on failure.
  int Bind();
  // Serves requests until Drain() has been called and all running requests have ended.
  void Run();
  // Thread-safe. The clients of requests that arrive from now on. Clients that stay, by their
  // names, keep their use of the quotas.
  void SetClients(std::vector<ClientOptions> clients);
  // Thread-safe, but for one call at a time. Serves these models from now on, then waits until the
  // requests to the models before them have ended, and destroys those.
  void Reload(std::vector<Served> models);
  // Thread-safe. Refuses new requests (503), gives running ones `seconds` to finish, cancels those
  // that remain, and ends Run().
  void Drain(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_SERVER_H_
