// POST /v1/chat/completions in OpenAI's format.
#include <gtest/gtest.h>

#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "linnet/error.h"
#include "linnet/server/test_util.h"
#include "linnet/tasks/text/chat_format.h"

namespace linnet::server {
namespace {

using nlohmann::json;

TEST(ChatFormat, MakesATextOfMessages) {
  const std::vector<ChatMessage> messages = {
      {"system", "Be {role}."}, {"user", "Hi {content}!"}, {"assistant", "Ho"}, {"user", ""}};
  EXPECT_EQ(ChatFormat::Of("rwkv").Text(messages),
            "System: Be {role}.\n\nUser: Hi {content}!\n\nAssistant: Ho\n\nUser: \n\nAssistant:");
  EXPECT_EQ(ChatFormat::Of("chatml").Text({{"user", "Hi"}}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(ChatFormat::Of("plain").Text({{"user", "Hi"}}), "user: Hi\nassistant:");
  EXPECT_THROW(ChatFormat::Of("plain").Text({{"tool", "x"}}), Error);
}

TEST(ChatFormat, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(ChatFormat::Of("none"), Error);
  EXPECT_THROW(ChatFormat::Of("/no/such.json"), Error);
  for (const char* wrong :
       {"", "[]", R"({"turn": "{role}{content}"})", R"({"roles": {"user": "U"}, "turn": "{role}"})",
        R"({"roles": {"user": "U"}, "turn": "{content}{role}"})",
        R"({"roles": {"robot": "R"}, "turn": "{role}{content}"})",
        R"({"roles": {"user": "U"}, "turn": "{role}{content}", "stop": [""]})",
        R"({"roles": {"user": "U"}, "turn": "{role}{content}", "stop": "x"})",
        R"({"roles": {"user": "U"}, "turn": "{role}{content}", "more": 1})"}) {
    EXPECT_THROW(ChatFormat::Parse(wrong, "format.json"), Error) << wrong;
  }
}

class Chats : public testing::Test {
 protected:
  json Ask(const json& messages, json body, int status = 200) const {
    body.update({{"messages", messages}, {"seed", 7}});
    const httplib::Result result = Post(body);
    EXPECT_TRUE(result && result->status == status)
        << body << (result ? result->body : "no answer");
    return result ? json::parse(result->body) : json();
  }
  httplib::Result Post(const json& body) const {
    httplib::Client client("127.0.0.1", server_.port());
    client.set_read_timeout(600);
    return client.Post("/v1/chat/completions", body.dump(), "application/json");
  }

  const std::shared_ptr<const ChatFormat> format_ = std::make_shared<const ChatFormat>(
      ChatFormat::Parse(R"({"roles": {"user": "U", "assistant": "A"}, "turn": "{role}:{content};",
                            "answer": "A:", "stop": ["q"]})",
                        "test"));
  RunningServer server_{{.threads = 1, .sequences = 8, .queue = 100}, {.chat = format_}};
};

// A chat is a completion of the text that the format makes, without the blanks before it.
TEST_F(Chats, AreCompletionsOfTheirText) {
  const json messages = {{{"role", "user"}, {"content", "abc"}},
                         {{"role", "assistant"}, {"content", "def"}},
                         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "g"}}}}}};
  const json answer = Ask(messages, {{"max_tokens", 30}, {"n", 2}});
  const httplib::Result result = server_.Complete(
      {{"prompt", "U:abc;A:def;U:g;A:"}, {"max_tokens", 30}, {"stop", "q"}, {"n", 2}, {"seed", 7}});
  ASSERT_TRUE(result && result->status == 200);
  const json plain = json::parse(result->body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["usage"], plain["usage"]);
  for (size_t i = 0; i < 2; ++i) {
    const json& choice = answer["choices"][i];
    std::string text = plain["choices"][i]["text"];
    text.erase(0, text.find_first_not_of(" \n"));
    EXPECT_EQ(choice["message"], (json{{"role", "assistant"}, {"content", text}}));
    EXPECT_EQ(choice["finish_reason"], plain["choices"][i]["finish_reason"]);
  }
  std::string streamed;
  int roles = 0;
  const httplib::Result events =
      Post({{"messages", messages}, {"max_completion_tokens", 30}, {"seed", 7}, {"stream", true}});
  std::istringstream lines(events->body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json event = json::parse(line.substr(6));
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    const json& delta = event["choices"][0]["delta"];
    streamed += delta["content"];
    roles += delta.contains("role");
  }
  EXPECT_EQ(streamed, answer["choices"][0]["message"]["content"]);
  EXPECT_EQ(roles, 1);
}

