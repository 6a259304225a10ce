#include "linnet/tasks/text/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "linnet/error.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

const char* Reason(TextEnd end) {
  return end == TextEnd::kTokens || end == TextEnd::kPositions ? "length" : "stop";
}

// Makes one Work for each prompt. The draws of a choice depend only on the seed and on its index
// among the choices of its prompt. So a prompt gets the same texts whether it is alone in a request
// or with others. Account::prompt and Account::known leave out the tokens that begin a text.
std::vector<Work> WorkOf(CompletionRequest request, const ServedModel& served,
                         const std::shared_ptr<Session>& session) {
  const Vocabulary& vocabulary = *session->vocabulary;
  std::vector<Work> works;
  std::shared_ptr<const Snapshot> from;
  if (request.state) {
    from = KeeperOf(served, *session->account)
               .Find(served.name, served.worker->model(), *request.state);
  }
  const size_t begin = from ? 0 : vocabulary.begin().size();
  request.options.grammar = request.grammar ? &*request.grammar : nullptr;
  for (std::vector<int32_t>& prompt : request.prompts) {
    const size_t first = session->choices.size();
    for (size_t i = 0; i < request.n; ++i) {
      request.options.stream = i;
      session->choices.push_back({TextDraft(vocabulary, request.options), {}, prompt.size()});
      Choice& choice = session->choices.back();
      if (request.logprobs) choice.scores.emplace(vocabulary, *request.logprobs);
      if (request.return_state) choice.returns = true, choice.open = 2;
      if (from) choice.prompt += from->state.position();
    }
    session->account->prompt += prompt.size() - begin;
    Work work{.prompt = std::move(prompt), .sequences = request.n, .next = {}, .ended = {}};
    work.admitted = [session] { session->account->Admitted(); };
    work.begun = [session, begin](size_t known) {
      session->account->known += known - std::min(known, begin);
      session->Begin();
    };
    work.next = [session, first](size_t i, std::span<const float> outputs) {
      return session->Next(first + i, outputs);
    };
    work.ended = [session, first](size_t i, Ended how, const std::string& why) {
      session->Ended(first + i, how, why);
    };
    work.owner = session->account->owner;
    work.from = from;
    if (request.return_state) {
      work.at_end = [session, first, served](size_t i, Snapshot end) {
        StateKeeper& keeper = KeeperOf(served, *session->account);
        const std::string name = keeper.NewName();
        keeper.Keep(served.name, served.worker->shared_model(), name, std::move(end),
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

}  // namespace

std::string AnswerForm::Failure(const std::string& type, const std::string& why, bool event) {
  const ordered_json error = {{"error", {{"message", why}, {"type", type}}}};
  return event ? Event("", error) : Dump(error);
}

std::optional<int32_t> Session::Next(size_t i, std::span<const float> outputs) {
  Choice& choice = choices[i];
  if (choice.read) return {};
  std::string shown;
  const size_t before = choice.draft.tokens();
  std::optional<int32_t> token;
  try {
    token = choice.draft.Next(outputs, shown);
  } catch (const GrammarError&) {
    refused_ = true;
    throw;
  }
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

void Session::Ended(size_t i, server::Ended how, const std::string& message) {
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

void Session::Kept(size_t i, const std::string& name, const std::string& fault) {
  const std::lock_guard lock(mutex);
  (fault.empty() ? choices[i].state : choices[i].fault) = fault.empty() ? name : fault;
  Close(i, 1);
}

void Session::Begin() {
  const std::lock_guard lock(mutex);
  if (!std::exchange(begun_, true) && events) {
    if (const std::string first = form_->Begin(*this); !first.empty()) pipe->Push(first);
  }
  pipe->Begin();
}

size_t Session::written() const {
  size_t count = 0;
  for (const Choice& choice : choices) count += choice.draft.tokens();
  return count;
}

void Session::Close(size_t i, int callbacks) {
  Choice& choice = choices[i];
  choice.open -= callbacks;
  if (choice.open > 0) return;
  if (choice.returns && events) Show(i, std::exchange(choice.text, {}));
  if (--left == 0) Done();
}

void Session::Show(size_t i, const std::string& shown) {
  Choice& choice = choices[i];
  if (!events) {
    choice.text += shown;
  } else if (!shown.empty() || choice.reason) {
    pipe->Push(form_->Piece(*this, i, shown));
  }
}

void Session::Done() {
  room.reset();
  if (!why.empty()) {
    *status = refused_ ? 400 : 500;
    account->Failed(why);
    pipe->Close(form_->Failure(refused_ ? "invalid_request_error" : "server_error", why, events));
  } else {
    pipe->Close(events ? form_->End(*this) : form_->Whole(*this));
  }
}

Reply Start(CompletionRequest request, std::shared_ptr<const Vocabulary> vocabulary,
            const ServedModel& served, std::unique_ptr<AnswerForm> form, const char* id,
            std::shared_ptr<Account> account) {
  auto session = std::make_shared<Session>(std::move(form), std::move(vocabulary));
  session->events = request.stream;
  session->grammar = request.grammar.has_value();
  session->model = served.name;
  session->trained = static_cast<size_t>(served.worker->model().spec().input.max_length);
  session->created = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  session->id = RandomName(id);
  session->account = std::move(account);
  if (request.return_state) {
    session->room = KeeperOf(served, *session->account)
                        .Reserve(served.worker->model(), request.prompts.size() * request.n, {});
  }
  const auto number = served.worker->Submit(WorkOf(std::move(request), served, session));
  if (!number) throw Refusal{429, "the queue is full; try again in a moment"};
  return {session->events, session->pipe, session->status, served.worker, *number};
}

}  // namespace linnet::server
