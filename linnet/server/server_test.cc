#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "linnet/error.h"
#include "linnet/rng.h"
#include "linnet/runtime/test_util.h"
#include "linnet/sampling.h"
#include "linnet/server/batcher.h"
#include "linnet/server/metrics.h"
#include "linnet/server/server.h"
#include "linnet/server/snapshots.h"
#include "linnet/server/test_util.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {
namespace {

// Waits until the batcher has no requests left; false after a minute.
bool BecomesIdle(const Batcher& batcher) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!batcher.idle() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return batcher.idle();
}

TEST(Batcher, SequencesOfAPromptReadItOnce) {
  Batcher batcher(TestModel(), {.threads = 2, .sequences = 3, .queue = 10});
  Gathered gathered;
  const Tokens prompt = Prompt(200, 1);
  ASSERT_TRUE(batcher.Submit(gathered.Make(prompt, 5, 12, 0)));
  gathered.Wait();
  EXPECT_EQ(batcher.counts().read, prompt.size());
  // Each sequence equals a single request with the same random stream; this checks the first one.
  Gathered one;
  ASSERT_TRUE(batcher.Submit(one.Make(prompt, 1, 12, 0)));
  one.Wait();
  EXPECT_EQ(one.tokens_[0][0], gathered.tokens_[0][0]);
  const std::set<Tokens> distinct(gathered.tokens_[0].begin(), gathered.tokens_[0].end());
  EXPECT_EQ(distinct.size(), 5u);
  EXPECT_EQ(gathered.how_[0], std::vector<Ended>(5, Ended::kDone));
  EXPECT_TRUE(BecomesIdle(batcher));
}

TEST(Batcher, AdmitsRequestsUpToItsCapacity) {
  Batcher batcher(TestModel(), {.threads = 1, .sequences = 2, .queue = 3});
  Gathered gathered;
  std::vector<uint64_t> taken;
  for (size_t i = 0; i < 5; ++i) {
    const auto id = batcher.Submit(gathered.Make(Prompt(5, i), 1, 400, i));
    ASSERT_TRUE(id) << i;
    taken.push_back(*id);
  }
  Gathered refused;
  EXPECT_FALSE(batcher.Submit(refused.Make(Prompt(5, 9), 1, 400, 0)));
  EXPECT_THROW(batcher.Submit(refused.Make(Prompt(5, 9), 6, 400, 0)), Error);
  EXPECT_THROW(batcher.Submit(refused.Make({}, 1, 400, 0)), Error);
  EXPECT_THROW(batcher.Submit(refused.Make(Prompt(701, 9), 1, 400, 0)), Error);
  for (const uint64_t id : taken) batcher.Cancel(id);
  gathered.Wait();
  EXPECT_TRUE(BecomesIdle(batcher));
  Gathered after;
  ASSERT_TRUE(batcher.Submit(after.Make(Prompt(5, 9), 5, 3, 0)));
  after.Wait();
  EXPECT_EQ(after.how_[0], std::vector<Ended>(5, Ended::kDone));
}

// The tokens of prompts are limited, but a request alone may have any number.
TEST(Batcher, AdmitsPromptsUpToTheirTokens) {
  Batcher batcher(TestModel(), {.threads = 1, .sequences = 2, .queue = 100, .prompt_tokens = 1000});
  Gathered gathered, refused, alone;
  ASSERT_TRUE(batcher.Submit(gathered.Make(Prompt(600, 0), 1, 5, 0)));
  EXPECT_FALSE(batcher.Submit(refused.Make(Prompt(600, 1), 1, 5, 0)));
  ASSERT_TRUE(batcher.Submit(gathered.Make(Prompt(400, 1), 1, 5, 1)));
  EXPECT_FALSE(batcher.Submit(refused.Make(Prompt(1, 1), 1, 5, 0)));
  gathered.Wait();
  EXPECT_TRUE(BecomesIdle(batcher));
  std::vector<Work> both;
  for (size_t i = 0; i < 2; ++i) both.push_back(alone.Make(Prompt(600, i), 1, 5, i));
  ASSERT_TRUE(batcher.Submit(std::move(both)));
  alone.Wait();
  EXPECT_EQ(alone.how_[1], std::vector<Ended>(1, Ended::kDone));
}

