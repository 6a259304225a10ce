#include "linnet/tasks/text/chat_format.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"
#include "linnet/tasks/endpoint.h"

namespace linnet {
namespace {

constexpr std::string_view kRole = "{role}", kContent = "{content}";

struct Known {
  const char *name, *json;
};
constexpr Known kKnown[] = {
    {"chatml", R"({"roles": {"system": "system", "user": "user", "assistant": "assistant"},
                   "turn": "<|im_start|>{role}\n{content}<|im_end|>\n",
                   "answer": "<|im_start|>assistant\n", "stop": ["<|im_end|>"]})"},
    {"plain", R"({"roles": {"system": "system", "user": "user", "assistant": "assistant"},
                  "turn": "{role}: {content}\n", "answer": "assistant:",
                  "stop": ["\nuser:", "\nsystem:"]})"},
    {"rwkv", R"({"roles": {"system": "System", "user": "User", "assistant": "Assistant"},
                 "turn": "{role}: {content}\n\n", "answer": "Assistant:",
                 "stop": ["\n\nUser:", "\n\nSystem:"]})"},
};

// Replaces the first occurrence of `what`, from `from` on. Returns the end of the replacement.
size_t Replace(std::string& text, std::string_view what, const std::string& by, size_t from) {
  const size_t at = text.find(what, from);
  text.replace(at, what.size(), by);
  return at + by.size();
}

}  // namespace

ChatFormat ChatFormat::Of(const std::string& name_or_path) {
  std::string names;
  for (const auto& [name, json] : kKnown) {
    if (name_or_path == name) return Parse(json, name);
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  if (name_or_path.find_first_of("/.") == std::string::npos) {
    throw InputError("no chat format ", Quote(name_or_path), "; choose one of ", names,
                     ", or give the path of a JSON file");
  }
  return Parse(ReadFile(name_or_path, 1 << 16), name_or_path);
}

ChatFormat ChatFormat::Parse(const std::string& json, const std::string& label) {
  std::string fault;
  const nlohmann::ordered_json object = ParseOrderedJson(json, 3, fault);
  if (!fault.empty()) throw InputError(label, ": ", fault);
  const server::Fields fields(object, {"roles", "turn", "answer", "stop"}, label);
  ChatFormat format;
  const std::vector<std::string> roles = {"system", "user", "assistant"};
  const server::Fields names(fields.Value("roles"), roles, StrCat(label, ": 'roles'"));
  for (const std::string& role : roles) {
    if (names.Has(role)) format.roles[role] = names.Text(role, "");
  }
  format.turn = fields.Text("turn", "");
  format.answer = fields.Text("answer", "");
  const size_t role = format.turn.find(kRole), content = format.turn.find(kContent);
  if (content == format.turn.npos || role > content) {
    throw InputError(label, ": 'turn' needs {role} and, after it, {content}");
  }
  if (fields.Has("stop")) {
    if (!fields.Value("stop").is_array()) throw InputError(label, ": 'stop' is not a list");
    for (const nlohmann::ordered_json& stop : fields.Value("stop")) {
      if (!stop.is_string() || stop.get<std::string>().empty()) {
        throw InputError(label, ": 'stop' is not a list of strings that are not empty");
      }
      format.stop.push_back(stop);
    }
  }
  return format;
}

std::string ChatFormat::Text(const std::vector<ChatMessage>& messages) const {
  std::string text;
  for (const ChatMessage& message : messages) {
    const auto role = roles.find(message.role);
    if (role == roles.end()) {
      throw InputError("a message has the role ", Quote(message.role),
                       ", which this chat format does not have");
    }
    std::string one = turn;
    Replace(one, kContent, message.content, Replace(one, kRole, role->second, 0));
    text += one;
  }
  return text + answer;
}

}  // namespace linnet
