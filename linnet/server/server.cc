#include "linnet/server/server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/server/answering.h"
#include "linnet/server/metrics.h"
#include "linnet/server/service.h"
#include "linnet/server/site.h"
#include "linnet/server/traces.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr int kDepth = 64;  // maximum nesting of a request's JSON
constexpr char kStates[] = "/v1/states";

bool IsJson(std::string_view type) {
  std::string name(type.substr(0, type.find(';')));
  while (name.ends_with(' ')) name.pop_back();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name == "application/json";
}

// The key of a request ("Authorization: Bearer KEY"); "" if it has none.
std::string_view KeyOf(const HttpRequest& request) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view given = request.Field("Authorization");
  const bool bearer =
      given.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), given.begin(),
                 [](char a, unsigned char b) { return a == static_cast<char>(std::tolower(b)); });
  if (!bearer) return "";
  const size_t begin = given.find_first_not_of(' ', kScheme.size());
  return begin == given.npos ? "" : given.substr(begin);
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
  Impl(std::vector<Served> served, ServerOptions how)
      : options(std::move(how)),
        states(options.states.folder.empty() ? nullptr
                                             : std::make_unique<ClientStates>(options.states)),
        traces(options.traces.empty() ? nullptr
                                      : std::make_unique<TraceFile>(options.traces, options.warn)),
        http(*this, options.http) {
    clients.Set(options.clients);
    if (states) states->Open();
    AddRoutes();
    services.push_back(MakeService(std::move(served)));
  }
  // Ends the remaining requests first, which use the states and the transport. Then the states: the
  // last ones end requests, too.
  ~Impl() override {
    for (const auto& service : services) service->Stop();
    states.reset();
    client_states.clear();
    answering.clear();
  }

  std::optional<HttpResponse> Check(HttpRequest& request) override;
  void Handle(std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override {
    return ErrorResponse(status, message);
  }
  void Finished(const HttpRequest& request, int status, bool left) override;
  void Tick() override;

  void AddRoutes();
  void AddStates();
  std::unique_ptr<Service> MakeService(std::vector<Served> models) const {
    return std::make_unique<Service>(std::move(models), states.get(), options, others);
  }
  // The current service, and a token that keeps it from being destroyed.
  struct Used {
    Service* service;
    std::shared_ptr<void> token;
  };
  Used Use() const {
    const std::lock_guard lock(mutex);
    return {services.back().get(), services.back()->Use()};
  }
  // Who sends a request. known: it has a key of the server, or the server needs none. client: null
  // if the server's own key was given, or none is needed.
  struct Sender {
    bool known = false;
    std::shared_ptr<Client> client = {};
  };
  Sender Identify(const HttpRequest& request) const;
  // As the request was identified in Check(): a reload in between changes nothing. Requests that
  // Check() has not seen come from strangers.
  static const Sender& SenderOf(const HttpRequest& request) {
    static const Sender stranger;
    return request.sender ? *static_cast<const Sender*>(request.sender.get()) : stranger;
  }
  // The states of a client, and those of the server for none. Only if there are states.
  ClientStates& StatesOf(const Client* client);
  void Compute(Endpoint& endpoint, const std::shared_ptr<Exchange>& exchange,
               std::shared_ptr<void> token);
  std::string ClientMetrics() const;
  void Log(const HttpRequest& request, const Account* account, int status);
  std::string MetricsText() const;
  bool Expired(const Account& request) const {
    return options.expired ? options.expired(request) : request.Seconds() > options.seconds;
  }
  bool Idle() const {
    const std::lock_guard lock(mutex);
    return http.active() == 0 && std::all_of(services.begin(), services.end(),
                                             [](const auto& service) { return service->idle(); });
  }
  template <class Function>
  void ForServices(const Function& function) const {
    const std::lock_guard lock(mutex);
    for (const auto& service : services) function(*service);
  }

  const ServerOptions options;
  Clients clients;
  std::unique_ptr<ClientStates> states;                                // null: none are kept
  std::mutex client_states_mutex;                                      // guards `client_states`
  std::map<std::string, std::unique_ptr<ClientStates>> client_states;  // by the client's name
  std::unique_ptr<TraceFile> traces;                                   // null: none are written
  Service::Routes others;  // that do not depend on the models
  Metrics metrics;
  const std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  std::atomic<bool> draining{false};
  mutable std::mutex mutex;  // guards `services` and `answering`
  // The last one is current; the others finish their requests.
  std::vector<std::unique_ptr<Service>> services;
  struct Running {
    std::shared_ptr<Answering> answer;
    std::shared_ptr<void> token;  // of the service
  };
  std::unordered_map<const HttpRequest*, Running> answering;
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
  impl.ForServices([](Service& service) { service.CancelAll(); });
  constexpr int kMore = 100;  // maximum number of waits of 10 ms for canceled requests to end
  for (int i = 0; i < kMore && !impl.Idle(); ++i) std::this_thread::sleep_for(milliseconds(10));
  impl.ForServices([](Service& service) { service.Flush(); });
  impl.http.Stop();
}

