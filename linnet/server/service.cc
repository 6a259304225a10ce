#include "linnet/server/service.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "linnet/base/suggestion.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/model/spec.h"
#include "linnet/server/metrics.h"
#include "linnet/tasks/task.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

constexpr char kModels[] = "/v1/models";

// The task whose models are served at this path.
std::optional<Task> TaskAt(const std::string& path) {
  for (const Task& task : Tasks()) {
    if (task.endpoint && path == task.path) return task;
  }
  return {};
}

// The endpoints of all tasks with a model in `models`, by path. keeper: null if no states are kept.
std::map<std::string, std::unique_ptr<Endpoint>> Endpoints(const std::vector<Served>& models,
                                                           StateKeeper* keeper,
                                                           const ServerOptions& options) {
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints;
  for (const Task& task : Tasks()) {
    std::vector<ServedModel> served;
    for (const Served& model : models) {
      if (!IsOf(model.batcher->model().spec(), task)) continue;
      served.push_back({model.name, model.batcher.get(), keeper, options.chat});
    }
    if (served.empty()) continue;
    for (const MorePath& more : task.more) {
      if (more.serves(served[0])) endpoints.emplace(more.path, more.make(served, options.limits));
    }
    if (task.endpoint) {
      endpoints.emplace(task.path, task.endpoint(std::move(served), options.limits));
    }
  }
  return endpoints;
}

}  // namespace

Service::Service(std::vector<Served> models, StateKeeper* keeper, const ServerOptions& options,
                 Routes others)
    : models_(std::move(models)),
      endpoints_(Endpoints(models_, keeper, options)),
      routes_(std::move(others.routes)),
      items_(std::move(others.items)) {
  AddModels();
  for (const auto& [path, endpoint] : endpoints_) {
    routes_[path].endpoint = endpoint.get();
    if (!endpoint->HasItems()) continue;
    Endpoint* const of = endpoint.get();
    items_[path + "/"] = {.get =
                              [of](const HttpRequest& request) {
                                return JsonTextResponse(of->Item(NameOf(request)));
                              },
                          .remove =
                              [of](const HttpRequest& request) {
                                return JsonTextResponse(of->Remove(NameOf(request)));
                              }};
  }
}

// The batchers' destructors end the remaining requests, which use the endpoints.
void Service::Stop() {
  for (Served& model : models_) model.batcher.reset();
  models_.clear();
}

void Service::AddModels() {
  const auto describe = [](const Served& model) -> ordered_json {
    return {{"id", model.name},
            {"object", "model"},
            {"created", 0},
            {"owned_by", "linnet"},
            {"task", model.batcher->model().spec().task}};
  };
  ordered_json list = {{"object", "list"}, {"data", ordered_json::array()}};
  for (const Served& model : models_) {
    list["data"].push_back(describe(model));
    routes_[StrCat(kModels, "/", model.name)] = {
        .get = [response = JsonResponse(describe(model))](const HttpRequest&) { return response; }};
  }
  routes_[kModels] = {
      .get = [response = JsonResponse(list)](const HttpRequest&) { return response; }};
}

const Route* Service::Find(const std::string& path) const {
  const auto found = routes_.find(path);
  if (found != routes_.end()) return &found->second;
  for (const auto& [before, route] : items_) {
    if (path.starts_with(before)) return &route;
  }
  return nullptr;
}

std::string Service::LabelOf(const std::string& path) const {
  const auto found = routes_.find(path);
  return found == routes_.end() ? "other" : found->second.is_page ? "pages" : path;
}

