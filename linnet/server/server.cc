#include "linnet/server/server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "linnet/base/suggestion.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/server/answering.h"
#include "linnet/server/metrics.h"
#include "linnet/server/pages.h"
#include "linnet/tasks/task.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr int kDepth = 64;  // maximum nesting of a request's JSON
constexpr char kJson[] = "application/json; charset=utf-8";
constexpr char kModels[] = "/v1/models", kStates[] = "/v1/states";

HttpResponse ErrorResponse(int status, const std::string& message) {
  const char* type = status == 401                    ? "authentication_error"
                     : status == 404                  ? "not_found_error"
                     : status == 429                  ? "rate_limit_error"
                     : status >= 400 && status <= 499 ? "invalid_request_error"
                                                      : "server_error";
  const ordered_json error = {
      {"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", status}}}};
  HttpResponse response{.status = status, .type = kJson, .body = Dump(error) + "\n"};
  if (status == 429 || status == 503) response.fields.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse JsonResponse(const ordered_json& value) {
  return {.type = kJson, .body = Dump(value) + "\n"};
}

bool IsJson(std::string_view type) {
  std::string name(type.substr(0, type.find(';')));
  while (name.ends_with(' ')) name.pop_back();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name == "application/json";
}

// Constant-time comparison.
bool SameSecret(std::string_view a, std::string_view b) {
  unsigned char differ = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    differ |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  }
  return differ == 0;
}

std::string ContentType(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "application/octet-stream";
}

// The task whose models are served at this path.
std::optional<Task> TaskAt(const std::string& path) {
  for (const Task& task : Tasks()) {
    if (task.endpoint && path == task.path) return task;
  }
  return {};
}

// The name in the path of an item: what follows the last '/' of its collection (/v1/states/NAME).
std::string NameOf(const HttpRequest& request) {
  constexpr int kParts = 3;  // "/v1/states/"
  size_t at = 0;
  for (int i = 0; i < kParts; ++i) at = request.path.find('/', at) + 1;
  return request.path.substr(at);
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

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string Milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", 1e3 * seconds);
  return text;
}

}  // namespace

// Called on the transport's threads and on the batchers' threads.
struct Server::Impl : HttpHandler {
  // The handlers of a path: `get` answers GET and HEAD, `endpoint` POST, and `remove` DELETE.
  using Answers = std::function<HttpResponse(const HttpRequest&)>;
  struct Route {
    Answers get = {}, remove = {};
    Endpoint* endpoint = nullptr;
    bool needs_key = true;

    // The methods that the path accepts: "GET, HEAD, POST".
    std::string Methods() const {
      std::string methods = get ? "GET, HEAD" : "";
      for (const auto& [has, name] :
           {std::pair(endpoint != nullptr, "POST"), std::pair(remove != nullptr, "DELETE")}) {
        if (has) methods += (methods.empty() ? "" : ", ") + std::string(name);
      }
      return methods;
    }
    bool Accepts(std::string_view method) const {
      return method == "POST"     ? endpoint != nullptr
             : method == "DELETE" ? remove != nullptr
                                  : get && (method == "GET" || method == "HEAD");
    }
  };

  Impl(std::vector<Served> served, ServerOptions how)
      : models(std::move(served)),
        options(std::move(how)),
        states(options.states.folder.empty() ? nullptr
                                             : std::make_unique<StateStore>(options.states)),
        endpoints(Endpoints(models, states.get(), options)),
        http(*this, options.http) {
    AddRoutes();
  }
  // Destroys the batchers first: their destructors end the remaining requests, which use the
  // states, the endpoints and the transport. Then the states: the last ones end requests, too.
  ~Impl() override {
    for (Served& model : models) model.batcher.reset();
    states.reset();
  }