void Server::SetClients(std::vector<ClientOptions> clients) {
  impl_->clients.Set(std::move(clients));
}

void Server::Reload(std::vector<Served> models) {
  Impl& impl = *impl_;
  std::unique_ptr<Service> next = impl.MakeService(std::move(models));
  Service* old = nullptr;
  {
    const std::lock_guard lock(impl.mutex);
    if (impl.draining) return;
    old = impl.services.back().get();
    impl.services.push_back(std::move(next));
  }
  while (!impl.draining && (old->in_use() || !old->idle())) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  std::unique_ptr<Service> ended;
  const std::lock_guard reloading(impl.mutex);
  if (impl.draining) return;  // the destructor ends it
  const auto found = std::find_if(impl.services.begin(), impl.services.end(),
                                  [&](const auto& service) { return service.get() == old; });
  ended = std::move(*found);
  impl.services.erase(found);
}

void Server::Impl::AddRoutes() {
  for (auto& [path, page] : options.site.empty() ? BuiltInSite() : ReadSite(options.site)) {
    others.routes[path] = {
        .get = [page = std::move(page)](
                   const HttpRequest& request) { return PageResponse(page, request); },
        .needs_key = false,
        .is_page = true};
  }
  others.routes["/healthz"] = {
      .get =
          [this](const HttpRequest&) {
            HttpResponse response = JsonResponse({{"status", draining ? "stopping" : "ok"}});
            response.status = draining ? 503 : 200;
            return response;
          },
      .needs_key = false};
  others.routes["/metrics"] = {.get = [this](const HttpRequest&) {
    return HttpResponse{.type = "text/plain; version=0.0.4; charset=utf-8", .body = MetricsText()};
  }};
  others.routes["/metrics"].for_operator = true;
  if (states) AddStates();
}

void Server::Impl::AddStates() {
  const auto describe = [](const StateStore::Info& info) -> ordered_json {
    return {{"id", info.name},
            {"object", "state"},
            {"model", info.model},
            {"bytes", static_cast<int64_t>(info.bytes)},
            {"created", info.created}};
  };
  const auto of = [this](const HttpRequest& request) -> StateStore& {
    return StatesOf(SenderOf(request).client.get()).store();
  };
  others.routes[kStates].get = [of, describe](const HttpRequest& request) {
    ordered_json list = {{"object", "list"}, {"data", ordered_json::array()}};
    for (const StateStore::Info& info : of(request).List()) list["data"].push_back(describe(info));
    return JsonResponse(list);
  };
  Route& one = others.items[StrCat(kStates, "/")];
  one.get = [of, describe](const HttpRequest& request) {
    return JsonResponse(describe(of(request).Get(NameOf(request))));
  };
  one.remove = [of](const HttpRequest& request) {
    const std::string name = NameOf(request);
    of(request).Remove(name);
    return JsonResponse({{"id", name}, {"object", "state"}, {"deleted", true}});
  };
}

