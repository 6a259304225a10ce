#include "linnet/server/state_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/server/test_util.h"

namespace linnet::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class States : public testing::Test {
 protected:
  ~States() override { fs::remove_all(folder_); }

  static httplib::Client Client(const RunningServer& server) {
    httplib::Client client("127.0.0.1", server.port());
    client.set_read_timeout(600);
    return client;
  }
  RunningServer Serve(double bytes = 1e9, uint64_t seed = 1) const {
    return {{.threads = 1, .sequences = 8, .queue = 100},
            {.states = {.folder = folder_, .bytes = bytes}},
            RandomModel("text", "byte", 2000, seed)};
  }
  // Posts to a path, and expects this status.
  static json Post(const RunningServer& server, const std::string& path, const json& body,
                   int status = 200) {
    const httplib::Result result = Client(server).Post(path, body.dump(), "application/json");
    EXPECT_TRUE(result && result->status == status)
        << body << (result ? result->body : "no answer");
    return result ? json::parse(result->body, nullptr, false) : json();
  }
  static json Complete(const RunningServer& server, json body, int status = 200) {
    body.update({{"temperature", 0}, {"logprobs", 0}});
    return Post(server, "/v1/completions", body, status);
  }
  // The texts and log-probabilities of answers, one after another.
  static std::string Joined(const std::vector<json>& choices) {
    std::string text, scores;
    for (const json& choice : choices) {
      text += choice["text"].get<std::string>();
      scores += choice["logprobs"]["token_logprobs"].dump();
    }
    while (scores.find("][") != std::string::npos) scores.replace(scores.find("]["), 2, ",");
    return text + scores;
  }

  const std::string folder_ =
      fs::temp_directory_path() / ("linnet_states_test." + std::to_string(getpid()));
};

TEST_F(States, ContinueBitForBitAlsoAfterARestart) {
  json choice, whole;
  {
    RunningServer server = Serve();
    whole = Complete(server, {{"prompt", "abc def"}, {"max_tokens", 60}})["choices"][0];
    choice = Complete(
        server, {{"prompt", "abc def"}, {"max_tokens", 25}, {"return_state", true}})["choices"][0];
    EXPECT_EQ(server.batcher().counts().generated, 60 + 25);
  }
  const RunningServer server = Serve();
  // Two continuations of one state, then one of them goes on.
  const json both = Complete(server, {{"state", choice["state"]},
                                      {"max_tokens", 20},
                                      {"n", 2},
                                      {"return_state", true}})["choices"];
  EXPECT_NE(both[0]["state"], both[1]["state"]);
  EXPECT_EQ(both[0]["text"], both[1]["text"]);
  const json end =
      Complete(server, {{"state", both[1]["state"]}, {"max_tokens", 15}})["choices"][0];
  EXPECT_EQ(Joined({choice, both[1], end}), Joined({whole}));
  EXPECT_FALSE(end.contains("state"));
}

TEST_F(States, AfterAPromptContinueTheText) {
  const RunningServer server = Serve();
  const std::string first(Engine::kCutPositions - 1, 'o');
  const json kept = Post(server, "/v1/states", {{"prompt", first}, {"id", "tale"}});
  EXPECT_EQ(kept["id"], "tale");
  ASSERT_EQ(kept["tokens"], Engine::kCutPositions);  // so continuations are exact
  const json copy = Post(server, "/v1/states", {{"state", "tale"}, {"id", "tale.2"}});
  EXPECT_EQ(copy["tokens"], kept["tokens"]);
  const json more = Post(server, "/v1/states", {{"state", "tale.2"}, {"prompt", " a time"}});
  EXPECT_EQ(more["tokens"].get<int>() - 7, kept["tokens"].get<int>());
  const auto text = [&](const json& body) { return Complete(server, body)["choices"][0]["text"]; };
  const json want = text({{"prompt", first + " a time"}, {"max_tokens", 30}});
  EXPECT_EQ(text({{"state", more["id"]}, {"max_tokens", 30}}), want);
  EXPECT_EQ(text({{"state", "tale"}, {"prompt", " a time"}, {"max_tokens", 30}}), want);
  // A stop string is read, too: the next text begins after it.
  const std::string stop = want.get<std::string>().substr(3, 2);
  const json stopped = Complete(server, {{"state", "tale"},
                                         {"prompt", " a time"},
                                         {"stop", stop},
                                         {"return_state", true},
                                         {"max_tokens", 30}})["choices"][0];
  EXPECT_EQ(stopped["finish_reason"], "stop");
  const std::string rest = text({{"state", stopped["state"]}, {"max_tokens", 10}});
  EXPECT_EQ(stopped["text"].get<std::string>() + stop + rest,
            want.get<std::string>().substr(
                0, stopped["text"].get<std::string>().size() + stop.size() + rest.size()));
}

