#include "linnet/server/server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "linnet/base/suggestion.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/server/connections.h"
#include "linnet/server/metrics.h"
#include "linnet/server/pages.h"
#include "linnet/tasks/task.h"

namespace linnet::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr int kDepth = 16;  // maximum nesting of a request's JSON
constexpr milliseconds kDisconnectPollInterval(50);
constexpr double kBodySeconds = 30;  // maximum time for a body to arrive
constexpr char kJson[] = "application/json; charset=utf-8";
constexpr char kEvents[] = "text/event-stream; charset=utf-8";

// The account of the request that this thread handles. Handler, content provider and logger of a
// request run one after the other on the thread of its connection.
thread_local std::shared_ptr<Account> account;
thread_local bool left = false;  // the client disconnected before the response was complete

void SetError(httplib::Response& response, int status, const std::string& message) {
  const char* type = status == 401                    ? "authentication_error"
                     : status == 404                  ? "not_found_error"
                     : status == 429                  ? "rate_limit_error"
                     : status >= 400 && status <= 499 ? "invalid_request_error"
                                                      : "server_error";
  const ordered_json error = {
      {"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", status}}}};
  response.status = status;
  response.set_content(error.dump(-1, ' ', false, json::error_handler_t::replace) + "\n", kJson);
  if (status == 429 || status == 503) response.set_header("Retry-After", "1");
}

// A refusal before the body has been read. It closes the connection: the unread rest of the body
// would be parsed as the next request.
struct Unread {
  int status;
  std::string message;
};

bool IsJson(std::string type) {
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return type == "application/json";
}

// The socket of a request, or -1 if it cannot be found; cpp-httplib does not expose it.
int SocketOf(const httplib::Request& request) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage peer{}, own{};
    socklen_t peer_size = sizeof(peer), own_size = sizeof(own);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0) {
      continue;
    }
    const auto port = [](const sockaddr_storage& address) {
      return ntohs(address.ss_family == AF_INET6
                       ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                       : reinterpret_cast<const sockaddr_in&>(address).sin_port);
    };
    char name[NI_MAXHOST];
    if (port(peer) != request.remote_port || port(own) != request.local_port ||
        getnameinfo(reinterpret_cast<sockaddr*>(&peer), peer_size, name, sizeof(name), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    if (request.remote_addr == name) return fd;
  }
  return -1;
}