TEST_F(Chats, FollowASchemaInTheOrderOfItsProperties) {
  const json messages = {{{"role", "user"}, {"content", "abc"}}};
  // As text, because this test's JSON type sorts keys.
  const std::string format =
      R"({"type": "json_schema", "json_schema": {"name": "pair", "strict": true, "schema":
          {"type": "object", "properties": {"b": {"type": "integer", "minimum": 7, "maximum": 99},
           "a": {"enum": ["x", "yy"]}}, "required": ["b", "a"], "additionalProperties": false}}})";
  const std::string body = R"({"messages": [{"role": "user", "content": "abc"}], "seed": 1, "n": 4,
                               "response_format": )" +
                           format + "}";
  httplib::Client client("127.0.0.1", server_.port());
  const auto result = client.Post("/v1/chat/completions", body, "application/json");
  ASSERT_TRUE(result && result->status == 200) << (result ? result->body : "no answer");
  const json answer = json::parse(result->body);
  for (const json& choice : answer["choices"]) {
    const std::string text = choice["message"]["content"];
    EXPECT_TRUE(std::regex_match(text, std::regex(R"x(\{"b": ?[1-9][0-9]?, ?"a": ?"(x|yy)"\})x")))
        << text;
    EXPECT_GE(json::parse(text)["b"], 7);
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
  const json object = Ask(messages, {{"response_format", {{"type", "json_object"}}}});
  EXPECT_EQ(object["choices"][0]["message"]["content"].get<std::string>().front(), '{');
  for (const json& wrong :
       {json{{"type", "json_schema"}},
        json{{"type", "json_schema"}, {"json_schema", json::object()}},
        json{{"type", "json_schema"}, {"json_schema", {{"schema", {{"not", json::object()}}}}}}}) {
    Ask(messages, {{"response_format", wrong}}, 400);
  }
}

class ResponsesApi : public Chats {
 protected:
  json Respond(json body, int status = 200) const {
    body.update({{"seed", 7}});
    const httplib::Result result = Client().Post("/v1/responses", body.dump(), "application/json");
    EXPECT_TRUE(result && result->status == status) << body << (result ? result->body : "none");
    return result ? json::parse(result->body) : json();
  }
  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", server_.port());
    client.set_read_timeout(600);
    return client;
  }
  static std::string TextOf(const json& response) {
    return response["output"][0]["content"][0]["text"];
  }
};

// A response and the one that continues it have the texts of the same chats.
TEST_F(ResponsesApi, ContinueEachOther) {
  const json first =
      Respond({{"input", "abc"}, {"instructions", nullptr}, {"max_output_tokens", 20}});
  const json user = {{"role", "user"}, {"content", "abc"}};
  const json chat = Ask(json::array({user}), {{"max_tokens", 20}});
  EXPECT_EQ(TextOf(first), chat["choices"][0]["message"]["content"]);
  const bool complete = chat["choices"][0]["finish_reason"] == "stop";
  EXPECT_EQ(first["status"], complete ? "completed" : "incomplete");
  EXPECT_EQ(first["incomplete_details"].is_null(), complete);
  EXPECT_EQ(first["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
  EXPECT_EQ(first["object"], "response");

  const json second = Respond(
      {{"input", {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "d"}}}}}}},
       {"previous_response_id", first["id"]},
       {"max_output_tokens", 20}});
  const json messages = {user,
                         {{"role", "assistant"}, {"content", TextOf(first)}},
                         {{"role", "user"}, {"content", "d"}}};
  EXPECT_EQ(TextOf(second),
            Ask(messages, {{"max_tokens", 20}})["choices"][0]["message"]["content"]);
  EXPECT_EQ(second["previous_response_id"], first["id"]);

  const std::string path = "/v1/responses/" + first["id"].get<std::string>();
  EXPECT_EQ(json::parse(Client().Get(path)->body), first);
  EXPECT_EQ(json::parse(Client().Delete(path)->body)["deleted"], true);
  EXPECT_EQ(Client().Get(path)->status, 404);
  EXPECT_EQ(Client().Delete(path)->status, 404);
  Respond({{"input", "x"}, {"previous_response_id", first["id"]}}, 404);
  Respond({{"input", "x"}, {"previous_response_id", second["id"]}, {"max_output_tokens", 1}});
  const json unkept = Respond({{"input", "abc"}, {"store", false}, {"max_output_tokens", 1}});
  Respond({{"input", "x"}, {"previous_response_id", unkept["id"]}}, 404);
}

