// Models behind HTTP: JSON in, JSON or server-sent events out, pages for people.
//
//   Server server({{"couplet", std::move(batcher)}}, {.port = 8080});
//   const int port = server.Bind();       // it is reachable from here on
//   server.Run();                         // until another thread calls Drain()
//
// What it answers is said in docs/http.md. Each connection has a thread of its own, so that idle ones hold
// up nobody; each model one that computes (batcher.h).
#ifndef LINNET_SERVER_SERVER_H_
#define LINNET_SERVER_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "linnet/server/batcher.h"

namespace linnet::server {

// A model that is served, under a name.
struct Served {
  std::string name;
  std::unique_ptr<Batcher> batcher;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;           // 0: any that is free
  std::string api_key = {};  // that /v1 and /metrics ask for; "": none
  EndpointLimits limits = {};
  size_t body = 1 << 20;      // bytes of a request's
  size_t connections = 2048;  // at once; more wait for one that ends
  double seconds = 60;        // a request's time, waiting and computing
  // Called with a line for each request that was answered, from any thread; may be empty.
  std::function<void(const std::string& line)> log = {};
};

class Server {
 public:
  Server(std::vector<Served> models, ServerOptions options);
  ~Server();

  // Takes the port and returns it. Throws InputError where it cannot.
  int Bind();
  // Answers requests until Drain() has been called and what was running is finished.
  void Run();
  // From any thread: refuses new requests (503), lets those that run finish within `seconds`, ends Run().
  void Drain(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_SERVER_H_
