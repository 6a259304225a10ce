// A task behind HTTP: an endpoint turns a request's JSON into work for a model, and its symbols into pieces
// of an answer. The server (linnet/server) does the work; a task's row (task.h) names its path and endpoint.
#ifndef LINNET_TASKS_ENDPOINT_H_
#define LINNET_TASKS_ENDPOINT_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linnet/runtime/choice.h"
#include "linnet/runtime/model.h"
#include "linnet/tasks/pipe.h"

namespace linnet::server {

enum class Ended : uint8_t { kDone, kFull, kCancelled, kFailed };

// Several sequences that go on from one prompt. The functions are called on the worker's thread, but for
// next(), which may be called for several sequences at once, on the engine's. They must not block: those
// that are running wait meanwhile.
struct Work {
  std::vector<int32_t> prompt;
  size_t sequences = 1;
  // The next symbol of a sequence, or none where it ends (with the one before).
  std::function<std::optional<int32_t>(size_t sequence, std::span<const float> outputs)> next;
  // Once for each sequence, last. What an exception of next() said is in `why`.
  std::function<void(size_t sequence, Ended how, const std::string& why)> ended;
  // Once, before the first symbol: the prompt has been read, but for `known` symbols of it; may be empty,
  // and be called on a thread as next() is.
  std::function<void(size_t known)> begun = {};
};

// A model that works for many requests at once (server/batcher.h). For any thread.
class Worker {
 public:
  virtual ~Worker() = default;
  virtual const Model& model() const = 0;
  // Of one request's sequences, at most.
  virtual size_t most_sequences() const = 0;
  // The request's number; nothing where the queue is full. Throws InputError on a prompt that the model
  // cannot read, and on no sequences or more than most_sequences().
  virtual std::optional<uint64_t> Submit(Work work) = 0;
  // Ends what is left of a request, as soon as the symbol that is being computed is there.
  virtual void Cancel(uint64_t request) = 0;
};

// A model that is served, under a name.
struct ServedModel {
  std::string name;
  Worker* worker;
};

struct EndpointLimits {
  size_t candidates = 16;  // of a request
  size_t symbols = 4096;   // to generate, of a request's sequence
};

// A request that cannot be answered: an HTTP status, and why.
struct Refusal {
  int status;
  std::string message;
};

// What became of a request, for its log line and the metrics; written by the batcher's and the engine's threads.
struct Account {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::atomic<size_t> prompt{0}, known{0}, generated{0};
  std::atomic<double> first{-1};  // seconds until the first symbol; negative: there was none

  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void Generated() {
    if (generated++ == 0) first = Seconds();
  }
};

// An answer that is on its way.
struct Reply {
  bool events = false;  // server-sent events; else one JSON value
  std::shared_ptr<Pipe> pipe;
  std::shared_ptr<std::atomic<int>>
      status;  // of an answer that is one value; 200 but where it failed
  Worker* worker = nullptr;
  uint64_t request = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // Throws Refusal, and InputError for what is wrong with the request (400).
  virtual Reply Answer(const nlohmann::json& request, std::shared_ptr<Account> account) = 0;
};

// The fields of a request, each of its type and within its bounds; InputError says which is not.
class Fields {
 public:
  // Throws InputError where it is no object; `what` begins the message.
  explicit Fields(const nlohmann::json& object, const std::string& what = "the body");

  bool Has(const std::string& name);  // and is not null
  std::string Text(const std::string& name, const std::string& otherwise);
  bool Flag(const std::string& name, bool otherwise);
  double Number(const std::string& name, double otherwise, double low, double high);
  int64_t Integer(const std::string& name, int64_t otherwise, int64_t low, int64_t high);
  const nlohmann::json& Value(const std::string& name);
  // Throws InputError on a field that was not asked for.
  void RefuseOthers() const;

 private:
  const nlohmann::json& object_;
  std::vector<std::string> known_;
};

// The model that a request names, the first one where it names none. Throws Refusal (404).
const ServedModel& Choose(const std::vector<ServedModel>& models, Fields& fields);

// As text, with U+FFFD for what is no UTF-8: a callback must not throw.
std::string Dump(const nlohmann::ordered_json& value);
// "event: NAME\ndata: {...}\n\n"; without a name only the data.
std::string Event(std::string_view name, const nlohmann::ordered_json& data);

// Temperature, top_k, top_p and seed. `seed` is drawn where the request gives none.
ChoiceOptions ChoiceOf(Fields& fields, const ChoiceOptions& otherwise, uint64_t& seed);

std::unique_ptr<Endpoint> MakeCompletions(std::vector<ServedModel> models,
                                          const EndpointLimits& limits);  // text/endpoint.cc
std::unique_ptr<Endpoint> MakeCouplets(std::vector<ServedModel> models,
                                       const EndpointLimits& limits);  // couplet/endpoint.cc

}  // namespace linnet::server

#endif  // LINNET_TASKS_ENDPOINT_H_