TEST_F(States, AreListedAndRemoved) {
  const RunningServer server = Serve();
  httplib::Client client = Client(server);
  for (const char* id : {"b", "a"}) {
    Post(server, "/v1/states", {{"prompt", "x"}, {"id", id}});
  }
  const auto names = [&] {
    std::string text;
    const json list = json::parse(client.Get("/v1/states")->body);
    for (const json& one : list["data"]) {
      EXPECT_GT(one["bytes"], 1000);
      EXPECT_GT(one["created"], 1.7e9);
      text += one["id"].get<std::string>() + " ";
    }
    return text;
  };
  EXPECT_EQ(names(), "a b ");
  EXPECT_EQ(json::parse(client.Get("/v1/states/a")->body)["model"], "text");
  EXPECT_EQ(client.Delete("/v1/states/a")->status, 200);
  EXPECT_EQ(client.Delete("/v1/states/a")->status, 404);
  EXPECT_EQ(client.Get("/v1/states/a")->status, 404);
  EXPECT_EQ(names(), "b ");
  EXPECT_EQ(client.Put("/v1/states/b", "{}", "application/json")->status, 405);
  size_t files = 0;
  for (const auto& file : fs::directory_iterator(folder_ + "/text.states")) {
    files += file.is_regular_file();
  }
  EXPECT_EQ(files, 2u);  // b.state and b.outputs
}

TEST_F(States, AreRefusedWithAReason) {
  const RunningServer server = Serve();
  Post(server, "/v1/states", {{"prompt", "x"}, {"id", "a"}});
  Post(server, "/v1/states", {{"prompt", "x"}, {"id", "a"}}, 409);
  const std::string ids[] = {"", ".a", "../a", "a/b", "a b", "a\nb", std::string(65, 'a')};
  for (const std::string& id : ids) {
    Post(server, "/v1/states", {{"prompt", "x"}, {"id", id}}, 400);
  }
  Post(server, "/v1/states", {{"prompt", json::array({"x", "y"})}}, 400);
  Post(server, "/v1/states", {{"state", "none"}}, 404);
  Complete(server, {{"state", "none"}}, 404);
  Complete(server, {{"state", ""}}, 404);
  Complete(server, {{"state", "../text.states/a"}}, 404);
  Complete(server, {{"state", "a"}, {"prompt", json::array({"x", "y"})}}, 400);
  Complete(server, {{"state", 3}}, 400);
}

TEST_F(States, CannotBeUsedIfDamagedOrOfOtherWeights) {
  const auto refusal = [](const RunningServer& of, int status = 409) {
    return Complete(of, {{"state", "a"}}, status)["error"]["message"].get<std::string>();
  };
  {
    const RunningServer server = Serve();
    Post(server, "/v1/states", {{"prompt", "x"}, {"id", "a"}});
  }
  EXPECT_EQ(refusal(Serve(1e9, 2)).find(folder_), std::string::npos);
  const RunningServer server = Serve();
  const std::string file = folder_ + "/text.states/a.state";
  fs::resize_file(file, fs::file_size(file) / 2);
  refusal(server);
  fs::remove(file);
  refusal(server, 404);
}

TEST_F(States, FitIntoTheFolder) {
  double bytes = 0;
  {
    const RunningServer server = Serve();
    Post(server, "/v1/states", {{"prompt", "x"}, {"id", "a"}});
    bytes = json::parse(Client(server).Get("/v1/states/a")->body)["bytes"];
  }
  constexpr double kHeaders = 8192;  // reserved for them, though they take less
  const RunningServer server = Serve(2 * bytes + kHeaders);
  Complete(server, {{"prompt", "x"}, {"n", 3}, {"return_state", true}}, 507);
  Post(server, "/v1/states", {{"prompt", "x"}, {"id", "b"}});
  Post(server, "/v1/states", {{"prompt", "x"}, {"id", "c"}}, 507);
  EXPECT_EQ(Client(server).Delete("/v1/states/a")->status, 200);
  Post(server, "/v1/states", {{"prompt", "x"}, {"id", "c"}});
}

