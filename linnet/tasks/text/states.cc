// POST /v1/states: reads a prompt, and keeps the state after it (docs/http.md).
#include <algorithm>
#include <memory>
#include <utility>

#include "linnet/error.h"
#include "linnet/sampling.h"
#include "linnet/tasks/endpoint.h"
#include "linnet/tasks/text/completion_request.h"
#include "linnet/tasks/text/text.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

// A running request. `ended` and `kept` come from two threads, in any order.
struct Session {
  std::string name, model, why;
  size_t tokens = 0;  // positions that the state has read
  std::shared_ptr<void> room;
  std::shared_ptr<Account> account;
  std::shared_ptr<std::atomic<int>> status = std::make_shared<std::atomic<int>>(200);
  std::shared_ptr<Pipe> pipe = std::make_shared<Pipe>();

  void Answer(const std::string& fault) {
    room.reset();
    if (fault.empty()) {
      const ordered_json state = {
          {"id", name}, {"object", "state"}, {"model", model}, {"tokens", tokens}};
      pipe->Close(Dump(state) + "\n");
    } else {
      *status = 500;
      account->Failed(fault);
      const ordered_json error = {{"error", {{"message", fault}, {"type", "server_error"}}}};
      pipe->Close(Dump(error));
    }
  }
};

class States : public Endpoint {
 public:
  explicit States(std::vector<ServedModel> models)
      : models_(std::move(models)), vocabularies_(models_) {}

  Reply Answer(const ordered_json& body, std::shared_ptr<Account> account) override {
    const Fields fields(body, {"model", "prompt", "state", "id"});
    const ServedModel& served = Choose(models_, fields);
    const Model& model = served.worker->model();
    StateKeeper& keeper = KeeperOf(served, *account);
    auto session = std::make_shared<Session>();
    session->name = fields.Text("id", keeper.NewName());
    session->model = served.name;
    session->account = account;
    session->room = keeper.Reserve(model, 1, session->name);
    const Vocabulary& vocabulary = *vocabularies_.Of(served);
    Work work;
    if (fields.Has("state")) work.from = keeper.Find(served.name, model, fields.Text("state", ""));
    work.prompt = PromptsOf(fields, model, vocabulary, 1)[0];
    const size_t begin = work.from ? 0 : vocabulary.begin().size();
    account->prompt = work.prompt.size() - begin;
    work.owner = account->owner;
    work.admitted = [account] { account->Admitted(); };
    work.begun = [session, account, begin](size_t known) {
      account->known = known - std::min(known, begin);
      session->pipe->Begin();
    };
    work.next = [](size_t, std::span<const float>) { return std::optional<int32_t>(); };
    work.at_end = [session, &keeper, served](size_t, Snapshot end) {
      CheckLogits(end.outputs);
      session->tokens = end.state.position();
      keeper.Keep(served.name, served.worker->shared_model(), session->name, std::move(end),
                  [session](const std::string& fault) { session->Answer(fault); });
    };
    work.ended = [session](size_t, Ended how, const std::string& why) {
      if (how == Ended::kDone) return;  // Keep() answers
      session->pipe->Begin();
      session->Answer(how == Ended::kFailed ? why : "the state was not kept: the request ended");
    };
    const auto id = served.worker->Submit(std::move(work));
    if (!id) throw Refusal{429, "the queue is full; try again in a moment"};
    return {/*events=*/false, session->pipe, session->status, served.worker, *id};
  }

 private:
  std::vector<ServedModel> models_;
  Vocabularies vocabularies_;
};

}  // namespace

std::unique_ptr<Endpoint> MakeStates(std::vector<ServedModel> models, const EndpointLimits&) {
  return std::make_unique<States>(std::move(models));
}

}  // namespace linnet::server
