// POST /v1/completions and /v1/chat/completions, in the format of OpenAI's clients (docs/http.md).
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "linnet/error.h"
#include "linnet/tasks/endpoint.h"
#include "linnet/tasks/text/completion_request.h"
#include "linnet/tasks/text/text.h"
#include "linnet/tasks/text/token_scores.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

const char* Reason(TextEnd end) {
  return end == TextEnd::kTokens || end == TextEnd::kPositions ? "length" : "stop";
}

// A text in progress, which becomes one element of `choices` in the answer.
struct Choice {
  TextDraft draft;
  std::optional<TokenScores> scores;  // if the request has logprobs
  size_t prompt = 0;                  // length of TextPrompt(): begin tokens and prompt
  std::string text = {};         // the text so far or, if Session::events, its end before the state
                                 // is kept
  const char* reason = nullptr;  // finish_reason; null until the text ends
  std::string state = {};        // name of the kept state; empty until it is kept
  std::string fault = {};        // why the state was not kept
  bool chat = false;             // the text is a message: blanks before it are left out
  bool spoken = false;           // the message has begun
  bool named = false;            // an event has named its role
  bool returns = false;          // the request wants the state
  bool read = false;             // the model has been asked to read the last token, too
  int open = 1;  // callbacks still to come: ended() and, if it returns a state, kept()

  // Number of positions that the model reads: all tokens except the last, unless that was read to
  // draw an end token or for the state.
  size_t length() const {
    const bool unread = draft.tokens() > 0 && draft.end() != TextEnd::kEndToken && !read;
    return prompt + draft.tokens() - (unread ? 1 : 0);
  }
  // The element of `choices`, whole or in an event of a stream.
  ordered_json Object(size_t index, std::string shown, const char* why, bool event) {
    ordered_json object = {{"index", index}};
    if (chat) {
      if (!spoken) shown.erase(0, shown.find_first_not_of(" \n"));  // npos: all
      ordered_json message = {{"content", shown}};
      if (!event || !std::exchange(named, true)) message["role"] = "assistant";
      spoken = spoken || !shown.empty();
      object[event ? "delta" : "message"] = std::move(message);
      object["logprobs"] = nullptr;
    } else {
      object["text"] = shown;
      object["logprobs"] = scores ? scores->Take(shown) : ordered_json();
    }
    object["finish_reason"] = why ? ordered_json(why) : ordered_json();
    if (returns && why) object["state"] = state.empty() ? ordered_json() : ordered_json(state);
    if (returns && why && !fault.empty()) object["state_error"] = fault;
    return object;
  }
};

// The state of a running request. Engine threads use the choices, one thread per choice at a time
// (Work::next). The other members, and choices that have ended, are guarded by `mutex`: the
// batcher's thread and the thread that keeps states use them.
struct Session {
  std::mutex mutex;
  std::vector<Choice> choices;         // n for each prompt, in the order of the prompts
  size_t left = 0;                     // number of choices in progress
  size_t trained = 0;                  // number of positions in training
  bool events = false, usage = false;  // CompletionRequest's stream and usage
  bool chat = false;
  std::shared_ptr<std::atomic<int>> status = std::make_shared<std::atomic<int>>(200);
  std::string model, id, why;  // why: message of an exception; empty if there was none
  int64_t created = 0;
  std::shared_ptr<Pipe> pipe = std::make_shared<Pipe>();
  std::shared_ptr<Account> account;
  std::shared_ptr<void> room;  // for the states that are kept