// Whether the client has closed its end. A client that has only shut down its sending side counts
// too.
bool Gone(int fd) {
  if (fd < 0) return false;
  pollfd asked{fd, POLLRDHUP, 0};
  return poll(&asked, 1, 0) > 0 && (asked.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// Constant-time comparison.
bool Same(const std::string& a, const std::string& b) {
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

// The endpoints of all tasks with a model in `models`, by path.
std::map<std::string, std::unique_ptr<Endpoint>> Endpoints(const std::vector<Served>& models,
                                                           const EndpointLimits& limits) {
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints;
  for (const Task& task : Tasks()) {
    std::vector<ServedModel> served;
    for (const Served& model : models) {
      if (!IsOf(model.batcher->model().spec(), task)) continue;
      served.push_back({model.name, model.batcher.get()});
    }
    if (task.endpoint && !served.empty()) {
      endpoints.emplace(task.path, task.endpoint(std::move(served), limits));
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

// Sends a response's text, then closes the connection.
void CloseAfter(httplib::Response& response) {
  const auto text = std::make_shared<std::string>(std::exchange(response.body, {}));
  response.headers.erase("Content-Type");
  response.set_header("Connection", "close");
  // A provider that returns false closes the connection, after the whole text is written.
  response.set_content_provider(text->size(), kJson,
                                [text](size_t, size_t, httplib::DataSink& sink) {
                                  sink.write(text->data(), text->size());
                                  return false;
                                });
}

}  // namespace

struct Server::Impl {
  Impl(std::vector<Served> served, ServerOptions how)
      : models(std::move(served)),
        options(std::move(how)),
        endpoints(Endpoints(models, options.limits)) {}
  // The batchers end their requests while the endpoints still exist.
  ~Impl() {
    for (Served& model : models) model.batcher.reset();
  }

  void Configure();
  void HandleErrors();
  void Routes();
  void ModelRoutes();
  void EndpointRoutes();
  void Pages();
  void Answer(Endpoint& endpoint, const httplib::Request& request, httplib::Response& response,
              const httplib::ContentReader& body);
  std::shared_ptr<void> Busy();
  void Send(httplib::Response& response, const Reply& reply, int fd,
            const std::shared_ptr<void>& working);
  void Collect(const httplib::Request& request, httplib::Response& response, const Reply& reply);
  std::string Body(const httplib::ContentReader& body, const httplib::Response& response);
  void CheckKey(const httplib::Request& request, httplib::Response& response) const;
  std::string MetricsText() const;
  bool Expired(const Account& request) const {
    return options.expired ? options.expired(request) : request.Seconds() > options.seconds;
  }
  void Log(const httplib::Request& request, const httplib::Response& response);
  bool Idle() const {
    return std::all_of(models.begin(), models.end(),
                       [](const Served& model) { return model.batcher->idle(); });
  }

  std::vector<Served> models;
  ServerOptions options;
  std::map<std::string, std::unique_ptr<Endpoint>> endpoints;  // by path
  Metrics metrics;
  std::set<std::string> paths = {"/", "/healthz", "/metrics", "/v1/models"};  // all valid paths
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  std::atomic<size_t> connections{0}, busy{0};
  std::atomic<bool> draining{false};
  int socket = -1;
  httplib::Server http;
};

Server::Server(std::vector<Served> models, ServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(models), std::move(options))) {
  impl_->Configure();
  impl_->HandleErrors();
  impl_->Routes();
}

Server::~Server() = default;

int Server::Bind() {
  Impl& impl = *impl_;
  const ServerOptions& options = impl.options;
  const bool any = options.port == 0;
  const int port = any ? impl.http.bind_to_any_port(options.host)
                   : impl.http.bind_to_port(options.host, options.port) ? options.port
                                                                        : -1;
  if (port < 0) {
    throw InputError(
        "cannot listen on ", options.host, " port ", options.port,
        ": the port is in use, or the address is not one of this machine; choose another --port "
        "(0: any free port)");
  }
  // cpp-httplib sets a backlog of five connections, too few for a burst of clients.
  listen(impl.socket, SOMAXCONN);
  return port;
}

void Server::Run() { impl_->http.listen_after_bind(); }

void Server::Drain(double seconds) {
  Impl& impl = *impl_;
  impl.draining = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto idle = [&] { return impl.Idle() && impl.busy == 0; };
  while (!idle() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (const Served& model : impl.models) model.batcher->CancelAll();
  constexpr int kMore = 100;  // times 10 ms, for cancelled requests to end
  for (int i = 0; i < kMore && !idle(); ++i) std::this_thread::sleep_for(milliseconds(10));
  for (const Served& model : impl.models) model.batcher->Flush();
  impl.http.stop();
}

// Connections and their limits, and the work before and after each request.
void Server::Impl::Configure() {
  http.new_task_queue = [this] { return new Connections(options.connections, connections); };
  http.set_tcp_nodelay(true);
  http.set_keep_alive_max_count(100000);
  http.set_payload_max_length(options.body);
  http.set_socket_options([this](socket_t listening) {
    const int yes = 1;
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    socket = listening;
  });
  http.set_pre_routing_handler([](const httplib::Request& request, httplib::Response&) {
    account = std::make_shared<Account>();
    left = false;
    // Ignores Range headers: every response is computed anew, so ranges of two responses do not
    // match.
    const_cast<httplib::Request&>(request).ranges.clear();
    return httplib::Server::HandlerResponse::Unhandled;
  });
  http.set_logger([this](const httplib::Request& request, const httplib::Response& response) {
    Log(request, response);
  });
}

// Turns errors that cpp-httplib finds, and exceptions of handlers, into a status and JSON.
void Server::Impl::HandleErrors() {
  http.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty() || response.content_provider_) return;  // set by the handler
    const int status = response.status;
    SetError(response, status,
             status == 404 && TaskAt(request.path)
                 ? StrCat("no model of the task '", TaskAt(request.path)->name, "' is served here")
             : status == 404 ? StrCat("there is nothing at ", Brief(request.path))
             : status == 413 ? "the request's body is larger than this server takes"
             : status == 414 ? "the request's address is too long"
                             : "the request is not HTTP that this server supports");
  });
  http.set_exception_handler(
      [](const httplib::Request&, httplib::Response& response, std::exception_ptr thrown) {
        try {
          std::rethrow_exception(std::move(thrown));
        } catch (const Refusal& refusal) {
          SetError(response, refusal.status, refusal.message);
        } catch (const Unread& refusal) {
          SetError(response, refusal.status, refusal.message);
          CloseAfter(response);
        } catch (const InputError& error) {
          SetError(response, 400, error.what());
        } catch (const std::exception& error) {
          SetError(response, 500, error.what());
        }
      });
}

void Server::Impl::Routes() {
  http.Get("/healthz", [this](const httplib::Request&, httplib::Response& response) {
    const ordered_json health = {{"status", draining ? "stopping" : "ok"}};
    response.status = draining ? 503 : 200;
    response.set_content(health.dump() + "\n", kJson);
  });
  http.Get("/metrics", [this](const httplib::Request& request, httplib::Response& response) {
    CheckKey(request, response);
    response.set_content(MetricsText(), "text/plain; version=0.0.4; charset=utf-8");
  });
  ModelRoutes();
  EndpointRoutes();
  Pages();
}

void Server::Impl::ModelRoutes() {
  const auto describe = [](const Served& model) -> ordered_json {
    return {{"id", model.name},
            {"object", "model"},
            {"created", 0},
            {"owned_by", "linnet"},
            {"task", model.batcher->model().spec().task}};
  };
  http.Get("/v1/models",
           [this, describe](const httplib::Request& request, httplib::Response& response) {
             CheckKey(request, response);
             ordered_json list = {{"object", "list"}, {"data", ordered_json::array()}};
             for (const Served& model : models) list["data"].push_back(describe(model));
             response.set_content(Dump(list) + "\n", kJson);
           });
  http.Get("/v1/models/(.+)", [this, describe](const httplib::Request& request,
                                               httplib::Response& response) {
    CheckKey(request, response);
    const std::string name = request.matches[1];
    std::vector<std::string> names;
    for (const Served& model : models) {
      if (model.name == name) {
        response.set_content(Dump(describe(model)) + "\n", kJson);
        return;
      }
      names.push_back(model.name);
    }
    const std::string suggestion = Suggestion(name, names);
    throw Refusal{404,
                  StrCat("no model ", Quote(name),
                         suggestion.empty() ? "; GET /v1/models lists the models" : suggestion)};
  });
  for (const Served& model : models) paths.insert("/v1/models/" + model.name);
}

void Server::Impl::EndpointRoutes() {
  for (const auto& [path, endpoint] : endpoints) {
    paths.insert(path);
    http.Post(path, [this, &endpoint = *endpoint](const httplib::Request& request,
                                                  httplib::Response& response,
                                                  const httplib::ContentReader& body) {
      Answer(endpoint, request, response, body);
    });
    const auto post_only = [](const httplib::Request&, httplib::Response& response) {
      response.set_header("Allow", "POST");
      SetError(response, 405, "this path accepts only POST, with JSON");
    };
    http.Get(path, post_only);
    http.Put(path, post_only);
    http.Patch(path, post_only);
    http.Delete(path, post_only);
    http.Options(path, post_only);
  }
}

void Server::Impl::Pages() {
  for (const EmbeddedFile& page : server::Pages()) {
    const auto show = [&page](const httplib::Request&, httplib::Response& response) {
      response.set_header("Cache-Control", "no-cache");
      response.set_header("Content-Security-Policy",
                          "default-src 'none'; script-src 'self'; style-src 'self'; "
                          "connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
                          "form-action 'none'; frame-ancestors 'none'");
      response.set_header("X-Content-Type-Options", "nosniff");
      response.set_header("Referrer-Policy", "no-referrer");
      response.set_content(page.bytes.data(), page.bytes.size(), ContentType(page.name));
    };
    // Names consist of letters, digits, '-' and '.'.
    std::string pattern = "/";
    for (const char c : page.name) pattern += c == '.' ? "\\." : std::string(1, c);
    http.Get(pattern, show);
    paths.insert("/" + std::string(page.name));
    if (page.name == "couplet.html") http.Get("/", show);
  }
}

// Called after the body has been read: an unread rest would be parsed as the next request.
void Server::Impl::CheckKey(const httplib::Request& request, httplib::Response& response) const {
  if (options.api_key.empty() ||
      Same(request.get_header_value("Authorization"), "Bearer " + options.api_key) ||
      Same(request.get_header_value("Authorization"), "bearer " + options.api_key)) {
    return;
  }
  response.set_header("WWW-Authenticate", "Bearer");
  throw Refusal{401, "this server requires an API key: send the header Authorization: Bearer KEY"};
}

// Throws Unread if the body is too large, takes too long or is incomplete.
std::string Server::Impl::Body(const httplib::ContentReader& body,
                               const httplib::Response& response) {
  std::string text;
  bool large = false, late = false;
  const bool whole = body([&](const char* data, size_t size) {
    large = text.size() + size > options.body;
    late = account->Seconds() > kBodySeconds;
    if (large || late) return false;
    text.append(data, size);
    return true;
  });
  // cpp-httplib checks the Content-Length itself and sets status 413.
  if (large || response.status == 413) {
    throw Unread{413, StrCat("the body is larger than ", options.body, " bytes")};
  }
  if (late) throw Unread{408, "the body did not arrive in time"};
  if (!whole) throw Unread{400, "the body is incomplete or does not match its headers"};
  return text;
}

void Server::Impl::Answer(Endpoint& endpoint, const httplib::Request& request,
                          httplib::Response& response, const httplib::ContentReader& body) {
  const auto working = Busy();  // first, since Drain() waits for counted requests only
  // A page of another site can send this content type only after a preflight request (OPTIONS),
  // which the server refuses.
  if (!IsJson(request.get_header_value("Content-Type"))) {
    throw Unread{415, "send JSON, with Content-Type: application/json"};
  }
  const std::string text = Body(body, response);
  CheckKey(request, response);
  if (draining) throw Refusal{503, "the server is stopping"};
  std::string fault;
  const json object = ParseJson(text, kDepth, fault);
  if (!fault.empty()) throw InputError("the body ", fault);
  const Reply reply = endpoint.Answer(object, account);
  int fd = -1;
  while (!reply.pipe->WaitForBegin(kDisconnectPollInterval)) {
    if (fd < 0) fd = SocketOf(request);
    left = Gone(fd);
    if (!left && !Expired(*account)) continue;
    reply.worker->Cancel(reply.request);
    throw Refusal{503, StrCat("no place was free within ", options.seconds, " s; try again later")};
  }
  if (reply.events) {
    Send(response, reply, fd, working);
  } else {
    Collect(request, response, reply);
  }
}

std::shared_ptr<void> Server::Impl::Busy() {
  ++busy;
  return std::shared_ptr<void>(nullptr, [this](void*) { --busy; });
}

// Collects the whole response before sending it, since the status is sent first.
void Server::Impl::Collect(const httplib::Request& request, httplib::Response& response,
                           const Reply& reply) {
  std::string text, piece;
  bool cancelled = false;
  int fd = -1;
  for (Pipe::Got got; (got = reply.pipe->Pop(piece, kDisconnectPollInterval)) != Pipe::Got::kEnd;
       text += piece) {
    if (got == Pipe::Got::kNothing && fd < 0)
      fd = SocketOf(request);  // not needed if all data is there at once
    left = left || Gone(fd);
    if ((left || Expired(*account)) && !std::exchange(cancelled, true)) {
      reply.worker->Cancel(reply.request);
    }
  }
  response.status = *reply.status;
  response.set_header("Cache-Control", "no-store");
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_content(text, kJson);
}

// Streams the pieces of the response as they arrive.
void Server::Impl::Send(httplib::Response& response, const Reply& reply, int fd,
                        const std::shared_ptr<void>& working) {
  auto cancelled = std::make_shared<bool>(false);
  const auto provider = [this, reply, fd, account = account, cancelled, working](
                            size_t, httplib::DataSink& sink) {
    std::string piece;
    const Pipe::Got got = reply.pipe->Pop(piece, kDisconnectPollInterval);
    if (got == Pipe::Got::kEnd) {
      sink.done();
      return true;
    }
    // Cancels the request of a disconnected client.
    if (Gone(fd) || !sink.is_writable() ||
        (!piece.empty() && !sink.write(piece.data(), piece.size()))) {
      reply.worker->Cancel(reply.request);
      left = true;
      return false;
    }
    if (Expired(*account) && !std::exchange(*cancelled, true)) {
      reply.worker->Cancel(reply.request);
    }
    return true;
  };
  response.set_header("Cache-Control", "no-store");
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_chunked_content_provider(kEvents, provider);
}

void Server::Impl::Log(const httplib::Request& request, const httplib::Response& response) {
  const bool known = account != nullptr;  // null if the request could not be parsed
  const double seconds = known ? account->Seconds() : 0, first = known ? account->first.load() : -1;
  // All other paths share one label, so that clients cannot create metrics at will.
  metrics.Request(paths.contains(request.path) ? request.path : "other",
                  left ? 499 : response.status, seconds, first);
  if (!options.log) return;
  std::string line = StrCat(Now(), " ", request.remote_addr, " ", Printable(Brief(request.method)),
                            " ", Printable(Brief(request.path)), " ", left ? 499 : response.status,
                            " ", Milliseconds(seconds));
  if (known && account->prompt > 0) {
    line += StrCat(", prompt ", account->prompt.load(), " (", account->known.load(), " known), ",
                   account->generated.load(), " tokens");
    if (first >= 0) line += ", first after " + Milliseconds(first);
  }
  if (left) line += ", the client left";
  options.log(line);
  account.reset();
  left = false;
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
      {"linnet_sequences_running", "gauge", "Sequences that are being generated.",
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
  Metrics::Line(text, "linnet_connections", "", static_cast<double>(connections.load()));
  Metrics::Head(text, "process_resident_memory_bytes", "gauge", "Resident memory.");
  Metrics::Line(text, "process_resident_memory_bytes", "", ResidentBytes());
  Metrics::Head(text, "linnet_uptime_seconds", "gauge", "Time since the start.");
  Metrics::Line(text, "linnet_uptime_seconds", "",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  return text;
}

}  // namespace linnet::server
