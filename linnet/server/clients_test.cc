#include "linnet/server/clients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/test_util.h"
#include "linnet/server/test_util.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing::HasSubstr;

// The status of the refusal that `call` throws; 0 if it throws none. Sets `retry` to its seconds.
template <class Call>
int StatusOf(const Call& call, int* retry = nullptr) {
  try {
    call();
  } catch (const Refusal& refusal) {
    if (retry != nullptr) *retry = refusal.retry_after;
    return refusal.status;
  }
  return 0;
}

TEST(Client, TokensOfAMinuteAreRefilledContinuously) {
  const Client::Time start = Client::Now();
  Client client({.name = "a", .key = "k", .tokens_per_minute = 60}, start);
  const auto at = [&](int64_t s) { return start + seconds(s); };
  client.Begin(at(0));
  client.End(59, at(0));
  EXPECT_EQ(StatusOf([&] { client.Begin(at(0)); }), 0);  // one token is left
  client.End(11, at(0));
  int retry = 0;
  EXPECT_EQ(StatusOf([&] { client.Begin(at(0)); }, &retry), 429);
  EXPECT_EQ(retry, 11);  // ten that were used too many, and one to begin with
  EXPECT_EQ(StatusOf([&] { client.Begin(at(10)); }), 429);
  EXPECT_EQ(StatusOf([&] { client.Begin(at(11)); }), 0);
  client.End(0, at(11));
  client.Begin(at(3600));  // an hour of rest gives the tokens of one minute
  client.End(60, at(3600));
  EXPECT_EQ(StatusOf([&] { client.Begin(at(3600)); }), 429);
  EXPECT_EQ(client.counts().requests, 4);
  EXPECT_EQ(client.counts().refused, 3);
  EXPECT_EQ(client.counts().tokens, 130);
}

TEST(Client, RequestsAtTheSameTimeAreLimited) {
  Client client({.name = "a", .key = "k", .requests = 2});
  client.Begin();
  client.Begin();
  EXPECT_EQ(StatusOf([&] { client.Begin(); }), 429);
  client.End(1'000'000'000);
  EXPECT_EQ(StatusOf([&] { client.Begin(); }), 0);
  EXPECT_EQ(client.counts().running, 2);
}

TEST(Client, NewQuotasKeepTheShareThatIsLeft) {
  const Client::Time start = Client::Now();
  Client client({.name = "a", .key = "old", .tokens_per_minute = 60}, start);
  client.Begin(start);
  client.End(45, start);
  client.Set({.name = "a", .key = "new", .tokens_per_minute = 120}, start);
  EXPECT_FALSE(client.HasKey("old"));
  EXPECT_TRUE(client.HasKey("new"));
  client.Begin(start);  // a quarter is left
  client.End(30, start);
  EXPECT_EQ(StatusOf([&] { client.Begin(start); }), 429);
  client.Set({.name = "a", .key = "new"}, start);
  EXPECT_EQ(StatusOf([&] { client.Begin(start); }), 0);
  client.End(1000, start);
  client.Set({.name = "a", .key = "new", .tokens_per_minute = 5}, start);
  EXPECT_EQ(StatusOf([&] { client.Begin(start); }), 0);
}

TEST(Clients, StayAcrossAReload) {
  Clients clients;
  EXPECT_TRUE(clients.empty());
  EXPECT_EQ(clients.Find(""), nullptr);
  clients.Set({{.name = "a", .key = "1"}, {.name = "b", .key = "2"}});
  const auto a = clients.Find("1");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->name(), "a");
  clients.Set({{.name = "c", .key = "2"}, {.name = "a", .key = "3"}});
  EXPECT_EQ(clients.Find("1"), nullptr);
  EXPECT_EQ(clients.Find("3"), a);
  EXPECT_EQ(clients.Find("2")->name(), "c");
}

class ClientsFile : public testing::Test {
 protected:
  std::vector<ClientOptions> Read(const std::string& text) const {
    WriteFileAtomically(path_, text);
    return ReadClients(path_, "server");
  }
  TempDir dir_;
  const std::string path_ = dir_ / "clients.json";
};

