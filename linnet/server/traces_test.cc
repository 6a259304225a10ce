#include "linnet/server/traces.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "linnet/error.h"
#include "linnet/server/test_util.h"

namespace linnet::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kSpan = "b7ad6b7169203331";

TEST(TraceParent, IsReadAsTraceContextDemands) {
  const auto parent = ParseTraceParent("00-" + kTrace + "-" + kSpan + "-01");
  ASSERT_TRUE(parent);
  EXPECT_EQ(parent->trace, kTrace);
  EXPECT_EQ(parent->span, kSpan);
  EXPECT_TRUE(parent->sampled);
  EXPECT_FALSE(ParseTraceParent("00-" + kTrace + "-" + kSpan + "-02")->sampled);
  EXPECT_TRUE(ParseTraceParent("01-" + kTrace + "-" + kSpan + "-03-further"));  // later versions
  for (const std::string& wrong :
       {std::string(), "00-" + kTrace + "-" + kSpan, "00-" + kTrace + "-" + kSpan + "-0",
        "00-" + kTrace + "-" + kSpan + "-01-further", "01-" + kTrace + "-" + kSpan + "-01further",
        "ff-" + kTrace + "-" + kSpan + "-01", "0g-" + kTrace + "-" + kSpan + "-01",
        "00-" + std::string(32, '0') + "-" + kSpan + "-01",
        "00-" + kTrace + "-" + std::string(16, '0') + "-01",
        "00-" + std::string("0AF7651916CD43DD8448EB211C80319C") + "-" + kSpan + "-01",
        "00-" + kTrace + "-" + kSpan + "-0x", "00_" + kTrace + "-" + kSpan + "-01"}) {
    EXPECT_FALSE(ParseTraceParent(wrong)) << wrong;
  }
}

class Traces : public testing::Test {
 protected:
  Traces() { fs::remove(path_); }
  ~Traces() override { fs::remove(path_); }

  // The spans of each line in the file.
  std::vector<json> Lines() const {
    std::vector<json> lines;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      const json trace = json::parse(line);
      EXPECT_EQ(trace["resourceSpans"].size(), 1u);
      EXPECT_EQ(trace["resourceSpans"][0]["scopeSpans"].size(), 1u);
      lines.push_back(trace["resourceSpans"][0]["scopeSpans"][0]["spans"]);
    }
    return lines;
  }
  static std::string Value(const json& span, const std::string& name) {
    for (const json& attribute : span["attributes"]) {
      if (attribute["key"] == name) return attribute["value"].begin().value();
    }
    return "";
  }
  static std::pair<uint64_t, uint64_t> Times(const json& span) {
    return {std::stoull(span["startTimeUnixNano"].get<std::string>()),
            std::stoull(span["endTimeUnixNano"].get<std::string>())};
  }
  static httplib::Headers From(const std::string& flags) {
    return {{"traceparent", "00-" + kTrace + "-" + kSpan + "-" + flags}};
  }

  const std::string path_ =
      (fs::temp_directory_path() / ("linnet_traces_test." + std::to_string(getpid()))).string();
};

TEST_F(Traces, HaveThePartsOfARequest) {
  std::mutex mutex;
  std::string log;
  {
    ServerOptions options{.traces = path_};
    options.log = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      log += line + "\n";
    };
    RunningServer running({.threads = 1, .sequences = 2}, options);
    httplib::Client client("127.0.0.1", running.port());
    client.set_read_timeout(600);
    client.set_keep_alive(true);  // requests of a connection end in their order
    const std::string body = R"({"prompt": "abcdef", "max_tokens": 5, "seed": 1, "n": 2})";
    const auto post = [&](const httplib::Headers& headers, const std::string& text) {
      return client.Post("/v1/completions", headers, text, "application/json");
    };
    ASSERT_EQ(post(From("01"), body)->status, 200);
    ASSERT_EQ(post(From("00"), body)->status, 200);  // the caller does not record it
    ASSERT_EQ(post({}, body)->status, 200);
    ASSERT_EQ(post({}, "{")->status, 400);
    ASSERT_EQ(client.Get("/v1/models")->status, 200);
  }
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  const json& first = lines[0];
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[0]["name"], "POST /v1/completions");
  EXPECT_EQ(first[0]["parentSpanId"], kSpan);
  EXPECT_EQ(Value(first[0], "http.response.status_code"), "200");
  EXPECT_EQ(Value(first[0], "gen_ai.usage.input_tokens"), "6");
  EXPECT_EQ(Value(first[0], "gen_ai.usage.output_tokens"), "10");
  EXPECT_FALSE(Value(first[0], "linnet.request_id").empty());
  const char* const names[] = {"queue", "prompt", "generate"};
  for (size_t i = 1; i < first.size(); ++i) {
    EXPECT_EQ(first[i]["name"], names[i - 1]);
    EXPECT_EQ(first[i]["traceId"], kTrace);
    EXPECT_EQ(first[i]["parentSpanId"], first[0]["spanId"]);
    EXPECT_TRUE(i == 1 || Times(first[i]).first == Times(first[i - 1]).second);
    EXPECT_LE(Times(first[i]).first, Times(first[i]).second);
  }
  EXPECT_LE(Times(first[0]).first, Times(first[1]).first);
  EXPECT_LE(Times(first[3]).second, Times(first[0]).second);
  EXPECT_FALSE(lines[1][0].contains("parentSpanId"));
  EXPECT_NE(lines[1][0]["traceId"], kTrace);
  ASSERT_EQ(lines[2].size(), 1u);  // refused before it reached a model
  EXPECT_EQ(Value(lines[2][0], "http.response.status_code"), "400");
  // The log names the caller's trace, recorded or not.
  const std::lock_guard lock(mutex);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 5);
  EXPECT_NE(log.find("trace " + kTrace), std::string::npos);
  EXPECT_NE(log.find("trace " + kTrace), log.rfind("trace " + kTrace));
}

