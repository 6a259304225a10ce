// /v1/responses: OpenAI's Responses API, as far as text goes (docs/http.md). A response continues
// another one by its id; the server keeps the messages of both.
#include <algorithm>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/tasks/endpoint.h"
#include "linnet/tasks/text/chat_format.h"
#include "linnet/tasks/text/completion_request.h"
#include "linnet/tasks/text/session.h"
#include "linnet/tasks/text/text.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostKept = size_t{64} << 20;            // bytes of all kept responses
constexpr size_t kLongestConversation = size_t{1} << 20;  // bytes of all messages

// The bytes of messages, with an estimate of what each takes besides its text.
size_t BytesOf(const std::vector<ChatMessage>& messages) {
  size_t bytes = 0;
  for (const ChatMessage& message : messages) bytes += message.content.size() + sizeof(message);
  return bytes;
}

// A response that is kept: its object, and the messages that the next one continues.
struct Kept {
  std::string object;                 // JSON
  std::vector<ChatMessage> messages;  // without instructions, which hold for one response only
};

// The responses that were used last. Thread-safe.
class Responses {
 public:
  // Throws Refusal (404) if there is none.
  std::shared_ptr<const Kept> Find(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) {
      throw Refusal{404, StrCat("no response ", Quote(id), "; it may have been dropped")};
    }
    order_.splice(order_.begin(), order_, found->second);
    return found->second->kept;
  }
  void Remove(const std::string& id) {
    Find(id);
    const std::lock_guard lock(mutex_);
    if (const auto found = by_id_.find(id); found != by_id_.end()) Erase(found->second);
  }
  void Keep(const std::string& id, Kept kept) {
    const size_t bytes = kept.object.size() + BytesOf(kept.messages);
    if (bytes > kMostKept) return;
    const std::lock_guard lock(mutex_);
    order_.push_front({id, bytes, std::make_shared<const Kept>(std::move(kept))});
    by_id_[id] = order_.begin();
    bytes_ += bytes;
    while (bytes_ > kMostKept) Erase(std::prev(order_.end()));
  }

 private:
  struct One {
    std::string id;
    size_t bytes;
    std::shared_ptr<const Kept> kept;
  };

  void Erase(std::list<One>::iterator one) {
    bytes_ -= one->bytes;
    by_id_.erase(one->id);
    order_.erase(one);
  }

  std::mutex mutex_;
  std::list<One> order_;  // the last used first
  std::unordered_map<std::string, std::list<One>::iterator> by_id_;
  size_t bytes_ = 0;
};

// The answer to one request.
class ResponseForm : public AnswerForm {
 public:
  // `settings`: the fields of the request that the response repeats. store: null if the response
  // is not kept; it must outlive this object.
  ResponseForm(ordered_json settings, std::vector<ChatMessage> messages, Responses* store)
      : settings_(std::move(settings)), messages_(std::move(messages)), store_(store) {}

  std::string Begin(const Session& session) override {
    const ordered_json response = Object(session, "in_progress");
    return Events({{"response.created", {{"response", response}}},
                   {"response.in_progress", {{"response", response}}},
                   {"response.output_item.added",
                    {{"output_index", 0}, {"item", Message(session, "in_progress")}}},
                   {"response.content_part.added", InPart(session, {{"part", Part("")}})}});
  }
  std::string Piece(Session& session, size_t, const std::string& shown) override {
    const std::string more = text_.empty() ? MessageOf(session, shown) : shown;
    text_ += more;
    if (more.empty()) return "";
    return Events({{"response.output_text.delta",
                    InPart(session, {{"delta", more}, {"logprobs", ordered_json::array()}})}});
  }
  std::string End(Session& session) override {
    const ordered_json response = Final(session);
    const std::string status = response["status"];
    return Events(
        {{"response.output_text.done",
          InPart(session, {{"text", text_}, {"logprobs", ordered_json::array()}})},
         {"response.content_part.done", InPart(session, {{"part", Part(text_)}})},
         {"response.output_item.done", {{"output_index", 0}, {"item", Message(session, status)}}},
         {"response." + status, {{"response", response}}}});
  }
  std::string Whole(Session& session) override {
    text_ = MessageOf(session, session.choices[0].text);
    return Dump(Final(session)) + "\n";
  }
  std::string Failure(const std::string& type, const std::string& why, bool event) override {
    if (!event) return AnswerForm::Failure(type, why, event);
    return Events({{"error", {{"code", type}, {"message", why}, {"param", nullptr}}}});
  }