TEST_F(ClientsFile, IsRead) {
  const auto clients = Read(R"({"clients": [
      {"name": "alice", "key": " secret\n", "tokens_per_minute": 6e4, "requests": 8, "state_mb": 2},
      {"name": "bob", "key": "other"}]})");
  ASSERT_EQ(clients.size(), 2);
  EXPECT_EQ(clients[0].name, "alice");
  EXPECT_EQ(clients[0].key, "secret");
  EXPECT_EQ(clients[0].tokens_per_minute, 60000);
  EXPECT_EQ(clients[0].requests, 8);
  EXPECT_EQ(clients[0].state_bytes, 2e6);
  EXPECT_EQ(clients[1].tokens_per_minute, std::numeric_limits<double>::infinity());
  EXPECT_LT(clients[1].state_bytes, 0);
}

TEST_F(ClientsFile, FaultsAreNamed) {
  const auto fault = [&](const std::string& text) { return ErrorOf([&] { Read(text); }); };
  const auto one = [](const std::string& fields) { return R"({"clients": [{)" + fields + "}]}"; };
  EXPECT_THAT(fault("{"), HasSubstr(path_ + ": is not valid JSON"));
  EXPECT_THAT(fault("[]"), HasSubstr("the file"));
  EXPECT_THAT(fault("{}"), HasSubstr("'clients'"));
  EXPECT_THAT(fault(R"({"clients": []})"), HasSubstr("'clients'"));
  EXPECT_THAT(fault(R"({"clients": [1]})"), HasSubstr("client 1: it is not a JSON object"));
  EXPECT_THAT(fault(one(R"("key": "k")")), HasSubstr("name"));
  EXPECT_THAT(fault(one(R"("name": "../a", "key": "k")")), HasSubstr("'../a'"));
  EXPECT_THAT(fault(one(R"("name": "a")")), HasSubstr(": client 1: 'key': contains no key"));
  EXPECT_THAT(fault(one(R"("name": "a", "key": "k k")")), HasSubstr("a blank"));
  EXPECT_THAT(fault(one(R"("name": "a", "key": "k", "requests": 0)")),
              HasSubstr("client 1: 'requests' is 0"));
  EXPECT_THAT(fault(one(R"("name": "a", "key": "k", "token_per_minute": 1)")),
              HasSubstr("tokens_per_minute"));
  EXPECT_THAT(fault(R"({"clients": [{"name": "a", "key": "k"}, {"name": "a", "key": "l"}]})"),
              HasSubstr("client 2: another client has the name 'a'"));
  EXPECT_THAT(fault(R"({"clients": [{"name": "a", "key": "hush"}, {"name": "b", "key": "hush"}]})"),
              AllOf(HasSubstr("client 2: its key"), Not(HasSubstr("hush"))));
  EXPECT_THAT(fault(one(R"("name": "a", "key": "server")")), HasSubstr("that of the server"));
  EXPECT_THROW(ReadClients(dir_ / "none.json", ""), InputError);
}

// A server of two clients and an operator.
class ServedClients : public testing::Test {
 protected:
  ServerOptions Options() {
    ServerOptions options;
    options.api_key = "operator";
    options.clients = {{.name = "alice", .key = "a", .tokens_per_minute = 30, .requests = 1},
                       {.name = "bob", .key = "b", .state_bytes = 1e6}};
    options.states.folder = dir_ / "states";
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_.push_back(line);
      logged_.notify_all();
    };
    return options;
  }
  httplib::Client As(const std::string& key) const {
    httplib::Client client("127.0.0.1", server_.port());
    client.set_read_timeout(600);
    if (!key.empty()) client.set_bearer_token_auth(key);
    return client;
  }
  int Complete(const std::string& key, const json& body, json* answer = nullptr) const {
    const auto result = As(key).Post("/v1/completions", body.dump(), "application/json");
    if (answer != nullptr) *answer = json::parse(result->body);
    return result->status;
  }
  int Get(const std::string& key, const std::string& path) const {
    return As(key).Get(path)->status;
  }
  // Waits until the log has a line with all the `parts`: a client has its answer before the line is
  // written.
  void ExpectLogged(const std::vector<std::string>& parts) {
    std::unique_lock lock(mutex_);
    const auto has = [&](const std::string& line) {
      return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
        return line.find(part) != std::string::npos;
      });
    };
    EXPECT_TRUE(logged_.wait_for(lock, seconds(60), [&] {
      return std::any_of(log_.begin(), log_.end(), has);
    })) << testing::PrintToString(log_);
  }

  TempDir dir_;
  std::mutex mutex_;
  std::condition_variable logged_;
  std::vector<std::string> log_;
  RunningServer server_{{.sequences = 8}, Options()};
};

