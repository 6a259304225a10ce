// For tests of the server: a running server with a text model of random weights, and requests to a
// batcher whose results are gathered.
//
//   RunningServer server({.sequences = 8}, {});
//   const httplib::Result result = server.Complete({{"prompt", "a"}});
//
//   Gathered gathered;
//   batcher.Submit(gathered.Make(Prompt(100, 0), /*sequences=*/1, /*most=*/20, /*number=*/0));
//   gathered.Wait();                                      // then read gathered.tokens_[0]
#ifndef LINNET_SERVER_TEST_UTIL_H_
#define LINNET_SERVER_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <httplib.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "linnet/rng.h"
#include "linnet/runtime/test_util.h"
#include "linnet/sampling.h"
#include "linnet/server/batcher.h"
#include "linnet/server/server.h"
#include "linnet/tasks/endpoint.h"

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

  Batcher& batcher() { return *batcher_; }  // until models are reloaded
  Server& server() { return server_; }
  int port() const { return port_; }
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

using Tokens = std::vector<int32_t>;

inline std::shared_ptr<const Model> TestModel() {
  static const auto model = RandomModel("text", "character", 700);
  return model;
}

inline Tokens Prompt(size_t length, uint64_t stream) {
  Philox rng(3, stream);
  Tokens prompt(length);
  for (int32_t& token : prompt) token = 3 + static_cast<int32_t>(rng.Below(15));
  return prompt;
}

// The results of requests, gathered from the batcher's thread.
class Gathered {
 public:
  // Draws `most` tokens per sequence, at a temperature that exposes any difference in the outputs.
  // `number` is the key of the results in the maps below.
  Work Make(const Tokens& prompt, size_t sequences, size_t most, size_t number) {
    Work work{.prompt = prompt, .sequences = sequences, .next = {}, .ended = {}};
    auto rngs = std::make_shared<std::vector<Philox>>();
    for (size_t i = 0; i < sequences; ++i) rngs->emplace_back(5, i);
    {
      const std::lock_guard lock(mutex_);
      tokens_[number].resize(sequences);
      left_ += sequences;
    }
    work.begun = [this, number](size_t known) {
      const std::lock_guard lock(mutex_);
      known_[number] = known;
    };
    work.next = [this, number, most, rngs](
                    size_t i, std::span<const float> outputs) -> std::optional<int32_t> {
      const std::lock_guard lock(mutex_);
      std::vector<float> logits(outputs.begin(), outputs.end());
      outputs_[number].insert(outputs_[number].end(), outputs.begin(), outputs.end());
      Tokens& tokens = tokens_[number][i];
      if (tokens.size() == most) return {};
      tokens.push_back(linnet::Choose(logits, {}, (*rngs)[i]));
      return tokens.back();
    };
    work.ended = [this, number](size_t, Ended how, const std::string& why) {
      const std::lock_guard lock(mutex_);
      how_[number].push_back(how);
      why_[number] = why;
      --left_;
      changed_.notify_all();
    };
    return work;
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return left_ == 0; }));
  }

  std::map<size_t, std::vector<Tokens>> tokens_;
  std::map<size_t, std::vector<float>> outputs_;
  std::map<size_t, size_t> known_;
  std::map<size_t, std::vector<Ended>> how_;
  std::map<size_t, std::string> why_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_ = 0;
};

}  // namespace linnet::server

#endif  // LINNET_SERVER_TEST_UTIL_H_