  ordered_json Object(ordered_json list) const {
    return {{"id", id},
            {"object", !chat    ? "text_completion"
                       : events ? "chat.completion.chunk"
                                : "chat.completion"},
            {"created", created},
            {"model", model},
            {"choices", std::move(list)}};
  }
  ordered_json Usage() const {
    size_t written = 0;
    for (const Choice& choice : choices) written += choice.draft.tokens();
    const size_t prompt = account->prompt;
    return {{"prompt_tokens", prompt},
            {"completion_tokens", written},
            {"total_tokens", prompt + written},
            {"prompt_tokens_details", {{"cached_tokens", account->known.load()}}}};
  }
  // Adds a warning if a text is longer than the training sequences; sine positions allow this.
  void WarnOfLength(size_t longest, ordered_json& answer) const {
    if (longest <= trained) return;
    answer["warning"] =
        StrCat("the model was trained on ", trained, " positions; this text is longer");
  }
  // Draws the next token of choice `i`, and sends the text that can now be shown.
  std::optional<int32_t> Next(size_t i, std::span<const float> outputs) {
    Choice& choice = choices[i];
    if (choice.read) return {};
    std::string shown;
    const size_t before = choice.draft.tokens();
    const auto token = choice.draft.Next(outputs, shown);
    const bool drawn = choice.draft.tokens() > before;
    if (drawn) {
      account->Generated();
      if (choice.scores) choice.scores->Add(choice.draft.last(), outputs);
    }
    if (!token) choice.reason = Reason(choice.draft.end());
    if (choice.reason && choice.returns) {
      choice.text += shown;  // shown once the state is kept
      choice.read = drawn;
      return drawn ? std::optional(choice.draft.last()) : std::nullopt;
    }
    Show(i, shown);
    return token;
  }
  void Ended(size_t i, server::Ended how, const std::string& message) {
    const std::lock_guard lock(mutex);
    Choice& choice = choices[i];
    if (how == server::Ended::kFailed) why = message;
    if ((how == server::Ended::kFull || how == server::Ended::kCancelled) && !choice.reason) {
      std::string shown;
      choice.draft.Stop(shown);
      choice.reason = "length";
      if (choice.returns) {
        choice.text += shown;
      } else {
        Show(i, shown);
      }
    }
    // Only a sequence that next() has ended is kept.
    Close(i, choice.returns && how != server::Ended::kDone ? 2 : 1);
  }
  // The state of choice `i` is kept under this name or, with a fault, is not kept.
  void Kept(size_t i, const std::string& name, const std::string& fault) {
    const std::lock_guard lock(mutex);
    (fault.empty() ? choices[i].state : choices[i].fault) = fault.empty() ? name : fault;
    Close(i, 1);
  }
  void Close(size_t i, int callbacks) {
    Choice& choice = choices[i];
    choice.open -= callbacks;
    if (choice.open > 0) return;
    if (choice.returns && events) Show(i, std::exchange(choice.text, {}));
    if (--left == 0) Done();
  }
  void Show(size_t i, const std::string& shown) {
    Choice& choice = choices[i];
    if (!events) {
      choice.text += shown;
    } else if (!shown.empty() || choice.reason) {
      ordered_json event =
          Object(ordered_json::array({choice.Object(i, shown, choice.reason, true)}));
      if (choice.reason) WarnOfLength(choice.length(), event);
      pipe->Push(Event("", event));
    }
  }
  // The answer to a request without `stream`. Choices are serialized one by one: with logprobs, the
  // JSON values of all choices together would take several times the memory of their text.
  std::string Whole() {
    std::string text = Dump(Object(ordered_json::array()));
    text.resize(text.size() - 2);  // removes "]}": the list is the last field
    size_t longest = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      Choice& choice = choices[i];
      text += (i > 0 ? "," : "") + Dump(choice.Object(i, choice.text, choice.reason, false));
      longest = std::max(longest, choice.length());
      choice.scores.reset();
    }
    ordered_json rest = {{"usage", Usage()}};
    WarnOfLength(longest, rest);
    return text + "]," + Dump(rest).substr(1);
  }
  void Done() {
    room.reset();
    if (!why.empty()) {
      *status = 500;
      const ordered_json error = {{"error", {{"message", why}, {"type", "server_error"}}}};
      pipe->Push(events ? Event("", error) : Dump(error));
    } else if (events) {
      if (usage) {
        ordered_json last = Object(ordered_json::array());
        last["usage"] = Usage();
        pipe->Push(Event("", last));
      }
      pipe->Push("data: [DONE]\n\n");
    } else {
      pipe->Push(Whole() + "\n");
    }
    pipe->Close();
  }
};

