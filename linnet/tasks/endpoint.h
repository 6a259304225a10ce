// A task's HTTP endpoint: turns the JSON of a request into work for a model, and the generated
// tokens into pieces of an answer. The server (linnet/server) runs the work. Task (task.h) holds
// the endpoint's URL path and makes the endpoint.
#ifndef LINNET_TASKS_ENDPOINT_H_
#define LINNET_TASKS_ENDPOINT_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/model.h"
#include "linnet/sampling.h"
#include "linnet/state.h"
#include "linnet/tasks/pipe.h"

namespace linnet {
struct ChatFormat;  // text/chat_format.h
}

namespace linnet::server {

// Why a sequence ended, in the order of the values: Work::next() returned nullopt, the model has no
// position left, the request was canceled, or an exception stopped it.
enum class Ended : uint8_t { kDone, kFull, kCancelled, kFailed };

// A sequence that can be continued: its state, and the head's outputs at its last token.
struct Snapshot {
  explicit Snapshot(State of, std::vector<float> at_the_end = {})
      : state(std::move(of)), outputs(std::move(at_the_end)) {}

  State state;                 // of one sequence
  std::vector<float> outputs;  // may be empty: then only a prompt continues the sequence
};

// Several sequences that continue one prompt. admitted(), ended() and at_end() are called on the
// thread of the Worker. next() and begun() may be called on engine threads; next() may run for
// several sequences at the same time. None of these functions may block, because all running
// sequences would wait.
struct Work {
  std::vector<int32_t> prompt;  // may be empty if `from` has outputs
  size_t sequences = 1;
  // The next token of a sequence, from the model's outputs; nullopt ends the sequence.
  std::function<std::optional<int32_t>(size_t sequence, std::span<const float> outputs)> next;
  // Called once for each sequence, as its last callback. With kFailed, `why` is the exception's
  // message.
  std::function<void(size_t sequence, Ended how, const std::string& why)> ended;
  // Called when the prompt's first sequence leaves the queue; not called if it is canceled there.
  // The function may be empty.
  std::function<void()> admitted = {};
  // Called once when the prompt has been read, before the first next(). `known`: number of tokens
  // at the prompt's beginning that the model did not read, because a saved state was reused. The
  // function may be empty.
  std::function<void(size_t known)> begun = {};
  // Only prompts of the same owner share saved states, which tell what was sent before.
  uint64_t owner = 0;
  // A sequence that the prompt continues; null: the prompt begins a sequence.
  std::shared_ptr<const Snapshot> from = {};
  // Called when next() has ended a sequence, before ended(), with the sequence after the last token
  // that next() returned. The function may be empty.
  std::function<void(size_t sequence, Snapshot end)> at_end = {};
};

// Sequences that a server keeps for its clients, by name (server/state_store.h). Thread-safe.
class StateKeeper {
 public:
  virtual ~StateKeeper() = default;
  // A name that no state has.
  virtual std::string NewName() = 0;
  // Reserves room for `count` more states of this model and, if given, a name for one of them,
  // until the result is destroyed. Throws InputError if the name cannot be a state's name, and
  // Refusal if a state has it (409), if there is no room (507), or if too many states are being
  // written (429).
  virtual std::shared_ptr<void> Reserve(const Model& model, size_t count,
                                        const std::optional<std::string>& name) = 0;
  // Keeps a state of a model, for which room is reserved, under a reserved or new name. Writes it
  // on another thread, which then calls done(fault); an empty fault: the state is on the disk.
  virtual void Keep(const std::string& model_name, std::shared_ptr<const Model> model,
                    const std::string& name, Snapshot snapshot,
                    std::function<void(const std::string& fault)> done) = 0;
  // Throws Refusal if the model has no state of this name (404), or if its files cannot be used
  // (409): damaged, or of other weights. Users of a state share one copy.
  virtual std::shared_ptr<const Snapshot> Find(const std::string& model_name, const Model& model,
                                               const std::string& name) = 0;
};

// A model that serves many requests at once (server/batcher.h). Thread-safe.
class Worker {
 public:
  virtual ~Worker() = default;
  virtual const Model& model() const = 0;
  virtual std::shared_ptr<const Model> shared_model() const = 0;
  // Maximum number of sequences in one request.
  virtual size_t most_sequences() const = 0;
  // Submits the prompts of one request, all or none. Returns the request's number, or nullopt if
  // the queue is full. Throws InputError on a prompt that the model cannot read, on a prompt with
  // no sequence, and if the request has no prompt or more than most_sequences() sequences.
  virtual std::optional<uint64_t> Submit(std::vector<Work> prompts) = 0;
  std::optional<uint64_t> Submit(Work work);
  // Ends the request's remaining sequences once the token in progress is computed.
  virtual void Cancel(uint64_t request) = 0;
};

inline std::optional<uint64_t> Worker::Submit(Work work) {
  std::vector<Work> prompts;
  prompts.push_back(std::move(work));
  return Submit(std::move(prompts));
}

// A served model and its name. keeper: null if the server keeps no states. chat: null if the model
// answers no chats.
struct ServedModel {
  std::string name;
  Worker* worker;
  StateKeeper* keeper = nullptr;
  std::shared_ptr<const ChatFormat> chat = nullptr;
};

// Maximum values in a request.
struct EndpointLimits {
  size_t candidates = 16;  // sequences per prompt
  size_t sequences = 128;  // sequences per request of several prompts
  size_t tokens = 4096;    // generated tokens per sequence of a request
};

// Thrown for a request that cannot be answered: HTTP status, reason and, with 429 and 503, the
// seconds to wait.
struct Refusal {
  int status;
  std::string message;
  int retry_after = 1;
};

// Statistics of a request for its log line, its trace and the metrics; written by the batcher's and
// the engine's threads, also while they are read, if the client has left. `prompt` and `generated`
// count tokens; `known` counts the tokens of the prompt whose state was reused.
struct Account {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::atomic<size_t> prompt{0}, known{0}, generated{0};
  // Seconds until the request began to run, and until its first and its last token so far;
  // negative: none yet.
  std::atomic<double> admitted{-1}, first{-1}, last{-1};
  double received = 0;  // seconds until the body was read; written before the request is submitted
  // Of the request's client, written before the request is submitted: what keeps its states (null:
  // the served model's), and Work::owner.
  StateKeeper* keeper = nullptr;
  uint64_t owner = 0;

  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void Admitted() {
    if (admitted < 0) admitted = Seconds();
  }
  void Generated() {
    const double now = Seconds();
    if (generated++ == 0) first = now;
    last = now;
  }
  // Why the answer failed; empty if it did not.
  void Failed(std::string why) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(why);
  }
  std::string fault() const {
    const std::lock_guard lock(mutex_);
    return fault_;
  }