TEST_F(States, SweepWhatKilledProcessesLeft) {
  const std::string folder = folder_ + "/text.states/";
  fs::create_directories(folder);
  const auto leave = [](const std::string& path) { std::ofstream(path) << "x"; };
  for (const char* name : {"a.outputs", "notes.txt", "b.state"}) leave(folder + name);
  leave(folder_ + "/c.claim");
  const RunningServer server = Serve();
  EXPECT_FALSE(fs::exists(folder + "a.outputs"));
  EXPECT_FALSE(fs::exists(folder_ + "/c.claim"));
  EXPECT_TRUE(fs::exists(folder + "notes.txt"));
  Complete(server, {{"state", "b"}}, 409);
  // While a server runs, another one sweeps nothing, since it cannot know what the first one does.
  leave(folder + "a.outputs");
  leave(folder_ + "/c.claim");
  const RunningServer second = Serve();
  EXPECT_TRUE(fs::exists(folder + "a.outputs"));
  Post(second, "/v1/states", {{"prompt", "x"}, {"id", "c"}});  // nobody holds the claim
  EXPECT_FALSE(fs::exists(folder_ + "/c.claim"));
}

// Files that others put into the folder can neither fill the memory, nor stop the server, nor lead
// it to files outside.
TEST_F(States, DoNotFollowLinksOrReadFilesOfAnySize) {
  const std::string folder = folder_ + "/text.states/", outside = folder_ + ".outside";
  fs::create_directories(folder);
  fs::create_directories(outside);
  std::ofstream(outside + "/thesis.outputs") << "x";
  fs::create_symlink(outside, folder_ + "/other.states");
  fs::create_symlink("loop.states", folder_ + "/loop.states");
  fs::create_symlink(outside + "/thesis.outputs", folder + "a.state");
  fs::create_symlink("b.state", folder + "b.state");
  std::ofstream(folder + "b.outputs") << "x";
  fs::create_directories(folder + "c.state.tmp.999999/full");
  std::ofstream(folder + "d.state").put('x');
  fs::resize_file(folder + "d.state", uint64_t{1} << 40);  // takes no room on the disk
  {
    const RunningServer server = Serve(2e12);
    Complete(server, {{"state", "d"}}, 409);
    Post(server, "/v1/states", {{"prompt", "x"}, {"id", "a"}});
    Complete(server, {{"state", "a"}, {"max_tokens", 2}});
  }
  EXPECT_EQ(fs::file_size(outside + "/thesis.outputs"), 1u);
  fs::remove_all(outside);
}

