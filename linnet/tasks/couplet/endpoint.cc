// POST /v1/couplets: second lines for a first line (docs/http.md).
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "linnet/error.h"
#include "linnet/tasks/couplet/couplet.h"
#include "linnet/tasks/endpoint.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

// Mean log-probability per character.
double Score(const CoupletAnswer& answer) {
  return answer.log_probability / std::max<double>(1, static_cast<double>(answer.characters));
}

ordered_json Object(const CoupletAnswer& answer) {
  return {{"text", answer.text},
          {"score", Score(answer)},
          {"log_probability", answer.log_probability},
          {"characters", answer.characters},
          {"scores", answer.scores}};
}

// The state of a running request. Work::ended changes it on the batcher's thread. Work::next runs
// on engine threads, for several drafts at the same time; each call changes only its own draft and
// the thread-safe `account` and `pipe`.
struct Session {
  std::unique_ptr<CoupletLine> line;
  std::vector<CoupletDraft> drafts;
  std::vector<CoupletAnswer> done;  // answers of the finished drafts
  size_t left = 0;                  // number of drafts in progress
  // cancelled: a draft was canceled; events: the reply consists of server-sent events.
  bool cancelled = false, events = false;
  std::shared_ptr<std::atomic<int>> status = std::make_shared<std::atomic<int>>(200);
  std::string model, first, why;  // first: the first line; why: message of an exception
  std::vector<std::string> unknown;
  std::shared_ptr<Pipe> pipe = std::make_shared<Pipe>();
  std::shared_ptr<Account> account;

  // Pushes the reply's end: all answers, or an error if there is none.
  void Done() {
    ordered_json result = {{"first", first}, {"model", model}, {"unknown", unknown}};
    result["candidates"] = ordered_json::array();
    for (const CoupletAnswer& answer : Distinct(std::move(done))) {
      result["candidates"].push_back(Object(answer));
    }
    if (result["candidates"].empty()) {
      const std::string message =
          cancelled ? "the request exceeded its time limit or was canceled" : why;
      *status = cancelled ? 503 : 500;
      if (!cancelled) account->Failed(why);
      const ordered_json error = {{"error", {{"message", message}, {"type", "incomplete"}}}};
      pipe->Close(events ? Event("error", error) : Dump(error));
    } else {
      pipe->Close(events ? Event("done", result) : Dump(result) + "\n");
    }
  }
};

class Couplets : public Endpoint {
 public:
  Couplets(std::vector<ServedModel> models, const EndpointLimits& limits)
      : models_(std::move(models)), limits_(limits) {
    for (const ServedModel& served : models_) {
      tokens_.emplace(served.worker, CoupletTokens(served.worker->model()));
    }
  }

  Reply Answer(const ordered_json& request, std::shared_ptr<Account> account) override {
    const Fields fields(request, {"first", "candidates", "temperature", "top_k", "top_p", "seed",
                                  "stream", "model"});
    const ServedModel& served = Choose(models_, fields);
    const CoupletTokens& tokens = tokens_.at(served.worker);
    auto session = std::make_shared<Session>();
    if (!fields.Value("first").is_string()) throw InputError("'first' is not a string");
    session->first = WithoutBlanks(fields.Text("first", ""), "'first'");
    const auto count = static_cast<size_t>(fields.Integer(
        "candidates", 1, 1,
        static_cast<int64_t>(std::min(limits_.candidates, served.worker->most_sequences()))));
    uint64_t seed = 0;
    const ChoiceOptions choice = ChoiceOf(fields, {.temperature = 0.7f, .top_p = 0.95f}, seed);
    session->events = fields.Flag("stream", false);
    Validate(choice);
    session->line = std::make_unique<CoupletLine>(tokens, session->first);
    session->model = served.name;
    session->left = count;
    session->account = std::move(account);
    for (size_t i = 0; i < count; ++i)
      session->drafts.emplace_back(*session->line, choice, seed, i);
    session->unknown = session->line->Unknown();
    Work work{.prompt = session->line->Prompt(), .sequences = count, .next = {}, .ended = {}};
    session->account->prompt = work.prompt.size();
    work.owner = session->account->owner;
    work.admitted = [session] { session->account->Admitted(); };
    work.begun = [session](size_t known) {
      session->account->known = known;
      session->pipe->Begin();
    };
    work.next = [session](size_t i, std::span<const float> outputs) -> std::optional<int32_t> {
      CoupletDraft& draft = session->drafts[i];
      if (draft.done()) return {};
      const int32_t token = draft.Next(outputs);
      session->account->Generated();
      if (session->events) {
        session->pipe->Push(Event("character", {{"candidate", i}, {"text", draft.last()}}));
      }
      if (!draft.done()) return token;
      return {};
    };
    work.ended = [session](size_t i, Ended how, const std::string& why) {
      if (how == Ended::kDone) {
        const CoupletAnswer& answer = session->drafts[i].answer();
        session->done.push_back(answer);
        if (session->events) {
          ordered_json data = {{"candidate", i}};
          data.update(Object(answer));
          session->pipe->Push(Event("candidate", data));
        }
      }
      if (how == Ended::kCancelled) session->cancelled = true;
      if (how == Ended::kFailed) session->why = why;
      if (--session->left == 0) session->Done();
    };
    const auto id = served.worker->Submit(std::move(work));
    if (!id) throw Refusal{429, "the queue is full; try again in a moment"};
    return {session->events, session->pipe, session->status, served.worker, *id};
  }

 private:
  std::vector<ServedModel> models_;
  EndpointLimits limits_;
  std::map<const Worker*, CoupletTokens> tokens_;
};

}  // namespace

std::unique_ptr<Endpoint> MakeCouplets(std::vector<ServedModel> models,
                                       const EndpointLimits& limits) {
  return std::make_unique<Couplets>(std::move(models), limits);
}

}  // namespace linnet::server
