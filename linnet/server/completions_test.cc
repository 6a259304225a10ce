// POST /v1/completions in OpenAI's format: prompts in all forms, and logprobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "linnet/server/test_util.h"
#include "linnet/tasks/text/text.h"
#include "linnet/tasks/text/token_scores.h"
#include "linnet/vocabulary.h"

namespace linnet::server {
namespace {

using nlohmann::json;

class Completions : public testing::Test {
 protected:
  json Complete(json body) {
    body.update({{"seed", 7}, {"max_tokens", 30}});
    const httplib::Result result = server_.Complete(body);
    EXPECT_TRUE(result && result->status == 200) << (result ? result->body : "no answer");
    return result ? json::parse(result->body) : json();
  }
  // The text of each choice; checks that the choices are in order.
  static std::vector<std::string> Texts(const json& answer) {
    std::vector<std::string> texts;
    for (const json& choice : answer["choices"]) {
      EXPECT_EQ(choice["index"], texts.size());
      texts.push_back(choice["text"]);
    }
    return texts;
  }
  // The error message of a request that gets status 400.
  std::string Refused(const json& body) {
    const httplib::Result result = server_.Complete(body);
    EXPECT_TRUE(result && result->status == 400) << body << (result ? result->body : "no answer");
    return result ? json::parse(result->body)["error"]["message"].get<std::string>() : "";
  }
  // The events of a stream, without the last event, [DONE].
  std::vector<json> Events(json body) {
    body.update({{"seed", 7}, {"max_tokens", 30}, {"stream", true}});
    const httplib::Result result = server_.Complete(body);
    EXPECT_TRUE(result && result->status == 200);
    std::vector<json> events;
    std::string text = result ? result->body : "";
    constexpr std::string_view kData = "data: ";
    for (size_t end; (end = text.find("\n\n")) != std::string::npos; text.erase(0, end + 2)) {
      EXPECT_EQ(text.compare(0, kData.size(), kData), 0) << text;
      const std::string data = text.substr(kData.size(), end - kData.size());
      if (data != "[DONE]") events.push_back(json::parse(data));
    }
    return events;
  }