// The prompts of a request are admitted together or not at all, and canceled together.
TEST(Batcher, PromptsOfARequestAreAdmittedTogether) {
  Batcher batcher(TestModel(), {.threads = 1, .sequences = 2, .queue = 3});
  Gathered gathered;
  const auto several = [](Gathered& to, size_t prompts, size_t most) {
    std::vector<Work> works;
    for (size_t i = 0; i < prompts; ++i) works.push_back(to.Make(Prompt(5 + i, i), 2, most, i));
    return works;
  };
  Gathered refused;
  EXPECT_THROW(batcher.Submit(several(refused, 3, 10)), Error);  // six sequences
  EXPECT_THROW(batcher.Submit(std::vector<Work>()), Error);
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::vector<Work> held = several(gathered, 2, 600);
  for (Work& work : held) {
    work.next = [released, next = work.next](size_t i, std::span<const float> outputs) {
      released.wait();
      return next(i, outputs);
    };
  }
  const auto id = batcher.Submit(std::move(held));
  ASSERT_TRUE(id);
  EXPECT_FALSE(batcher.Submit(several(refused, 1, 10)));  // four of five places are taken
  batcher.Cancel(*id);
  release.set_value();
  gathered.Wait();
  for (const size_t prompt : {0u, 1u}) {
    EXPECT_EQ(gathered.how_[prompt], std::vector<Ended>(2, Ended::kCancelled));
  }
  EXPECT_TRUE(BecomesIdle(batcher));
  Gathered together, alone;
  ASSERT_TRUE(batcher.Submit(several(together, 2, 20)));
  together.Wait();
  EXPECT_TRUE(BecomesIdle(batcher));
  ASSERT_TRUE(batcher.Submit(alone.Make(Prompt(6, 1), 2, 20, 1)));
  alone.Wait();
  EXPECT_EQ(together.tokens_[1], alone.tokens_[1]);
  EXPECT_NE(together.tokens_[0], alone.tokens_[1]);
}

TEST(Batcher, AFailureAffectsOnlyItsRequest) {
  Batcher batcher(TestModel(), {.threads = 1, .sequences = 4});
  Gathered gathered;
  Work bad = gathered.Make(Prompt(5, 1), 2, 10, 0);
  const auto next = bad.next;
  bad.next = [next](size_t i, std::span<const float> outputs) -> std::optional<int32_t> {
    if (i == 1) throw InputError("no token is left");
    return next(i, outputs);
  };
  ASSERT_TRUE(batcher.Submit(std::move(bad)));
  Work wild = gathered.Make(Prompt(5, 1), 1, 10, 1);
  wild.next = [](size_t, std::span<const float>) { return std::optional<int32_t>(10'000); };
  ASSERT_TRUE(batcher.Submit(std::move(wild)));
  ASSERT_TRUE(batcher.Submit(gathered.Make(Prompt(690, 2), 1, 40, 2)));
  gathered.Wait();
  EXPECT_EQ(gathered.how_[0], (std::vector<Ended>{Ended::kFailed, Ended::kDone}));
  EXPECT_EQ(gathered.tokens_[0][0].size(), 10u);
  EXPECT_EQ(gathered.how_[1], std::vector<Ended>{Ended::kFailed});
  EXPECT_EQ(gathered.how_[2], std::vector<Ended>{Ended::kFull});
  EXPECT_TRUE(BecomesIdle(batcher));
}

TEST(Batcher, DestructorEndsRemainingRequests) {
  Gathered gathered;
  {
    Batcher batcher(TestModel(), {.threads = 1, .sequences = 1});
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(batcher.Submit(gathered.Make(Prompt(5, i), 2, 600, i)));
    }
  }
  gathered.Wait();
}

// If a request expires while its tokens are generated, it returns the tokens generated by then.
TEST(Server, EndsARequestWhoseTimeIsOver) {
  constexpr size_t kSequences = 512, kTokens = 1500;
  const ServerOptions options{.limits = {.candidates = kSequences}};
  ServerOptions expiring = options;
  expiring.expired = [](const Account& request) { return request.generated > 0; };
  nlohmann::json body = {{"prompt", "a"}, {"max_tokens", kTokens}, {"n", kSequences}, {"seed", 1}};
  const auto generated = [](const httplib::Result& result) {
    return nlohmann::json::parse(result->body)["usage"]["completion_tokens"].get<size_t>();
  };
  size_t whole = 0;
  {
    RunningServer server({.threads = 2, .sequences = kSequences}, options);
    const httplib::Result result = server.Complete(body);
    ASSERT_TRUE(result);
    whole = generated(result);
  }
  RunningServer server({.threads = 2, .sequences = kSequences}, expiring);
  for (const bool stream : {false, true}) {
    body["stream"] = stream;
    const httplib::Result result = server.Complete(body);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, 200);
    EXPECT_NE(result->body.find("\"finish_reason\":\"length\""), std::string::npos);
    if (stream) {
      EXPECT_TRUE(result->body.ends_with("data: [DONE]\n\n"));
      continue;
    }
    EXPECT_GT(generated(result), 0u);
    EXPECT_LT(generated(result), whole);  // 1,500 steps take longer than the interval of Tick()
  }
}

