// How the messages of a chat become the text that a model continues.
//
//   const ChatFormat format = ChatFormat::Of("rwkv");               // or the path of a JSON file
//   format.Text({{"user", "Hello!"}})                               // "User: Hello!\n\nAssistant:"
#ifndef LINNET_TASKS_TEXT_CHAT_FORMAT_H_
#define LINNET_TASKS_TEXT_CHAT_FORMAT_H_

#include <map>
#include <string>
#include <vector>

namespace linnet {

struct ChatMessage {
  std::string role, content;  // role: "system", "user" or "assistant"
};

// A JSON file has these members as fields, as in
//   {"roles": {"user": "User", "assistant": "Assistant", "system": "System"},
//    "turn": "{role}: {content}\n\n", "answer": "Assistant:", "stop": ["\n\nUser:"]}
struct ChatFormat {
  std::map<std::string, std::string> roles;  // the name of each role in the text
  std::string turn;                          // a message; {role} and {content} are replaced
  std::string answer;                        // the beginning of the model's message
  std::vector<std::string> stop;             // strings that end the model's message

  // The format of this name (chatml, plain, rwkv) or in this file. Throws InputError if there is
  // none, or if the file has other fields.
  static ChatFormat Of(const std::string& name_or_path);
  static ChatFormat Parse(const std::string& json, const std::string& label);

  // All messages, then the beginning of the answer. Throws InputError for an unknown role.
  std::string Text(const std::vector<ChatMessage>& messages) const;
};

}  // namespace linnet

#endif  // LINNET_TASKS_TEXT_CHAT_FORMAT_H_
