// For tests of the server: a running server with a text model of random weights.
//
//   RunningServer server({.sequences = 8}, {});
//   const httplib::Result result = server.Complete({{"prompt", "a"}});
#ifndef LINNET_SERVER_TEST_UTIL_H_
#define LINNET_SERVER_TEST_UTIL_H_

#include <httplib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "linnet/runtime/test_util.h"
#include "linnet/server/batcher.h"
#include "linnet/server/server.h"

namespace linnet::server {

// A server of a text model, on a separate thread.
class RunningServer {
 public:
  RunningServer(const BatcherOptions& batcher, ServerOptions options,
                const std::shared_ptr<const Model>& model = RandomModel("text", "byte", 2000))
      : batcher_(new Batcher(model, batcher)),
        server_(Models(batcher_), WithAnyPort(std::move(options))),
        port_(server_.Bind()),
        thread_([this] { server_.Run(); }) {}
  ~RunningServer() {
    server_.Drain(0);
    thread_.join();
  }

  Batcher& batcher() { return *batcher_; }
  httplib::Result Complete(const nlohmann::json& body) const {
    return Client().Post("/v1/completions", body.dump(), "application/json");
  }
  httplib::Result Get(const std::string& path) const { return Client().Get(path); }

 private:
  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(600);  // the thread sanitizer takes long
    return client;
  }
  static std::vector<Served> Models(Batcher* batcher) {
    std::vector<Served> models;
    models.push_back({"text", std::unique_ptr<Batcher>(batcher)});
    return models;
  }
  static ServerOptions WithAnyPort(ServerOptions options) {
    options.http.port = 0;
    return options;
  }

  Batcher* const batcher_;  // owned by server_
  Server server_;
  const int port_;
  std::thread thread_;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_TEST_UTIL_H_