  std::optional<HttpResponse> Check(const HttpRequest& request) override;
  void Handle(std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override {
    return ErrorResponse(status, message);
  }
  void Finished(const HttpRequest& request, int status, bool left) override;
  void Tick() override;

  void AddRoutes();
  void AddStates();
  void AddPages();
  // Null if nothing is at this path.
  const Route* Find(const std::string& path) const;
  HttpResponse NotFound(const std::string& path) const;
  bool HasKey(const HttpRequest& request) const;
  void Compute(Endpoint& endpoint, const std::shared_ptr<Exchange>& exchange);
  void Log(const HttpRequest& request, const Account* account, int status);
  std::string MetricsText() const;
  bool Expired(const Account& request) const {
    return options.expired ? options.expired(request) : request.Seconds() > options.seconds;
  }
  bool Idle() const {
    return http.active() == 0 && std::all_of(models.begin(), models.end(), [](const Served& model) {
             return model.batcher->idle();
           });
  }

  std::vector<Served> models;
  const ServerOptions options;
  std::unique_ptr<StateStore> states;                          // null: none are kept
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints;  // by path
  std::map<std::string, Route> routes;                         // by path
  std::map<std::string, Route> items;                          // by the path before the name
  Metrics metrics;
  const std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  std::atomic<bool> draining{false};
  std::mutex mutex;  // guards `answering`
  std::unordered_map<const HttpRequest*, std::shared_ptr<Answering>> answering;
  HttpServer http;
};

Server::Server(std::vector<Served> models, ServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(models), std::move(options))) {}

Server::~Server() = default;

int Server::Bind() { return impl_->http.Bind(); }

void Server::Run() { impl_->http.Run(); }

void Server::Drain(double seconds) {
  Impl& impl = *impl_;
  impl.draining = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!impl.Idle() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (const Served& model : impl.models) model.batcher->CancelAll();
  constexpr int kMore = 100;  // maximum number of waits of 10 ms for canceled requests to end
  for (int i = 0; i < kMore && !impl.Idle(); ++i) std::this_thread::sleep_for(milliseconds(10));
  for (const Served& model : impl.models) model.batcher->Flush();
  impl.http.Stop();
}

void Server::Impl::AddRoutes() {
  routes["/healthz"] = {
      .get =
          [this](const HttpRequest&) {
            HttpResponse response = JsonResponse({{"status", draining ? "stopping" : "ok"}});
            response.status = draining ? 503 : 200;
            return response;
          },
      .needs_key = false};
  routes["/metrics"] = {.get = [this](const HttpRequest&) {
    return HttpResponse{.type = "text/plain; version=0.0.4; charset=utf-8", .body = MetricsText()};
  }};
  const auto describe = [](const Served& model) -> ordered_json {
    return {{"id", model.name},
            {"object", "model"},
            {"created", 0},
            {"owned_by", "linnet"},
            {"task", model.batcher->model().spec().task}};
  };
  ordered_json list = {{"object", "list"}, {"data", ordered_json::array()}};
  for (const Served& model : models) {
    list["data"].push_back(describe(model));
    routes[StrCat(kModels, "/", model.name)] = {
        .get = [response = JsonResponse(describe(model))](const HttpRequest&) { return response; }};
  }
  routes[kModels] = {
      .get = [response = JsonResponse(list)](const HttpRequest&) { return response; }};
  for (const auto& [path, endpoint] : endpoints) {
    routes[path] = {.endpoint = endpoint.get()};
    if (!endpoint->HasItems()) continue;
    Endpoint* const of = endpoint.get();
    items[path + "/"] = {
        .get = [of](const HttpRequest& request) { return JsonResponse(of->Item(NameOf(request))); },
        .remove =
            [of](const HttpRequest& request) { return JsonResponse(of->Remove(NameOf(request))); }};
  }
  if (states) AddStates();
  AddPages();
}

void Server::Impl::AddStates() {
  const auto describe = [](const StateStore::Info& info) -> ordered_json {
    return {{"id", info.name},
            {"object", "state"},
            {"model", info.model},
            {"bytes", static_cast<int64_t>(info.bytes)},
            {"created", info.created}};
  };
  routes[kStates].get = [this, describe](const HttpRequest&) {
    ordered_json list = {{"object", "list"}, {"data", ordered_json::array()}};
    for (const StateStore::Info& info : states->List()) list["data"].push_back(describe(info));
    return JsonResponse(list);
  };
  Route& one = items[StrCat(kStates, "/")];
  one.get = [this, describe](const HttpRequest& request) {
    return JsonResponse(describe(states->Get(NameOf(request))));
  };
  one.remove = [this](const HttpRequest& request) {
    const std::string name = NameOf(request);
    states->Remove(name);
    return JsonResponse({{"id", name}, {"object", "state"}, {"deleted", true}});
  };
}