 private:
  // Events of these types, with these fields, in this order.
  std::string Events(const std::vector<std::pair<std::string, ordered_json>>& events) {
    std::string text;
    for (const auto& [type, fields] : events) {
      ordered_json event = {{"type", type}, {"sequence_number", sent_++}};
      event.update(fields);
      text += Event(type, event);
    }
    return text;
  }
  static ordered_json Part(const std::string& text) {
    return {{"type", "output_text"}, {"text", text}, {"annotations", ordered_json::array()}};
  }
  static std::string MessageId(const Session& session) { return "msg_" + session.id; }
  // The fields of an event about the message's text.
  static ordered_json InPart(const Session& session, const ordered_json& fields) {
    ordered_json event = {
        {"item_id", MessageId(session)}, {"output_index", 0}, {"content_index", 0}};
    event.update(fields);
    return event;
  }
  ordered_json Message(const Session& session, const std::string& status) const {
    ordered_json content = ordered_json::array();
    if (status != "in_progress") content.push_back(Part(text_));
    return {{"type", "message"},
            {"id", MessageId(session)},
            {"status", status},
            {"role", "assistant"},
            {"content", content}};
  }
  ordered_json Object(const Session& session, const std::string& status) const {
    ordered_json object = {{"id", session.id},
                           {"object", "response"},
                           {"created_at", session.created},
                           {"status", status},
                           {"error", nullptr},
                           {"incomplete_details", nullptr},
                           {"model", session.model},
                           {"output", ordered_json::array()},
                           {"usage", nullptr}};
    object.update(settings_);
    return object;
  }
  // The response after the text's end. It is kept, unless time, the client or the last position
  // ended it.
  ordered_json Final(Session& session) {
    const Choice& choice = session.choices[0];
    const bool complete = std::string_view(choice.reason) == "stop";
    const bool interrupted = !complete && choice.draft.end() != TextEnd::kTokens;
    const std::string status = complete ? "completed" : "incomplete";
    ordered_json object = Object(session, status);
    if (!complete) {
      object["incomplete_details"] = {
          {"reason", interrupted ? "interrupted" : "max_output_tokens"}};
    }
    object["output"].push_back(Message(session, status));
    const size_t read = session.account->prompt, written = session.written();
    object["usage"] = {{"input_tokens", read},
                       {"input_tokens_details", {{"cached_tokens", session.account->known.load()}}},
                       {"output_tokens", written},
                       {"output_tokens_details", {{"reasoning_tokens", 0}}},
                       {"total_tokens", read + written}};
    if (store_ && !interrupted) {
      std::vector<ChatMessage> messages = std::move(messages_);
      messages.push_back({"assistant", text_});
      store_->Keep(session.id, {Dump(object), std::move(messages)});
    }
    return object;
  }

  const ordered_json settings_;
  std::vector<ChatMessage> messages_;  // that the response continues
  Responses* const store_;
  std::string text_;  // the message so far
  int64_t sent_ = 0;  // number of events
};

class ResponsesEndpoint : public Endpoint {
 public:
  ResponsesEndpoint(std::vector<ServedModel> models, const EndpointLimits& limits)
      : models_(std::move(models)), limits_(limits), vocabularies_(models_) {}

  Reply Answer(const ordered_json& body, std::shared_ptr<Account> account) override {
    const Fields fields(body, ResponseFields());
    const ServedModel& served = Choose(models_, fields);
    const std::shared_ptr<const Vocabulary>& vocabulary = vocabularies_.Of(served);
    ResponseRequest request = ParseResponse(fields, limits_);
    std::vector<ChatMessage> messages;
    if (request.previous) messages = store_.Find(*request.previous)->messages;
    messages.insert(messages.end(), request.input.begin(), request.input.end());
    if (BytesOf(messages) > kLongestConversation) {
      throw InputError("the conversation has ", BytesOf(messages), " bytes; at most ",
                       kLongestConversation, " are possible");
    }
    std::vector<ChatMessage> all = messages;
    if (!request.instructions.empty()) all.insert(all.begin(), {"system", request.instructions});
    request.completion.prompts = {
        TextPrompt(served.worker->model(), *vocabulary, served.chat->Text(all))};
    std::vector<std::string>& stop = request.completion.options.stop;
    stop.insert(stop.end(), served.chat->stop.begin(), served.chat->stop.end());
    auto form = std::make_unique<ResponseForm>(std::move(request.settings), std::move(messages),
                                               request.store ? &store_ : nullptr);
    return Start(std::move(request.completion), vocabulary, served, std::move(form), "resp_",
                 std::move(account));
  }
  bool HasItems() const override { return true; }
  std::string Item(const std::string& id) override { return store_.Find(id)->object; }
  std::string Remove(const std::string& id) override {
    store_.Remove(id);
    return Dump({{"id", id}, {"object", "response"}, {"deleted", true}});
  }

 private:
  std::vector<ServedModel> models_;
  EndpointLimits limits_;
  Vocabularies vocabularies_;
  Responses store_;
};

}  // namespace

std::unique_ptr<Endpoint> MakeResponses(std::vector<ServedModel> models,
                                        const EndpointLimits& limits) {
  return std::make_unique<ResponsesEndpoint>(std::move(models), limits);
}

}  // namespace linnet::server