  RunningServer server_{{.threads = 1, .sequences = 8, .queue = 400}, {.limits = {}}};
};

std::vector<int32_t> TokensOf(const std::string& text) { return Vocabulary::Bytes().Encode(text); }

TEST_F(Completions, OfSeveralPromptsAreThoseOfEachAlone) {
  const std::vector<std::string> prompts = {"ab", "", "xyz"};
  std::vector<std::string> alone;
  size_t written = 0;
  for (const std::string& prompt : prompts) {
    const json answer = Complete({{"prompt", prompt}, {"n", 2}});
    for (const std::string& text : Texts(answer)) alone.push_back(text);
    written += answer["usage"]["completion_tokens"].get<size_t>();
  }
  ASSERT_EQ(alone.size(), 6u);
  const json body = {{"prompt", prompts}, {"n", 2}};
  const json together = Complete(body);
  EXPECT_EQ(Texts(together), alone);
  EXPECT_EQ(together["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(together["usage"]["completion_tokens"], written);
  EXPECT_EQ(together["usage"]["total_tokens"], written + 5);
  std::vector<std::string> streamed(alone.size());
  std::vector<int> ends(alone.size());
  for (const json& event : Events(body)) {
    for (const json& choice : event["choices"]) {
      streamed.at(choice["index"]) += choice["text"];
      ends.at(choice["index"]) += !choice["finish_reason"].is_null();
    }
  }
  EXPECT_EQ(streamed, alone);
  EXPECT_EQ(ends, std::vector<int>(alone.size(), 1));
}

TEST(Usage, LeavesOutTheTokensThatBeginAText) {
  const TextSpec text = TwoTokensBegin();
  const Vocabulary vocabulary(text);
  ASSERT_EQ(vocabulary.begin().size(), 2u);
  const std::string prompt = "Before we proceed any further, hear me speak.";
  const size_t tokens = vocabulary.Encode(prompt).size();
  BatcherOptions batcher{.threads = 1, .sequences = 1};
  batcher.snapshots.from = 1;
  RunningServer server(batcher, {}, RandomModel("text", text, 2000));
  for (const size_t cached : {size_t{0}, tokens}) {
    const httplib::Result result =
        server.Complete({{"prompt", prompt}, {"max_tokens", 3}, {"seed", 7}});
    ASSERT_TRUE(result && result->status == 200) << (result ? result->body : "no answer");
    const json usage = json::parse(result->body)["usage"];
    EXPECT_EQ(usage["prompt_tokens"], tokens);
    EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], cached);
  }
}

TEST_F(Completions, PromptsAreTextOrTokens) {
  const std::vector<std::string> want = Texts(Complete({{"prompt", {"ab", "海"}}}));
  EXPECT_EQ(Texts(Complete({{"prompt", {TokensOf("ab"), TokensOf("海")}}})), want);
  EXPECT_EQ(Texts(Complete({{"prompt", TokensOf("海")}})), std::vector<std::string>{want[1]});
  EXPECT_EQ(Texts(Complete({{"prompt", {"海"}}})), std::vector<std::string>{want[1]});
  const json list_of_none = json::parse(R"({"prompt": [[]]})");
  EXPECT_EQ(Texts(Complete(list_of_none)), Texts(Complete({{"prompt", ""}})));
}

TEST_F(Completions, RefusesAPromptOfAnotherForm) {
  for (const char* prompt : {R"(3)", R"({})", R"(["a", 3])", R"([[3], "a"])", R"([null])"}) {
    EXPECT_EQ(Refused({{"prompt", json::parse(prompt)}}),
              "'prompt' must be a string, a list of strings, a list of tokens, or a list of lists "
              "of tokens");
  }
  EXPECT_EQ(Refused({{"prompt", json::array()}}), "'prompt' is an empty list");
  EXPECT_EQ(Refused({{"prompt", {3, 259}}}),
            "'prompt' has the token 259; this model's tokens are 0 to 258");
  EXPECT_EQ(Refused({{"prompt", {-1}}}),
            "'prompt' has the token -1; this model's tokens are 0 to 258");
  EXPECT_EQ(Refused({{"prompt", {~uint64_t{0}}}}),
            "'prompt' has the token 18446744073709551615; this model's tokens are 0 to 258");
  const std::string whole =
      "'prompt' has a list of tokens in which an element is not a whole number";
  EXPECT_EQ(Refused({{"prompt", {3, 1.5}}}), whole);
  EXPECT_EQ(Refused(json::parse(R"({"prompt": [[3], ["a"]]})")), whole);
}

TEST_F(Completions, HaveALimitOfSequences) {
  const std::vector<std::string> prompts(129, "a"), most(128, "a");
  EXPECT_EQ(Refused({{"prompt", prompts}}),
            "'prompt' has 129 prompts; at most 128 sequences are possible in one request");
  EXPECT_EQ(Refused({{"prompt", most}, {"n", 2}}),
            "'prompt' has 128 prompts and 'n' is 2: 256 sequences; at most 128 are possible in one "
            "request");
  EXPECT_EQ(Texts(Complete({{"prompt", most}})).size(), 128u);
}

// The token with this name in `tokens` and `top_logprobs`.
int32_t TokenOf(const std::string& name) {
  for (int32_t token = 0; token < 259; ++token) {
    if (Vocabulary::Bytes().Name(token) == name) return token;
  }
  ADD_FAILURE() << name;
  return 0;
}

TEST_F(Completions, LogprobsAreOfTheModelsDistribution) {
  Engine engine(RandomModel("text", "byte", 2000), {.threads = 1});
  // Temperature and filters change the draws, not the reported distribution.
  const json answer = Complete({{"prompt", "ab"}, {"logprobs", 5}, {"temperature", 3}, {"n", 4}});
  for (const json& choice : answer["choices"]) {
    const json& logprobs = choice["logprobs"];
    const size_t length = logprobs["tokens"].size();
    ASSERT_GT(length, 0u);
    ASSERT_EQ(logprobs["token_logprobs"].size(), length);
    ASSERT_EQ(logprobs["top_logprobs"].size(), length);
    std::vector<int32_t> tokens = {Vocabulary::kEnd};
    for (const int32_t token : TokensOf("ab")) tokens.push_back(token);
    for (size_t i = 0; i < length; ++i) {
      const std::string name = logprobs["tokens"][i];
      const double value = logprobs["token_logprobs"][i];
      State state = engine.NewState(1);
      std::vector<float> outputs(engine.output_size());
      engine.Prefix(state, tokens, tokens.size(), outputs);
      LogSoftmax(outputs);
      tokens.push_back(TokenOf(name));
      EXPECT_NEAR(value, outputs[static_cast<size_t>(tokens.back())], 1e-4);
      const json& top = logprobs["top_logprobs"][i];
      EXPECT_EQ(top.at(name), value);
      std::vector<float> sorted = outputs, reported;
      std::sort(sorted.rbegin(), sorted.rend());
      for (const auto& [its, log_probability] : top.items()) {
        reported.push_back(log_probability);
        EXPECT_NEAR(reported.back(), outputs[static_cast<size_t>(TokenOf(its))], 1e-4);
      }
      std::sort(reported.rbegin(), reported.rend());
      // The generated token is reported even if it is not among the five most probable ones.
      EXPECT_EQ(reported.size(), value < reported[4] ? 6u : 5u);
      for (size_t k = 0; k < 5; ++k) EXPECT_NEAR(reported[k], sorted[k], 1e-4);
    }
  }
}

TEST_F(Completions, LogprobsDoNotChangeTheText) {
  const std::vector<std::string> want = Texts(Complete({{"prompt", {"ab", "c"}}, {"n", 2}}));
  for (const int top : {0, 5}) {
    const json answer = Complete({{"prompt", {"ab", "c"}}, {"n", 2}, {"logprobs", top}});
    EXPECT_EQ(Texts(answer), want);
    size_t tokens = 0;
    for (const json& choice : answer["choices"]) {
      tokens += choice["logprobs"]["tokens"].size();
      if (top == 0) {
        EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), 1u);
      }
    }
    EXPECT_EQ(answer["usage"]["completion_tokens"], tokens);
  }
  EXPECT_TRUE(Complete({{"prompt", "ab"}})["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(Refused({{"prompt", "ab"}, {"logprobs", 6}}),
            "'logprobs' is 6; it must lie between 0 and 5");
}

TEST_F(Completions, LogprobsOfAStreamAreThoseOfTheWhole) {
  const json body = {{"prompt", {"ab", "c"}}, {"n", 2}, {"logprobs", 2}};
  const json whole = Complete(body);
  std::vector<json> streamed(4);
  for (const json& event : Events(body)) {
    for (const json& choice : event["choices"]) {
      for (const auto& [key, values] : choice["logprobs"].items()) {
        json& all = streamed.at(choice["index"])[key];
        for (const json& value : values) all.push_back(value);
      }
    }
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(streamed[i], whole["choices"][i]["logprobs"]);
}

TEST_F(Completions, LogprobsEndWithTheText) {
  const json whole = Complete({{"prompt", "ab"}, {"logprobs", 0}})["choices"][0];
  const json& tokens = whole["logprobs"]["tokens"];
  // The stop string is a one-character token: the first one in the second half of the text.
  size_t at = tokens.size() / 2;
  while (at < tokens.size() && tokens[at].get<std::string>().size() > 1) ++at;
  ASSERT_LT(at, tokens.size());
  const auto first =
      static_cast<size_t>(std::find(tokens.begin(), tokens.end(), tokens[at]) - tokens.begin());
  const json cut =
      Complete({{"prompt", "ab"}, {"logprobs", 0}, {"stop", tokens[at]}})["choices"][0];
  EXPECT_EQ(cut["finish_reason"], "stop");
  EXPECT_EQ(cut["logprobs"]["tokens"].size(), first);
  for (size_t i = 0; i < first; ++i) EXPECT_EQ(cut["logprobs"]["tokens"][i], tokens[i]);
}

TEST_F(Completions, FollowAGrammar) {
  const json body = {
      {"prompt", "ab"}, {"n", 3}, {"logprobs", 0}, {"grammar", "root ::= [ab]{5} \"cd\""}};
  const json answer = Complete(body);
  const std::vector<std::string> texts = Texts(answer);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::regex_match(texts[i], std::regex("[ab]{5}cd"))) << texts[i];
    EXPECT_EQ(answer["choices"][i]["finish_reason"], "stop");
    EXPECT_EQ(answer["choices"][i]["logprobs"]["tokens"].size(), 7u);
  }
  EXPECT_EQ(answer["usage"]["completion_tokens"], 21);
  std::vector<std::string> streamed(3);
  for (const json& event : Events(body)) {
    for (const json& choice : event["choices"]) {
      streamed.at(choice["index"]) += choice["text"].get<std::string>();
    }
  }
  EXPECT_EQ(streamed, texts);
  EXPECT_EQ(Refused({{"grammar", "root ::= x"}}),
            "the grammar, line 1: the rule 'x' is not defined");
  EXPECT_NE(Refused({{"grammar", "root ::= \"a\""}, {"response_format", {{"type", "text"}}}})
                .find("exclude each other"),
            std::string::npos);
}

TEST(Models, AreDescribedByName) {
  RunningServer server({.threads = 1, .sequences = 1}, {});
  httplib::Result result = server.Get("/v1/models/text");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  const json model = json::parse(result->body);
  EXPECT_EQ(model["id"], "text");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["task"], "text");
  const json list = json::parse(server.Get("/v1/models")->body);
  EXPECT_EQ(list["data"], json::array({model}));
  const auto message = [&](const std::string& path) -> std::string {
    result = server.Get(path);
    EXPECT_TRUE(result && result->status == 404) << path;
    EXPECT_EQ(result->get_header_value("Content-Type"), "application/json; charset=utf-8");
    return json::parse(result->body)["error"]["message"];
  };
  EXPECT_EQ(message("/v1/models/txt"), "no model 'txt'; did you mean 'text'?");
  EXPECT_EQ(message("/v1/models/couplets"), "no model 'couplets'; GET /v1/models lists the models");
  EXPECT_EQ(message("/v1/models/a%07b/c"), "no model 'a?b/c'; GET /v1/models lists the models");
  EXPECT_NE(message("/v1/models/" + std::string(8000, 'a')).find("aaa..."), std::string::npos);
}

}  // namespace
}  // namespace linnet::server