TEST_F(ResponsesApi, StreamTheWholeAnswer) {
  const json body = {{"input", "abc"}, {"max_output_tokens", 20}};
  const json whole = Respond(body);
  json streamed = body;
  streamed.update({{"stream", true}, {"seed", 7}});
  const auto result = Client().Post("/v1/responses", streamed.dump(), "application/json");
  ASSERT_TRUE(result && result->status == 200);
  std::istringstream lines(result->body);
  std::vector<std::string> types;
  std::string text;
  json last;
  for (std::string line, type; std::getline(lines, line);) {
    if (line.starts_with("event: ")) type = line.substr(7);
    if (!line.starts_with("data: ")) continue;
    last = json::parse(line.substr(6));
    EXPECT_EQ(last["type"], type);
    EXPECT_EQ(last["sequence_number"], types.size());
    if (type == "response.output_text.delta") text += last["delta"];
    types.push_back(type);
  }
  ASSERT_GT(types.size(), 9u);
  EXPECT_EQ(types[0], "response.created");
  EXPECT_EQ(types[3], "response.content_part.added");
  EXPECT_EQ(types[types.size() - 2], "response.output_item.done");
  EXPECT_EQ(types.back(), "response." + whole["status"].get<std::string>());
  EXPECT_EQ(text, TextOf(whole));
  EXPECT_EQ(TextOf(last["response"]), text);
  EXPECT_EQ(last["response"]["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

TEST_F(ResponsesApi, FollowASchemaAndRefuseWhatIsNotSupported) {
  const json schema = {{"type", "array"}, {"items", {{"enum", {1, 2}}}}, {"maxItems", 2}};
  const json response = Respond(
      {{"input", "abc"},
       {"text", {{"format", {{"type", "json_schema"}, {"name", "x"}, {"schema", schema}}}}}});
  EXPECT_TRUE(json::parse(TextOf(response)).is_array());
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["text"]["format"]["name"], "x");
  for (const json& wrong :
       {json::object(), json{{"input", 1}}, json{{"input", json::array()}},
        json{{"input", {{{"type", "image"}}}}}, json{{"input", "a"}, {"tools", {{{"type", "x"}}}}},
        json{{"input", "a"}, {"background", true}}, json{{"input", "a"}, {"n", 2}},
        json{{"input", "a"}, {"instructions", "b"}},  // the format has no system messages
        json{{"input", "a"}, {"text", {{"format", {{"type", "yaml"}}}}}}}) {
    Respond(wrong, 400);
  }
}

TEST_F(Chats, AreRefusedWithAReason) {
  const json messages = {{{"role", "user"}, {"content", "abc"}}};
  Ask(json::array(), {}, 400);
  Ask("abc", {}, 400);
  Ask({{{"role", "system"}, {"content", "x"}}}, {}, 400);  // the format has no such role
  Ask({{{"role", "user"}}}, {}, 400);
  Ask({{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}, {}, 400);
  for (const json& more : {json{{"tools", json::array()}}, json{{"logprobs", true}},
                           json{{"response_format", {{"type", "yaml"}}}}, json{{"prompt", "x"}},
                           json{{"max_tokens", -1}}, json{{"n", 0}}, json{{"state", "x"}}}) {
    Ask(messages, more, 400);
  }
  Ask(messages, {{"response_format", {{"type", "text"}}}, {"max_tokens", 1}});
  const RunningServer without({.threads = 1, .sequences = 1}, {});
  httplib::Client client("127.0.0.1", without.port());
  const auto result = client.Post("/v1/chat/completions", "{}", "application/json");
  EXPECT_EQ(result->status, 404);
  EXPECT_NE(result->body.find("--chat"), std::string::npos);
}

}  // namespace
}  // namespace linnet::server