const Server::Impl::Route* Server::Impl::Find(const std::string& path) const {
  const auto found = routes.find(path);
  if (found != routes.end()) return &found->second;
  for (const auto& [before, route] : items) {
    if (path.starts_with(before)) return &route;
  }
  return nullptr;
}

void Server::Impl::AddPages() {
  for (const EmbeddedFile& page : Pages()) {
    const auto show = [&page](const HttpRequest&) {
      return HttpResponse{.type = ContentType(page.name),
                          .fields = {{"Cache-Control", "no-cache"},
                                     {"Content-Security-Policy",
                                      "default-src 'none'; script-src 'self'; style-src 'self'; "
                                      "connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
                                      "form-action 'none'; frame-ancestors 'none'"},
                                     {"X-Content-Type-Options", "nosniff"},
                                     {"Referrer-Policy", "no-referrer"}},
                          .body = std::string(page.bytes)};
    };
    routes["/" + std::string(page.name)] = {.get = show, .needs_key = false};
    if (page.name == "couplet.html") routes["/"] = {.get = show, .needs_key = false};
  }
}

HttpResponse Server::Impl::NotFound(const std::string& path) const {
  constexpr std::string_view kOne = "/v1/models/";
  if (path.starts_with(kOne) && path.size() > kOne.size()) {
    const std::string name = path.substr(kOne.size());
    std::vector<std::string> names;
    for (const Served& model : models) names.push_back(model.name);
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
      if (path == more.path && endpoints.contains(task.path)) {
        return ErrorResponse(404, more.missing);
      }
    }
  }
  std::vector<std::string> paths = {kModels};
  for (const auto& [served, endpoint] : endpoints) paths.push_back(served);
  return ErrorResponse(404, StrCat("there is nothing at ", Brief(path), Suggestion(path, paths)));
}

// Makes the checks that need only the header.
std::optional<HttpResponse> Server::Impl::Check(const HttpRequest& request) {
  const Route* const route = Find(request.path);
  const bool is_private = request.path.starts_with(kModels) || request.path.starts_with(kStates);
  if (route != nullptr && !route->Accepts(request.method)) {
    const std::string methods = route->Methods();
    HttpResponse response =
        ErrorResponse(405, methods == "POST"        ? "this path accepts only POST, with JSON"
                           : methods == "GET, HEAD" ? "this path accepts only GET"
                                                    : "this path accepts only " + methods);
    response.fields.emplace_back("Allow", methods);
    return response;
  }
  // The answer to an unknown model's path may suggest a model's name, so it needs the key as well.
  if ((route != nullptr ? route->needs_key : is_private) && !HasKey(request)) {
    HttpResponse response = ErrorResponse(
        401, "this server requires an API key: send the header Authorization: Bearer KEY");
    response.fields.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (route == nullptr) return NotFound(request.path);
  if (draining && request.method == "DELETE") return ErrorResponse(503, "the server is stopping");
  if (request.method != "POST") return {};
  // Keeps other sites' pages from using the server through a user's browser: they can send this
  // content type only after a preflight request (OPTIONS), which the server refuses.
  if (!IsJson(request.Field("Content-Type"))) {
    return ErrorResponse(415,
                         "send JSON, with the header Content-Type: application/json (curl: -H "
                         "'Content-Type: application/json')");
  }
  if (!request.Field("Content-Encoding").empty()) {
    return ErrorResponse(400, "the body has a Content-Encoding; send the body without one");
  }
  if (draining) return ErrorResponse(503, "the server is stopping");
  return {};
}

bool Server::Impl::HasKey(const HttpRequest& request) const {
  const std::string_view given = request.Field("Authorization");
  return options.api_key.empty() || SameSecret(given, "Bearer " + options.api_key) ||
         SameSecret(given, "bearer " + options.api_key);
}

void Server::Impl::Handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  const Route& route = *Find(request.path);  // exists: Check() has passed
  try {
    if (request.method == "POST") return Compute(*route.endpoint, exchange);
    exchange->Answer(request.method == "DELETE" ? route.remove(request) : route.get(request));
  } catch (const Refusal& refusal) {
    exchange->Answer(ErrorResponse(refusal.status, refusal.message));
  } catch (const InputError& error) {
    exchange->Answer(ErrorResponse(400, error.what()));
  } catch (const std::exception& error) {
    exchange->Answer(ErrorResponse(500, error.what()));
  }
}