// Of several requests to two servers that want one name, one gets it.
TEST_F(States, HaveOneNameEach) {
  const RunningServer servers[] = {Serve(), Serve()};
  std::atomic<int> kept{0}, refused{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      const json body = {{"prompt", std::string(200, 'x')}, {"id", "a"}};
      const httplib::Result result =
          Client(servers[i % 2]).Post("/v1/states", body.dump(), "application/json");
      kept += result && result->status == 200;
      refused += result && result->status == 409;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(refused, 7);
}

TEST_F(States, AreSharedByTheServersOfAFolder) {
  const RunningServer a = Serve(), b = Serve();
  const auto text = [](const RunningServer& server) {
    return Joined({Complete(server, {{"state", "tale"}, {"max_tokens", 20}})["choices"][0]});
  };
  Post(a, "/v1/states", {{"prompt", "abc def"}, {"id", "tale"}});
  const std::string first = text(a);
  EXPECT_EQ(text(b), first);
  EXPECT_EQ(json::parse(Client(b).Get("/v1/states")->body)["data"][0]["id"], "tale");
  Post(b, "/v1/states", {{"prompt", "x"}, {"id", "tale"}}, 409);
  // b removes the state and makes another one of this name: a must not use what it has read.
  EXPECT_EQ(Client(b).Delete("/v1/states/tale")->status, 200);
  Complete(a, {{"state", "tale"}}, 404);
  EXPECT_EQ(Client(a).Get("/v1/states/tale")->status, 404);
  EXPECT_EQ(Client(a).Delete("/v1/states/tale")->status, 404);
  Post(b, "/v1/states", {{"prompt", "zyx"}, {"id", "tale"}});
  const std::string second = text(b);
  EXPECT_NE(second, first);
  EXPECT_EQ(text(a), second);
}

// Clients of two servers keep, use and remove states of a few names; every answer is a right one.
TEST_F(States, OfFewNamesAreUsedByManyClients) {
  const RunningServer servers[] = {Serve(), Serve()};
  const std::string prompt(Engine::kCutPositions, 'x');  // so continuations are exact
  const json want = Complete(servers[0], {{"prompt", prompt}, {"max_tokens", 4}})["choices"][0];
  std::atomic<int> kept{0}, used{0}, wrong{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        const std::string name(1, static_cast<char>('a' + (i + round) % 3));
        httplib::Client client = Client(servers[(i + round / 2) % 2]);
        const auto post = [&](const std::string& path, const json& body) {
          return client.Post(path, body.dump(), "application/json");
        };
        const auto keep = post("/v1/states", {{"prompt", prompt}, {"id", name}});
        kept += keep && keep->status == 200;
        wrong += !keep || (keep->status != 200 && keep->status != 409);
        const auto use =
            post("/v1/completions",
                 {{"state", name}, {"max_tokens", 4}, {"temperature", 0}, {"logprobs", 0}});
        if (use && use->status == 200) {
          ++used;
          const json choice = json::parse(use->body)["choices"][0];
          wrong += Joined({choice}) != Joined({want});
        } else {
          wrong += !use || use->status != 404;
        }
        const auto removed = client.Delete("/v1/states/" + name);
        const int status = removed ? removed->status : 0;
        wrong += status != 200 && status != 404 && status != 409;  // 409: it is being written
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(kept, 0);
  EXPECT_GT(used, 0);
}

// Each server counts the other's states, at the latest when it has listed them.
TEST_F(States, OfAllServersFitIntoTheFolder) {
  double bytes = 0;
  {
    const RunningServer server = Serve();
    Post(server, "/v1/states", {{"prompt", "x"}, {"id", "a"}});
    bytes = json::parse(Client(server).Get("/v1/states/a")->body)["bytes"];
  }
  constexpr double kHeaders = 8192;
  const RunningServer a = Serve(2 * bytes + kHeaders), b = Serve(2 * bytes + kHeaders);
  const auto list = [&] { EXPECT_EQ(Client(a).Get("/v1/states")->status, 200); };
  Post(b, "/v1/states", {{"prompt", "x"}, {"id", "b"}});
  list();
  Post(a, "/v1/states", {{"prompt", "x"}, {"id", "c"}}, 507);
  EXPECT_EQ(Client(b).Delete("/v1/states/b")->status, 200);
  list();
  Post(a, "/v1/states", {{"prompt", "x"}, {"id", "c"}});
}

// Clients do not learn its path, and get a state again once it can be written.
TEST_F(States, OfARemovedFolderAreGone) {
  const RunningServer server = Serve();
  Post(server, "/v1/states", {{"prompt", "x"}, {"id", "a"}});
  fs::remove_all(folder_);
  EXPECT_EQ(Client(server).Get("/v1/states")->status, 200);
  Complete(server, {{"state", "a"}}, 404);
  EXPECT_EQ(Client(server).Delete("/v1/states/a")->status, 404);
  const json refused = Post(server, "/v1/states", {{"prompt", "x"}, {"id", "b"}}, 500);
  EXPECT_EQ(refused.dump().find(folder_), std::string::npos) << refused;
  fs::create_directories(folder_);
  Post(server, "/v1/states", {{"prompt", "x"}, {"id", "b"}});
  EXPECT_EQ(json::parse(Client(server).Get("/v1/states")->body)["data"].size(), 1u);
}

TEST_F(States, NeedAFolder) {
  const RunningServer server({.threads = 1, .sequences = 1}, {});
  Complete(server, {{"prompt", "x"}, {"return_state", true}}, 400);
  Complete(server, {{"state", "x"}}, 400);
  Post(server, "/v1/states", {{"prompt", "x"}}, 404);
}

// The last event of a choice names its state; the texts are those of the whole answer.
TEST_F(States, AreNamedAtTheEndOfAStream) {
  const RunningServer server = Serve();
  const json body = {{"prompt", "abc"},      {"max_tokens", 20}, {"n", 3},
                     {"return_state", true}, {"temperature", 1}, {"seed", 4}};
  json streamed = body;
  streamed["stream"] = true;
  const json whole = Post(server, "/v1/completions", body)["choices"];
  const httplib::Result result =
      Client(server).Post("/v1/completions", streamed.dump(), "application/json");
  ASSERT_TRUE(result && result->status == 200);
  std::vector<std::string> texts(3), states(3);
  std::istringstream lines(result->body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json choice = json::parse(line.substr(6))["choices"][0];
    const auto i = choice["index"].get<size_t>();
    texts[i] += choice["text"];
    EXPECT_EQ(choice.contains("state"), !choice["finish_reason"].is_null());
    if (choice.contains("state")) states[i] = choice["state"];
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i], whole[i]["text"]);
    EXPECT_EQ(Client(server).Get("/v1/states/" + states[i])->status, 200);
  }
}

}  // namespace
}  // namespace linnet::server