// A request that expires in the queue is refused.
TEST(Server, RefusesARequestThatWaitsTooLong) {
  RunningServer server({.threads = 1, .sequences = 1, .queue = 10},
                       {.expired = [](const Account&) { return true; }});
  // Occupies the only place until the response has arrived.
  std::promise<void> begun, answered;
  Work work{
      .prompt = {3}, .sequences = 1, .next = {}, .ended = [](size_t, Ended, const std::string&) {}};
  work.next = [&](size_t, std::span<const float>) -> std::optional<int32_t> {
    begun.set_value();
    answered.get_future().wait();
    return {};
  };
  ASSERT_TRUE(server.batcher().Submit(std::move(work)));
  begun.get_future().wait();
  const httplib::Result result = server.Complete({{"prompt", "a"}, {"max_tokens", 10}});
  answered.set_value();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 503);
  EXPECT_NE(result->body.find("no place was free"), std::string::npos) << result->body;
}

// A request in progress ends with the models that it began with; later ones get the new models.
TEST(Server, ReloadsItsModels) {
  const auto serve = [](const char* name, uint64_t seed) {
    std::vector<Served> models;
    models.push_back(
        {name, std::make_unique<Batcher>(RandomModel("text", "byte", 5000, seed),
                                         BatcherOptions{.threads = 1, .sequences = 2})});
    return models;
  };
  const nlohmann::json body = {{"prompt", "abc"}, {"max_tokens", 40}, {"temperature", 0}};
  const auto text = [](const httplib::Result& result) {
    EXPECT_TRUE(result && result->status == 200) << (result ? result->body : "no answer");
    return nlohmann::json::parse(result->body)["choices"][0]["text"].get<std::string>();
  };
  RunningServer first({.threads = 1, .sequences = 2}, {.limits = {.tokens = 5000}},
                      RandomModel("text", "byte", 5000, 1));
  const std::string old_text = text(first.Complete(body));
  nlohmann::json slow = body;
  slow["max_tokens"] = 4000;
  const std::string slow_text = text(first.Complete(slow));
  std::thread running([&] { EXPECT_EQ(text(first.Complete(slow)), slow_text); });
  while (first.batcher().counts().running == 0) std::this_thread::yield();
  std::thread reloading([&] { first.server().Reload(serve("other", 2)); });
  while (first.Get("/v1/models/other")->status != 200) std::this_thread::yield();
  const std::string new_text = text(first.Complete(body));
  EXPECT_NE(new_text, old_text);
  EXPECT_EQ(first.Get("/v1/models/text")->status, 404);
  running.join();
  reloading.join();
  EXPECT_EQ(text(first.Complete(body)), new_text);
  // Another task's models, and back again while nobody asks.
  first.server().Reload(serve("third", 1));
  EXPECT_EQ(text(first.Complete(body)), old_text);
}