 private:
  mutable std::mutex mutex_;
  std::string fault_;
};

// An answer in progress.
struct Reply {
  bool events = false;  // server-sent events; else one JSON value
  std::shared_ptr<Pipe> pipe;
  std::shared_ptr<std::atomic<int>>
      status;  // HTTP status of an answer without events; 200 unless it failed
  // The worker that computes the answer, and the request's number there, for Worker::Cancel().
  Worker* worker = nullptr;
  uint64_t request = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // Submits a request's work to a worker; the answer then arrives in the reply's pipe. Throws
  // InputError for an invalid request (status 400), and Refusal for other reasons.
  virtual Reply Answer(const nlohmann::ordered_json& request, std::shared_ptr<Account> account) = 0;
  // Whether the endpoint has items, such as /v1/responses/NAME, that clients can get and remove.
  virtual bool HasItems() const { return false; }
  // An item, and the answer to its removal, as JSON. Throws Refusal (404) if there is none of this
  // name.
  virtual std::string Item(const std::string& name);
  virtual std::string Remove(const std::string& name);
};

// Typed access to the fields of a request. A missing or null field has the value `otherwise`.
// Throws InputError, naming the field, on a wrong type or a value outside [low, high].
class Fields {
 public:
  // `names`: all fields that the object may have. Throws InputError if it has any other field (the
  // message suggests a similar name or lists all), or if `object` is not a JSON object (the message
  // begins with `what`).
  Fields(const nlohmann::ordered_json& object, const std::vector<std::string>& names,
         const std::string& what = "the body");

  bool Has(const std::string& name) const;  // present and not null
  std::string Text(const std::string& name, const std::string& otherwise) const;
  bool Flag(const std::string& name, bool otherwise) const;
  double Number(const std::string& name, double otherwise, double low, double high) const;
  int64_t Integer(const std::string& name, int64_t otherwise, int64_t low, int64_t high) const;
  // The field's JSON value. Throws InputError if the field is missing or null.
  const nlohmann::ordered_json& Value(const std::string& name) const;

 private:
  const nlohmann::ordered_json& object_;
};

// The model that the request names, or the first one if it names none. Throws Refusal (404) for an
// unknown name.
const ServedModel& Choose(const std::vector<ServedModel>& models, const Fields& fields);

// Throws Refusal (400) if the server keeps no states.
void CheckKeeper(const ServedModel& served);
// Keeps the states of this request.
inline StateKeeper& KeeperOf(const ServedModel& served, const Account& account) {
  return account.keeper != nullptr ? *account.keeper : *served.keeper;
}

// Serializes JSON. Replaces invalid UTF-8 by U+FFFD instead of throwing, because callbacks that
// call this function must not throw.
std::string Dump(const nlohmann::ordered_json& value);
// A server-sent event, "event: NAME\ndata: {...}\n\n"; only the data if the name is empty.
std::string Event(std::string_view name, const nlohmann::ordered_json& data);

// A name with this prefix that nobody can guess.
std::string RandomName(std::string_view prefix);

// Temperature, top_k and top_p of a request; for a missing field, the value in `otherwise`. Sets
// `seed` to the request's seed, or to a random one if the request has none.
ChoiceOptions ChoiceOf(const Fields& fields, const ChoiceOptions& otherwise, uint64_t& seed);

std::unique_ptr<Endpoint> MakeCompletions(std::vector<ServedModel> models,
                                          const EndpointLimits& limits);  // text/endpoint.cc
// POST /v1/chat/completions, for text models; all have a chat format.
std::unique_ptr<Endpoint> MakeChats(std::vector<ServedModel> models,
                                    const EndpointLimits& limits);  // text/endpoint.cc
// /v1/responses, for text models; all have a chat format.
std::unique_ptr<Endpoint> MakeResponses(std::vector<ServedModel> models,
                                        const EndpointLimits& limits);  // text/responses.cc
// POST /v1/states, for text models; all have a keeper.
std::unique_ptr<Endpoint> MakeStates(std::vector<ServedModel> models,
                                     const EndpointLimits& limits);  // text/states.cc
std::unique_ptr<Endpoint> MakeCouplets(std::vector<ServedModel> models,
                                       const EndpointLimits& limits);  // couplet/endpoint.cc

}  // namespace linnet::server

#endif  // LINNET_TASKS_ENDPOINT_H_