// Makes the checks that need only the header.
std::optional<HttpResponse> Server::Impl::Check(HttpRequest& request) {
  request.sender = std::make_shared<const Sender>(Identify(request));
  const Used used = Use();
  const Route* const route = used.service->Find(request.path);
  const bool is_private =
      request.path.starts_with("/v1/models") || request.path.starts_with(kStates);
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
  if (route != nullptr ? route->needs_key : is_private) {
    const Sender& sender = SenderOf(request);
    const bool allowed = sender.known && !(sender.client && route && route->for_operator);
    if (!allowed) {
      HttpResponse response =
          sender.known
              ? ErrorResponse(403,
                              "only the server's own key (LINNET_API_KEY) may read this, not a "
                              "client's")
              : ErrorResponse(401,
                              "this server requires an API key: send the header Authorization: "
                              "Bearer KEY");
      if (!sender.known) response.fields.emplace_back("WWW-Authenticate", "Bearer");
      return response;
    }
  }
  if (route == nullptr) return used.service->NotFound(request.path);
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

Server::Impl::Sender Server::Impl::Identify(const HttpRequest& request) const {
  if (options.api_key.empty() && clients.empty()) return {.known = true};
  const std::string_view key = KeyOf(request);
  if (key.empty()) return {};
  if (!options.api_key.empty() && SameSecret(key, options.api_key)) return {.known = true};
  const std::shared_ptr<Client> client = clients.Find(key);
  return {client != nullptr, client};
}

ClientStates& Server::Impl::StatesOf(const Client* client) {
  if (client == nullptr) return *states;
  const std::lock_guard lock(client_states_mutex);
  std::unique_ptr<ClientStates>& of = client_states[client->name()];
  if (!of) {
    StateStoreOptions how = options.states;
    how.folder = std::filesystem::path(how.folder) / (client->name() + ".client");
    if (client->state_bytes() >= 0) how.bytes = client->state_bytes();
    of = std::make_unique<ClientStates>(std::move(how));
  }
  return *of;
}

void Server::Impl::Handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  Used used = Use();
  const Route* const route = used.service->Find(request.path);
  try {
    if (route == nullptr || !route->Accepts(request.method)) {  // reloaded since Check()
      return exchange->Answer(used.service->NotFound(request.path));
    }
    if (request.method == "POST") return Compute(*route->endpoint, exchange, std::move(used.token));
    exchange->Answer(request.method == "DELETE" ? route->remove(request) : route->get(request));
  } catch (const Refusal& refusal) {
    exchange->Answer(ErrorResponse(refusal.status, refusal.message, refusal.retry_after));
  } catch (const InputError& error) {
    exchange->Answer(ErrorResponse(400, error.what()));
  } catch (const std::exception& error) {
    exchange->Answer(ErrorResponse(500, error.what()));
  }
}

void Server::Impl::Compute(Endpoint& endpoint, const std::shared_ptr<Exchange>& exchange,
                           std::shared_ptr<void> token) {
  const HttpRequest& request = exchange->request();
  if (draining) throw Refusal{503, "the server is stopping"};
  const std::shared_ptr<Client> client = SenderOf(request).client;
  auto account = std::make_shared<Account>();
  std::shared_ptr<void> lease;
  if (client) {
    client->Begin();
    lease = std::shared_ptr<void>(client.get(), [client, account](void*) {
      // Tokens restored from a snapshot cost nothing, nor does a prompt that was never read.
      const size_t prompt = account->admitted < 0 ? 0 : account->prompt.load();
      client->End(prompt - std::min(prompt, account->known.load()) + account->generated);
    });
    if (states) account->keeper = &StatesOf(client.get());
    account->owner = client->id();
  }
  std::string fault;
  const ordered_json object = ParseOrderedJson(exchange->TakeBody(), kDepth, fault);
  if (!fault.empty()) throw InputError("the body ", fault);
  account->start = request.start;
  account->received = account->Seconds();
  const auto answer = std::make_shared<Answering>(
      exchange, account, endpoint.Answer(object, account), std::move(lease));
  {
    const std::lock_guard lock(mutex);
    answering[&request] = {answer, std::move(token)};
  }
  answer->Start();
}