void Server::Impl::Compute(Endpoint& endpoint, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (draining) throw Refusal{503, "the server is stopping"};
  std::string fault;
  const ordered_json object = ParseOrderedJson(exchange->TakeBody(), kDepth, fault);
  if (!fault.empty()) throw InputError("the body ", fault);
  auto account = std::make_shared<Account>();
  account->start = request.start;
  const auto answer =
      std::make_shared<Answering>(exchange, account, endpoint.Answer(object, account));
  {
    const std::lock_guard lock(mutex);
    answering.emplace(&request, answer);
  }
  answer->Start();
}

// Ends the requests whose time is over.
void Server::Impl::Tick() {
  std::vector<std::shared_ptr<Answering>> expired;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [request, answer] : answering) {
      if (Expired(answer->account())) expired.push_back(answer);
    }
  }
  for (const auto& answer : expired) {
    answer->Expire(ErrorResponse(
        503, StrCat("no place was free within ", options.seconds, " s; try again later")));
  }
}

void Server::Impl::Finished(const HttpRequest& request, int status, bool left) {
  std::shared_ptr<Answering> answer;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = answering.find(&request); found != answering.end()) {
      answer = std::move(found->second);
      answering.erase(found);
    }
  }
  if (answer && left) answer->Leave();
  Log(request, answer ? &answer->account() : nullptr, left ? 499 : status);
}

// Status 499: the client has left.
void Server::Impl::Log(const HttpRequest& request, const Account* account, int status) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - request.start).count();
  const double first = account ? account->first.load() : -1;
  // Paths without a route share one label, so that clients cannot create metrics at will.
  metrics.Request(routes.contains(request.path) ? request.path : "other", status, seconds, first);
  if (!options.log) return;
  std::string line = StrCat(Now(), " ", request.remote, " ", Printable(Brief(request.method)), " ",
                            Printable(Brief(request.path)), " ", status, " ", Milliseconds(seconds),
                            ", id ", request.id);
  if (account && account->prompt > 0) {
    line += StrCat(", prompt ", account->prompt.load(), " (", account->known.load(), " known), ",
                   account->generated.load(), " tokens");
    if (first >= 0) line += ", first after " + Milliseconds(first);
  }
  if (account && !account->fault.empty()) line += ": " + Printable(Brief(account->fault));
  if (status == 499) line += ", the client left";
  options.log(line);
}

std::string Server::Impl::MetricsText() const {
  std::string text = metrics.Text();
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
  for (const Served& model : models) counts.push_back(model.batcher->counts());
  for (const Gauge& gauge : kGauges) {
    Metrics::Head(text, gauge.name, gauge.type, gauge.help);
    for (size_t i = 0; i < models.size(); ++i) {
      Metrics::Line(text, gauge.name, StrCat("model=\"", models[i].name, "\""),
                    gauge.value(counts[i]));
    }
  }
  Metrics::Head(text, "linnet_connections", "gauge", "Connections that are open.");
  Metrics::Line(text, "linnet_connections", "", static_cast<double>(http.connections()));
  Metrics::Head(text, "process_resident_memory_bytes", "gauge", "Resident memory.");
  Metrics::Line(text, "process_resident_memory_bytes", "", ResidentBytes());
  Metrics::Head(text, "linnet_uptime_seconds", "gauge", "Time since the start.");
  Metrics::Line(text, "linnet_uptime_seconds", "",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  return text;
}

}  // namespace linnet::server