TEST_F(ServedClients, NeedAKey) {
  for (const std::string key : {"", "c", "A", "aa"}) {
    EXPECT_EQ(Complete(key, {{"prompt", "x"}, {"max_tokens", 1}}), 401);
    EXPECT_EQ(Get(key, "/metrics"), 401);
    EXPECT_EQ(Get(key, "/v1/states"), 401);
  }
  for (const std::string key : {"a", "b", "operator"}) {
    EXPECT_EQ(Complete(key, {{"prompt", "x"}, {"max_tokens", 1}}), 200);
    EXPECT_EQ(Get(key, "/v1/models"), 200);
    EXPECT_EQ(Get(key, "/metrics"), key == "operator" ? 200 : 403);
  }
  EXPECT_EQ(Get("", "/healthz"), 200);
}

TEST_F(ServedClients, TokensAreCountedAndLimited) {
  // 6 tokens are read (the beginning is not counted) and 30 generated.
  EXPECT_EQ(Complete("a", {{"prompt", "abcdef"}, {"max_tokens", 30}, {"seed", 1}}), 200);
  const auto refused =
      As("a").Post("/v1/completions", R"({"prompt": "x", "max_tokens": 1})", "application/json");
  EXPECT_EQ(refused->status, 429);
  EXPECT_GE(std::stoi(refused->get_header_value("Retry-After")), 1);
  EXPECT_NE(refused->body.find("30 tokens a minute"), std::string::npos);
  EXPECT_EQ(Complete("b", {{"prompt", "x"}, {"max_tokens", 1}}), 200);
  const std::string metrics = As("operator").Get("/metrics")->body;
  EXPECT_NE(metrics.find("linnet_client_tokens_total{client=\"alice\"} 36\n"), std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("linnet_client_refused_total{client=\"alice\"} 1\n"), std::string::npos);
  EXPECT_NE(metrics.find("linnet_client_requests_running{client=\"alice\"} 0\n"),
            std::string::npos);
  ExpectLogged({", client alice"});
}

// A client that may have one request at a time, and sends the next one as soon as it has the end of
// the answer, is never refused; nor if it only has the last event of a stream.
TEST_F(ServedClients, OneAfterAnotherIsNeverTooMany) {
  server_.server().SetClients({{.name = "alice", .key = "a", .requests = 1}});
  for (int i = 0; i < 100; ++i) {
    const bool stream = i % 2 == 0;
    EXPECT_EQ(Complete("a", {{"prompt", "x"}, {"max_tokens", 2}, {"stream", stream}}), 200);
    EXPECT_EQ(Complete("a", {{"prompt", "x"}, {"max_tokens", "many"}}), 400);
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.headers = {{"Content-Type", "application/json"}};
    request.body = R"({"prompt": "x", "max_tokens": 2, "stream": true})";
    std::string got;
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      got.append(data, size);
      return got.find("[DONE]") == got.npos;  // closes the connection
    };
    As("a").send(request);
    EXPECT_NE(got.find("[DONE]"), std::string::npos) << got;
  }
  EXPECT_EQ(Complete("b", {{"prompt", "x"}, {"max_tokens", 2}}), 401);  // no longer a client
}

// Whoever has lost the key while the body arrives does not become another sender.
TEST_F(ServedClients, StayWhoTheyAreDuringARequest) {
  ASSERT_EQ(As("operator")
                .Post("/v1/states", R"({"id": "secret", "prompt": "ab"})", "application/json")
                ->status,
            200);
  const std::string body = R"({"state": "secret", "max_tokens": 1})";
  size_t sent = 0;
  const auto result = As("b").Post(
      "/v1/completions", {}, body.size(),
      [&](size_t offset, size_t, httplib::DataSink& sink) {
        if (offset > 0) server_.server().SetClients({{.name = "alice", .key = "a"}});
        const size_t size = offset == 0 ? 1 : body.size() - offset;
        if (offset == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        sink.write(body.data() + offset, size);
        sent = offset + size;
        return true;
      },
      "application/json");
  EXPECT_EQ(sent, body.size());
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 404) << result->body;  // bob has no state of this name
  ExpectLogged({" 404 ", ", client bob"});
}