// Ends the requests whose time is over.
void Server::Impl::Tick() {
  std::vector<Running> expired;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [request, running] : answering) {
      if (Expired(running.answer->account())) expired.push_back(running);
    }
  }
  for (const Running& running : expired) {
    running.answer->Expire(ErrorResponse(
        503, StrCat("no place was free within ", options.seconds, " s; try again later")));
  }
}

void Server::Impl::Finished(const HttpRequest& request, int status, bool left) {
  Running running;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = answering.find(&request); found != answering.end()) {
      running = std::move(found->second);
      answering.erase(found);
    }
  }
  if (running.answer && left) running.answer->Leave();
  if (running.answer) running.answer->Release();
  Log(request, running.answer ? &running.answer->account() : nullptr, left ? 499 : status);
}

// Status 499: the client has left.
void Server::Impl::Log(const HttpRequest& request, const Account* account, int status) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - request.start).count();
  const double first = account ? account->first.load() : -1;
  const Used used = Use();
  metrics.Request(used.service->LabelOf(request.path), status, seconds, first);
  const std::optional<TraceParent> parent = ParseTraceParent(request.Field("traceparent"));
  const Route* const route = traces ? used.service->Find(request.path) : nullptr;
  const Sender& sender = SenderOf(request);
  if (route != nullptr && route->endpoint != nullptr && request.method == "POST" && sender.known &&
      (!parent || parent->sampled)) {
    traces->Write(MakeTrace(parent, request, account, status));
  }
  if (!options.log) return;
  std::string line = StrCat(Now(), " ", request.remote, " ", Printable(Brief(request.method)), " ",
                            Printable(Brief(request.path)), " ", status, " ", Milliseconds(seconds),
                            ", id ", request.id);
  if (sender.client) line += ", client " + sender.client->name();
  if (parent) line += ", trace " + parent->trace;
  if (account && account->prompt + account->generated > 0) {
    line += StrCat(", prompt ", account->prompt.load(), " (", account->known.load(), " known), ",
                   account->generated.load(), " tokens");
    if (first >= 0) line += ", first after " + Milliseconds(first);
  }
  const std::string fault = account ? account->fault() : "";
  if (!fault.empty()) line += ": " + Printable(Brief(fault));
  if (status == 499) line += ", the client left";
  options.log(line);
}

std::string Server::Impl::ClientMetrics() const {
  struct Counter {
    const char* name;
    const char* type;
    const char* help;
    uint64_t (*value)(const Client::Counts&);
  };
  using Counts = Client::Counts;
  static constexpr Counter kCounters[] = {
      {"linnet_client_requests_total", "counter", "POST requests of a client that began.",
       [](const Counts& c) { return c.requests; }},
      {"linnet_client_refused_total", "counter", "POST requests of a client beyond its quotas.",
       [](const Counts& c) { return c.refused; }},
      {"linnet_client_tokens_total", "counter",
       "Tokens of a client's finished requests: read (not restored from snapshots) or generated.",
       [](const Counts& c) { return c.tokens; }},
      {"linnet_client_requests_running", "gauge", "POST requests of a client that run or wait.",
       [](const Counts& c) { return uint64_t{c.running}; }},
  };
  std::string text;
  const std::vector<std::shared_ptr<Client>> all = clients.All();
  for (const Counter& counter : kCounters) {
    if (!all.empty()) Metrics::Head(text, counter.name, counter.type, counter.help);
    for (const auto& client : all) {
      Metrics::Line(text, counter.name, StrCat("client=\"", client->name(), "\""),
                    static_cast<double>(counter.value(client->counts())));
    }
  }
  return text;
}

std::string Server::Impl::MetricsText() const {
  std::string text = metrics.Text();
  Use().service->AppendMetrics(text);
  text += ClientMetrics();
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