// Makes one Work for each prompt. The draws of a choice depend only on the seed and on its index
// among the choices of its prompt. So a prompt gets the same texts whether it is alone in a request
// or with others. Account::prompt and Account::known leave out the tokens that begin a text.
std::vector<Work> WorkOf(CompletionRequest request, const Vocabulary& vocabulary,
                         const ServedModel& served, const std::shared_ptr<Session>& session) {
  std::vector<Work> works;
  std::shared_ptr<const Snapshot> from;
  if (request.state) {
    from = served.keeper->Find(served.name, served.worker->model(), *request.state);
  }
  const size_t begin = from ? 0 : vocabulary.begin().size();
  request.options.grammar = request.grammar ? &*request.grammar : nullptr;
  for (std::vector<int32_t>& prompt : request.prompts) {
    const size_t first = session->choices.size();
    for (size_t i = 0; i < request.n; ++i) {
      request.options.stream = i;
      session->choices.push_back({TextDraft(vocabulary, request.options), {}, prompt.size()});
      Choice& choice = session->choices.back();
      choice.chat = session->chat;
      if (request.logprobs) choice.scores.emplace(vocabulary, *request.logprobs);
      if (request.return_state) choice.returns = true, choice.open = 2;
      if (from) choice.prompt += from->state.position();
    }
    session->account->prompt += prompt.size() - begin;
    Work work{.prompt = std::move(prompt), .sequences = request.n, .next = {}, .ended = {}};
    work.begun = [session, begin](size_t known) {
      session->account->known += known - std::min(known, begin);
      session->pipe->Begin();
    };
    work.next = [session, first](size_t i, std::span<const float> outputs) {
      return session->Next(first + i, outputs);
    };
    work.ended = [session, first](size_t i, Ended how, const std::string& why) {
      session->Ended(first + i, how, why);
    };
    work.from = from;
    if (request.return_state) {
      work.at_end = [session, first, served](size_t i, Snapshot end) {
        const std::string name = served.keeper->NewName();
        served.keeper->Keep(served.name, served.worker->shared_model(), name, std::move(end),
                            [session, choice = first + i, name](const std::string& fault) {
                              session->Kept(choice, name, fault);
                            });
      };
    }
    works.push_back(std::move(work));
  }
  session->left = session->choices.size();
  return works;
}

class Completions : public Endpoint {
 public:
  Completions(std::vector<ServedModel> models, const EndpointLimits& limits, bool chat)
      : models_(std::move(models)), limits_(limits), chat_(chat) {
    for (const ServedModel& served : models_) {
      vocabularies_.emplace(served.worker, VocabularyOf(served.worker->model()));
    }
  }

  Reply Answer(const ordered_json& body, std::shared_ptr<Account> account) override {
    const Fields fields(body, chat_ ? ChatFields() : CompletionFields());
    const ServedModel& served = Choose(models_, fields);
    const Vocabulary& vocabulary = vocabularies_.at(served.worker);
    CompletionRequest request =
        chat_ ? ParseChat(fields, *served.chat, *served.worker, vocabulary, limits_)
              : ParseCompletion(fields, *served.worker, vocabulary, limits_);
    if (request.state || request.return_state) CheckKeeper(served);
    auto session = std::make_shared<Session>();
    session->events = request.stream;
    session->usage = request.usage;
    session->model = served.name;
    session->trained = static_cast<size_t>(served.worker->model().spec().input.max_length);
    session->created = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
    session->chat = chat_;
    session->id = StrCat(chat_ ? "chatcmpl-" : "cmpl-", session->created, "-", ++last_);
    session->account = std::move(account);
    if (request.return_state) {
      session->room =
          served.keeper->Reserve(served.worker->model(), request.prompts.size() * request.n, {});
    }
    const auto id = served.worker->Submit(WorkOf(std::move(request), vocabulary, served, session));
    if (!id) throw Refusal{429, "the queue is full; try again in a moment"};
    return {session->events, session->pipe, session->status, served.worker, *id};
  }

 private:
  std::vector<ServedModel> models_;
  EndpointLimits limits_;
  const bool chat_;
  std::map<const Worker*, Vocabulary> vocabularies_;
  std::atomic<uint64_t> last_{0};
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
