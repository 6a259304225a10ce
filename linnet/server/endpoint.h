// What answers the requests to one path: an endpoint turns a request's JSON into work for a model's batcher,
// and what comes of it into pieces of an answer. A new one is a file with a class and its line in
// endpoints() (endpoint.cc).
#ifndef LINNET_SERVER_ENDPOINT_H_
#define LINNET_SERVER_ENDPOINT_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "linnet/runtime/choice.h"
#include "linnet/server/batcher.h"
#include "linnet/server/pipe.h"

namespace linnet::server {

// A model that is served, under a name.
struct Served {
  std::string name;
  std::unique_ptr<Batcher> batcher;
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
  Batcher* batcher = nullptr;
  uint64_t request = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual std::string path() const = 0;
  virtual std::string task() const = 0;  // of the models that it can use
  // Throws Refusal, and InputError for what is wrong with the request (400).
  virtual Reply Answer(const nlohmann::json& request, std::shared_ptr<Account> account) = 0;
};

// The task whose models answer at this path; "" for a path of none.
std::string TaskAt(const std::string& path);

// The endpoints for these models, which must outlive them: those whose task some model has.
std::vector<std::unique_ptr<Endpoint>> Endpoints(const std::vector<Served>& models,
                                                 const EndpointLimits& limits);
// Tasks that there are endpoints for.
bool CanServe(const std::string& task);

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

// The model of that task that a request names, the first one where it names none. Throws Refusal (404).
const Served& Choose(const std::vector<Served>& models, const std::string& task, Fields& fields);

// As text, with U+FFFD for what is no UTF-8: a callback must not throw.
std::string Dump(const nlohmann::ordered_json& value);
// "event: NAME\ndata: {...}\n\n"; without a name only the data.
std::string Event(std::string_view name, const nlohmann::ordered_json& data);

// Temperature, top_k, top_p and seed. `seed` is drawn where the request gives none.
ChoiceOptions ChoiceOf(Fields& fields, const ChoiceOptions& otherwise, uint64_t& seed);

std::unique_ptr<Endpoint> MakeCouplets(const std::vector<Served>& models,
                                       const EndpointLimits& limits);
std::unique_ptr<Endpoint> MakeCompletions(const std::vector<Served>& models,
                                          const EndpointLimits& limits);

}  // namespace linnet::server

#endif  // LINNET_SERVER_ENDPOINT_H_