TEST_F(ServedClients, LearnNothingOfEachOthersPrompts) {
  const json body = {{"prompt", std::string(200, 'x')}, {"max_tokens", 1}};
  const auto cached = [&](const std::string& key) -> int {
    json answer;
    EXPECT_EQ(Complete(key, body, &answer), 200);
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
  };
  server_.server().SetClients({{.name = "alice", .key = "a"}, {.name = "bob", .key = "b"}});
  EXPECT_EQ(cached("a"), 0);
  EXPECT_GT(cached("a"), 100);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached("operator"), 0);
}

TEST_F(ServedClients, ABrokenFolderOfStatesStopsNothingElse) {
  std::filesystem::create_directories(dir_ / "states");
  WriteFileAtomically(dir_ / "states/bob.client", "a file");
  EXPECT_EQ(Complete("b", {{"prompt", "x"}, {"max_tokens", 1}}), 200);
  const auto kept = As("b").Post("/v1/states", R"({"prompt": "ab"})", "application/json");
  EXPECT_EQ(kept->status, 500);
  EXPECT_EQ(kept->body.find(dir_.path()), std::string::npos) << kept->body;
  EXPECT_EQ(Get("b", "/v1/states"), 500);
  EXPECT_EQ(Get("a", "/v1/states"), 200);
}

TEST_F(ServedClients, MayWriteTheSchemeAsTheyLike) {
  for (const std::string given : {"Bearer a", "BEARER a", "bearer   a"}) {
    httplib::Client client("127.0.0.1", server_.port());
    EXPECT_EQ(client.Get("/v1/models", {{"Authorization", given}})->status, 200) << given;
  }
  for (const std::string given : {"a", "Basic a", "Bearer", "Bearer a a", "Bearera"}) {
    httplib::Client client("127.0.0.1", server_.port());
    EXPECT_EQ(client.Get("/v1/models", {{"Authorization", given}})->status, 401) << given;
  }
}

TEST_F(ServedClients, HaveStatesOfTheirOwn) {
  const auto keep = [&](const std::string& key, const std::string& name) {
    const json body = {{"id", name}, {"prompt", "ab"}};
    return As(key).Post("/v1/states", body.dump(), "application/json")->status;
  };
  EXPECT_EQ(keep("a", "mine"), 200);
  EXPECT_EQ(keep("b", "mine"), 200);  // another state of the same name
  EXPECT_EQ(keep("a", "mine"), 409);
  EXPECT_EQ(keep("a", "more"), 200);
  EXPECT_EQ(Get("a", "/v1/states/more"), 200);
  EXPECT_EQ(Get("b", "/v1/states/more"), 404);
  EXPECT_EQ(Get("operator", "/v1/states/mine"), 404);
  EXPECT_EQ(json::parse(As("b").Get("/v1/states")->body)["data"].size(), 1);
  EXPECT_EQ(As("b").Delete("/v1/states/more")->status, 404);
  EXPECT_EQ(Complete("b", {{"state", "more"}, {"max_tokens", 1}}), 404);
  EXPECT_EQ(Complete("a", {{"state", "more"}, {"max_tokens", 1}}), 200);
  json answer;
  EXPECT_EQ(Complete("b", {{"prompt", "x"}, {"max_tokens", 1}, {"return_state", true}}, &answer),
            200);
  const std::string name = answer["choices"][0]["state"];
  EXPECT_EQ(Get("b", "/v1/states/" + name), 200);
  EXPECT_EQ(Get("a", "/v1/states/" + name), 404);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "states/alice.client/text.states/more.state"));
}

TEST_F(ServedClients, HaveRoomOfTheirOwn) {
  int kept = 0;
  const auto keep = [&](const std::string& key) {
    return As(key).Post("/v1/states", R"({"prompt": "ab"})", "application/json")->status;
  };
  while (kept < 10000 && keep("b") == 200) ++kept;
  EXPECT_GT(kept, 1);
  EXPECT_EQ(keep("b"), 507);
  EXPECT_EQ(keep("a"), 200);
}

}  // namespace
}  // namespace linnet::server
