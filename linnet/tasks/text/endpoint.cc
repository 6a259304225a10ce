// POST /v1/completions and /v1/chat/completions, in the format of OpenAI's clients (docs/http.md).
#include <algorithm>
#include <memory>
#include <utility>

#include "linnet/error.h"
#include "linnet/tasks/endpoint.h"
#include "linnet/tasks/text/completion_request.h"
#include "linnet/tasks/text/session.h"
#include "linnet/tasks/text/text.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

// Answers whose texts are the elements of `choices`.
class ChoicesForm : public AnswerForm {
 public:
  ChoicesForm(bool chat, bool usage, size_t choices)
      : chat_(chat), usage_(usage), messages_(choices) {}

  std::string Piece(Session& session, size_t i, const std::string& shown) override {
    const Choice& choice = session.choices[i];
    ordered_json event = Object(session, ordered_json::array({Element(session, i, shown, true)}));
    if (choice.reason) WarnOfLength(session, choice.length(), event);
    return Event("", event);
  }
  std::string End(Session& session) override {
    std::string events;
    if (usage_) {
      ordered_json last = Object(session, ordered_json::array());
      last["usage"] = Usage(session);
      events = Event("", last);
    }
    return events + "data: [DONE]\n\n";
  }
  // Choices are serialized one by one: with logprobs, the JSON values of all choices together would
  // take several times the memory of their text.
  std::string Whole(Session& session) override {
    std::string text = Dump(Object(session, ordered_json::array()));
    text.resize(text.size() - 2);  // removes "]}": the list is the last field
    size_t longest = 0;
    for (size_t i = 0; i < session.choices.size(); ++i) {
      Choice& choice = session.choices[i];
      text += (i > 0 ? "," : "") + Dump(Element(session, i, choice.text, false));
      longest = std::max(longest, choice.length());
      choice.scores.reset();
    }
    ordered_json rest = {{"usage", Usage(session)}};
    WarnOfLength(session, longest, rest);
    return text + "]," + Dump(rest).substr(1) + "\n";
  }

 private:
  // The message of a chat in progress.
  struct Message {
    bool spoken = false;  // it has begun: blanks before it are left out
    bool named = false;   // an event has named its role
  };

  ordered_json Object(const Session& session, ordered_json list) const {
    return {{"id", session.id},
            {"object", !chat_           ? "text_completion"
                       : session.events ? "chat.completion.chunk"
                                        : "chat.completion"},
            {"created", session.created},
            {"model", session.model},
            {"choices", std::move(list)}};
  }
  // An element of `choices`, whole or in an event of a stream.
  ordered_json Element(Session& session, size_t i, std::string shown, bool event) {
    Choice& choice = session.choices[i];
    ordered_json object = {{"index", i}};
    if (chat_) {
      Message& state = messages_[i];
      if (!state.spoken) shown = MessageOf(session, shown);
      ordered_json message = {{"content", shown}};
      if (!event || !std::exchange(state.named, true)) message["role"] = "assistant";
      state.spoken = state.spoken || !shown.empty();
      object[event ? "delta" : "message"] = std::move(message);
      object["logprobs"] = nullptr;
    } else {
      object["text"] = shown;
      object["logprobs"] = choice.scores ? choice.scores->Take(shown) : ordered_json();
    }
    const char* const why = choice.reason;
    object["finish_reason"] = why ? ordered_json(why) : ordered_json();
    if (choice.returns && why) {
      object["state"] = choice.state.empty() ? ordered_json() : ordered_json(choice.state);
      if (!choice.fault.empty()) object["state_error"] = choice.fault;
    }
    return object;
  }
  static ordered_json Usage(const Session& session) {
    const size_t written = session.written(), prompt = session.account->prompt;
    return {{"prompt_tokens", prompt},
            {"completion_tokens", written},
            {"total_tokens", prompt + written},
            {"prompt_tokens_details", {{"cached_tokens", session.account->known.load()}}}};
  }
  // Adds a warning if a text is longer than the training sequences; sine positions allow this.
  static void WarnOfLength(const Session& session, size_t longest, ordered_json& answer) {
    if (longest <= session.trained) return;
    answer["warning"] =
        StrCat("the model was trained on ", session.trained, " positions; this text is longer");
  }

  const bool chat_, usage_;
  std::vector<Message> messages_;  // of each choice
};

class Completions : public Endpoint {
 public:
  Completions(std::vector<ServedModel> models, const EndpointLimits& limits, bool chat)
      : models_(std::move(models)), limits_(limits), chat_(chat), vocabularies_(models_) {}

  Reply Answer(const ordered_json& body, std::shared_ptr<Account> account) override {
    const Fields fields(body, chat_ ? ChatFields() : CompletionFields());
    const ServedModel& served = Choose(models_, fields);
    const std::shared_ptr<const Vocabulary>& vocabulary = vocabularies_.Of(served);
    CompletionRequest request =
        chat_ ? ParseChat(fields, *served.chat, *served.worker, *vocabulary, limits_)
              : ParseCompletion(fields, *served.worker, *vocabulary, limits_);
    if (request.state || request.return_state) CheckKeeper(served);
    auto form =
        std::make_unique<ChoicesForm>(chat_, request.usage, request.prompts.size() * request.n);
    return Start(std::move(request), vocabulary, served, std::move(form),
                 chat_ ? "chatcmpl-" : "cmpl-", std::move(account));
  }

 private:
  std::vector<ServedModel> models_;
  EndpointLimits limits_;
  const bool chat_;
  Vocabularies vocabularies_;
};

}  // namespace

std::unique_ptr<Endpoint> MakeCompletions(std::vector<ServedModel> models,
                                          const EndpointLimits& limits) {
  return std::make_unique<Completions>(std::move(models), limits, /*chat=*/false);
}

std::unique_ptr<Endpoint> MakeChats(std::vector<ServedModel> models, const EndpointLimits& limits) {
  return std::make_unique<Completions>(std::move(models), limits, /*chat=*/true);
}

}  // namespace linnet::server