// The server may stop while it waits for the requests to the models before.
TEST(Server, StopsWhileItReloads) {
  std::thread reloading, running;
  {
    RunningServer server({.threads = 1, .sequences = 2}, {.limits = {.tokens = 100'000}},
                         RandomModel("text", "byte", 200'000, 1));
    running = std::thread([&] {
      server.Complete({{"prompt", "a"}, {"max_tokens", 100'000}, {"temperature", 0}});
    });
    while (server.batcher().counts().running == 0) std::this_thread::yield();
    std::vector<Served> models;
    models.push_back({"other", std::make_unique<Batcher>(RandomModel("text", "byte", 700, 2),
                                                         BatcherOptions{.threads = 1})});
    reloading = std::thread([&server, models = std::move(models)]() mutable {
      server.server().Reload(std::move(models));
    });
    while (server.Get("/v1/models/other")->status != 200) std::this_thread::yield();
    server.server().Drain(0);
    reloading.join();
    running.join();
  }
}

TEST(Fields, AreOfTheirTypesAndWithinTheirBounds) {
  const auto fine = nlohmann::ordered_json::parse(
      R"({"a": "x", "b": true, "c": 1.5, "d": 3, "f": null, "g": 2e0})");
  const Fields fields(fine, {"a", "b", "c", "d", "f", "g", "none"});
  EXPECT_EQ(fields.Text("a", ""), "x");
  EXPECT_TRUE(fields.Flag("b", false));
  EXPECT_EQ(fields.Number("c", 0, 0, 2), 1.5);
  EXPECT_EQ(fields.Integer("d", 0, 0, 3), 3);
  EXPECT_EQ(fields.Integer("g", 0, 0, 3), 2);
  EXPECT_EQ(fields.Integer("none", 8, 0, 3), 8);
  EXPECT_FALSE(fields.Has("f"));
  EXPECT_THROW(fields.Text("b", ""), Error);
  EXPECT_THROW(fields.Flag("a", false), Error);
  EXPECT_THROW(fields.Number("a", 0, 0, 1), Error);
  EXPECT_THROW(fields.Number("c", 0, 0, 1), Error);
  EXPECT_THROW(fields.Integer("c", 0, 0, 9), Error);
  EXPECT_THROW(fields.Integer("d", 0, 4, 9), Error);
  EXPECT_THROW(Fields(nlohmann::ordered_json::array(), {"a"}), Error);
}

TEST(Fields, NamesTheUnknownOneAndSuggests) {
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) names.push_back("field_number_" + std::to_string(i));
  names.push_back("max_tokens");
  const auto refusal = [&](const std::string& name) -> std::string {
    const nlohmann::ordered_json object = {{"field_number_3", 1}, {name, 1}};
    try {
      Fields fields(object, names);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("max_tokens"), "");
  EXPECT_EQ(refusal("max_token"), "unknown field 'max_token'; did you mean 'max_tokens'?");
  const std::string far = refusal("x");
  EXPECT_EQ(far.find("unknown field 'x'; the fields are 'field_number_0', "), 0u) << far;
  EXPECT_NE(far.find("'field_number_19', 'max_tokens'"), std::string::npos) << far;
}

TEST(Metrics, AreInPrometheusFormat) {
  Metrics metrics;
  metrics.Request("/a", 200, 0.003, 0.002);
  metrics.Request("/a", 200, 0.3, -1);
  metrics.Request("/a", 429, 100, -1);
  const std::string text = metrics.Text();
  const auto has = [&](const std::string& line) {
    EXPECT_NE(text.find(line + "\n"), std::string::npos) << line << "\n" << text;
  };
  has("linnet_requests_total{path=\"/a\",status=\"200\"} 2");
  has("linnet_requests_total{path=\"/a\",status=\"429\"} 1");
  has("linnet_request_seconds_bucket{path=\"/a\",le=\"0.0025\"} 0");
  has("linnet_request_seconds_bucket{path=\"/a\",le=\"0.005\"} 1");
  has("linnet_request_seconds_bucket{path=\"/a\",le=\"10\"} 2");
  has("linnet_request_seconds_bucket{path=\"/a\",le=\"+Inf\"} 3");
  has("linnet_request_seconds_count{path=\"/a\"} 3");
  has("linnet_first_token_seconds_count{path=\"/a\"} 1");
  has("# TYPE linnet_request_seconds histogram");
}

}  // namespace
}  // namespace linnet::server