HttpResponse Service::NotFound(const std::string& path) const {
  constexpr std::string_view kOne = "/v1/models/";
  if (path.starts_with(kOne) && path.size() > kOne.size()) {
    const std::string name = path.substr(kOne.size());
    std::vector<std::string> names;
    for (const Served& model : models_) names.push_back(model.name);
    const std::string suggestion = Suggestion(name, names);
    return ErrorResponse(
        404, StrCat("no model ", Quote(name),
                    suggestion.empty() ? "; GET /v1/models lists the models" : suggestion));
  }
  if (const std::optional<Task> task = TaskAt(path)) {
    return ErrorResponse(404, StrCat("no model of the task '", task->name, "' is served here"));
  }
  for (const Task& task : Tasks()) {
    for (const MorePath& more : task.more) {
      if (path == more.path && endpoints_.contains(task.path)) {
        return ErrorResponse(404, more.missing);
      }
    }
  }
  std::vector<std::string> paths = {kModels};
  for (const auto& [served, endpoint] : endpoints_) paths.push_back(served);
  return ErrorResponse(404, StrCat("there is nothing at ", Brief(path), Suggestion(path, paths)));
}

void Service::AppendMetrics(std::string& text) const {
  struct Gauge {
    const char* name;
    const char* type;
    const char* help;
    double (*value)(const Batcher::Counts&);
  };
  using Counts = Batcher::Counts;
  static constexpr Gauge kGauges[] = {
      {"linnet_sequences_running", "gauge",
       "Sequences that are running: reading a prompt or generating.",
       [](const Counts& c) { return static_cast<double>(c.running); }},
      {"linnet_sequences_waiting", "gauge", "Sequences that wait in the queue.",
       [](const Counts& c) { return static_cast<double>(c.waiting); }},
      {"linnet_sequences_capacity", "gauge", "Maximum number of concurrent sequences.",
       [](const Counts& c) { return static_cast<double>(c.capacity); }},
      {"linnet_tokens_generated_total", "counter", "Tokens that were generated.",
       [](const Counts& c) { return static_cast<double>(c.generated); }},
      {"linnet_prompt_tokens_read_total", "counter", "Prompt tokens that were read.",
       [](const Counts& c) { return static_cast<double>(c.read); }},
      {"linnet_prompt_tokens_known_total", "counter", "Prompt tokens restored from snapshots.",
       [](const Counts& c) { return static_cast<double>(c.known); }},
      {"linnet_snapshot_hits_total", "counter",
       "Prompts with a snapshot of the prompt or a prefix.",
       [](const Counts& c) { return static_cast<double>(c.hits); }},
      {"linnet_snapshot_misses_total", "counter", "Prompts without a snapshot.",
       [](const Counts& c) { return static_cast<double>(c.misses); }},
      {"linnet_snapshot_evictions_total", "counter",
       "Snapshots dropped from memory to make room for others.",
       [](const Counts& c) { return static_cast<double>(c.evictions); }},
      {"linnet_snapshots", "gauge", "Snapshots in memory.",
       [](const Counts& c) { return static_cast<double>(c.snapshots); }},
      {"linnet_snapshot_bytes", "gauge", "Memory of the snapshots.",
       [](const Counts& c) { return static_cast<double>(c.snapshot_bytes); }},
  };
  std::vector<Counts> counts;
  for (const Served& model : models_) counts.push_back(model.batcher->counts());
  for (const Gauge& gauge : kGauges) {
    Metrics::Head(text, gauge.name, gauge.type, gauge.help);
    for (size_t i = 0; i < models_.size(); ++i) {
      Metrics::Line(text, gauge.name, StrCat("model=\"", models_[i].name, "\""),
                    gauge.value(counts[i]));
    }
  }
}

std::shared_ptr<void> Service::Use() {
  ++uses_;
  return std::shared_ptr<void>(this,
                               [](void* service) { --static_cast<Service*>(service)->uses_; });
}

bool Service::idle() const {
  return std::all_of(models_.begin(), models_.end(),
                     [](const Served& model) { return model.batcher->idle(); });
}

void Service::CancelAll() {
  for (const Served& model : models_) model.batcher->CancelAll();
}

void Service::Flush() {
  for (const Served& model : models_) model.batcher->Flush();
}

}  // namespace linnet::server