// A state that a client keeps has no generated tokens. Strangers cannot make the file grow.
TEST_F(Traces, AreOfRequestsToModels) {
  const std::string folder = path_ + ".states";
  fs::create_directory(folder);
  {
    ServerOptions options{.api_key = "key", .states = {.folder = folder}, .traces = path_};
    RunningServer running({.threads = 1, .sequences = 2}, options);
    httplib::Client client("127.0.0.1", running.port());
    client.set_read_timeout(600);
    const std::string body = R"({"prompt": "abcdef"})";
    EXPECT_EQ(client.Post("/v1/states", body, "application/json")->status, 401);
    EXPECT_EQ(client.Post("/healthz", body, "application/json")->status, 405);
    client.set_bearer_token_auth("key");
    EXPECT_EQ(client.Post("/metrics", body, "application/json")->status, 405);
    EXPECT_EQ(client.Post("/v1/states", body, "application/json")->status, 200);
  }
  fs::remove_all(folder);
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  ASSERT_EQ(lines[0].size(), 3u);
  EXPECT_EQ(lines[0][0]["name"], "POST /v1/states");
  EXPECT_EQ(lines[0][1]["name"], "queue");
  EXPECT_EQ(lines[0][2]["name"], "prompt");
}

TEST_F(Traces, NameFailures) {
  const auto status = [](const std::string& fault, int code) {
    Account account;
    account.Failed(fault);
    HttpRequest request;
    request.start = account.start;
    const json trace = MakeTrace({}, request, &account, code);
    const json& span = trace["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    return span.contains("status") ? span["status"] : json();
  };
  EXPECT_EQ(status("", 200), json());
  EXPECT_EQ(status("told so", 200), json({{"code", 2}, {"message", "told so"}}));  // a stream
  EXPECT_EQ(status("told so", 400), json());
  EXPECT_EQ(status("told so", 500), json({{"code", 2}, {"message", "told so"}}));
  EXPECT_EQ(status("", 503), json({{"code", 2}}));
}

TEST_F(Traces, AppendToARegularFile) {
  EXPECT_THROW(TraceFile("/no/such/folder/traces", {}), InputError);
  EXPECT_THROW(TraceFile(fs::temp_directory_path().string(), {}), InputError);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THROW(TraceFile(path_, {}), InputError);
  fs::remove(path_);
  for (int i = 0; i < 2; ++i) TraceFile(path_, {}).Write({{"resourceSpans", i}});
  std::ifstream file(path_);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "{\"resourceSpans\":0}\n{\"resourceSpans\":1}\n");
}

TEST_F(Traces, ReportAFailedWriteOnce) {
  std::vector<std::string> log;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  TraceFile traces(path_, [&](const std::string& line) { log.push_back(line); });
  traces.Write({{"a", 1}});
  rlimit small = before;
  small.rlim_cur = 10;
  setrlimit(RLIMIT_FSIZE, &small);
  traces.Write({{"a", 2}});
  traces.Write({{"a", 3}});
  setrlimit(RLIMIT_FSIZE, &before);
  traces.Write({{"a", 4}});
  EXPECT_EQ(log.size(), 1u);
  std::ifstream file(path_);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "{\"a\":1}\n{\"\n{\"a\":4}\n");
}

}  // namespace
}  // namespace linnet::server
