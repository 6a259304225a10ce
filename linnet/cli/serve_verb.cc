// linnet serve: serves models over HTTP until a signal ends it.
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <thread>

#include "linnet/base/units.h"
#include "linnet/cli/serve.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/model/checkpoint.h"
#include "linnet/program/program.h"
#include "linnet/server/server.h"
#include "linnet/tasks/text/chat_format.h"

namespace linnet::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> models;
  server::ServerOptions server;
  server::BatcherOptions batcher = {.threads = 0, .sequences = 0};
  double memory_mb = 512, snapshots_mb = 64, folder_mb = 1000, states_mb = 1000, grace = 30;
  std::optional<std::string> key_file;      // holds the API key
  std::optional<std::string> clients_file;  // for ReadClients()
  std::optional<std::string> chat;          // ChatFormat::Of(); none: no chats
  std::optional<std::string> site;          // none: the built-in page
  std::string folder;                       // of the snapshots; "": none
  std::optional<Precision> precision;
  bool quiet = false;
};

// Returns the API key of --api-key-file or, without it, of LINNET_API_KEY; "" if neither is set.
std::string KeyOf(const Options& options) {
  if (options.key_file) {
    constexpr size_t kLargest = 1 << 13;  // bytes; a key with more than half of them is refused
    return server::CheckedKey(ReadFile(*options.key_file, kLargest), *options.key_file);
  }
  const char* key = std::getenv("LINNET_API_KEY");
  if (key == nullptr) return "";
  if (*key == 0) {
    throw InputError("LINNET_API_KEY is empty; set it to a key, or unset it to serve without one");
  }
  return server::CheckedKey(key, "LINNET_API_KEY");
}

// The URL path that answers requests to models of this task; null if they cannot be served.
const char* ServedPath(const std::string& task_name) {
  const auto task = FindTask(task_name);
  return task ? task->path : nullptr;
}

// Throws InputError unless the name consists of letters, digits, '.', '_' and '-', since names
// appear in metrics and in messages.
void CheckName(const std::string& path, const std::string& name) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  if (name.empty() || !std::all_of(name.begin(), name.end(), plain)) {
    throw InputError(
        path,
        ": a model's name may have only letters, digits, '.', '_' and '-'; choose one, as in name=",
        path);
  }
}

// Starts the batcher of a model. Throws InputError if --memory is too small for its sequences.
server::Served Serve(const std::shared_ptr<const Model>& model, const std::string& name,
                     const Options& options,
                     const std::shared_ptr<server::SnapshotFolder>& folder) {
  server::BatcherOptions how = options.batcher;
  how.snapshots.folder = folder;
  how.snapshots.bytes = options.snapshots_mb * 1e6;
  // The number of sequence states that fit into --memory.
  const size_t fit = Scheduler::Fitting(*model, options.memory_mb * 1e6);
  if (how.sequences == 0) how.sequences = std::min<size_t>(fit, 256);
  if (how.sequences == 0 || how.sequences > fit) {
    throw InputError(
        model->path(), ": a sequence's state takes ",
        FormatBytes(static_cast<double>(StateBytes(model->spec(), model->precision()))), "; ",
        std::max<size_t>(1, how.sequences), " of them do not fit into --memory ", options.memory_mb,
        " MB");
  }
  return {name, std::make_unique<server::Batcher>(model, how)};
}

// Blocks the signals that end the program, in this thread and in all threads that start later,
// which inherit the mask. Only RunUntilSignal() waits for these signals.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  sigaddset(&signals, SIGUSR1);  // ends RunUntilSignal()'s waiting thread
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// Splits NAME=PATH. Without NAME, the model is named after its file or run folder.
std::pair<std::string, std::string> NameAndPath(const std::string& given) {
  std::error_code error;
  const size_t equals = given.find('=');
  if (equals == given.npos || given.find('/') < equals || fs::exists(given, error)) {
    return {ModelName(given), given};
  }
  return {given.substr(0, equals), given.substr(equals + 1)};
}

// Opens the given models, or by default those that ship with linnet.
std::vector<server::Served> OpenModels(const Options& options) {
  std::vector<std::string> paths = options.models;
  if (paths.empty()) paths = ShippedModels();
  if (paths.empty()) {
    throw InputError(
        "no model is given, and no model in ./models or shipped with linnet can be served; give a "
        "text or couplet model, as in 'linnet serve MODEL.safetensors'");
  }
  const auto folder = options.folder.empty() ? nullptr
                                             : std::make_shared<server::SnapshotFolder>(
                                                   options.folder, options.folder_mb * 1e6);
  std::vector<server::Served> models;
  std::set<std::string> names;
  for (const std::string& given : paths) {
    const auto [name, path] = NameAndPath(given);
    const auto model = Model::Open(path, {options.precision});
    const std::string& task = model->spec().task;
    if (ServedPath(task) == nullptr) {
      throw InputError(path, ": its task is '", task,
                       "', but only text and couplet models can be served");
    }
    CheckName(path, name);
    if (!names.insert(name).second) {
      throw InputError(path, ": a second model named '", name,
                       "'; choose another name, as in other=", path);
    }
    models.push_back(Serve(model, name, options, folder));
  }
  return models;
}

// "couplet (POST /v1/couplets, 97 sequences), ..."
std::string Describe(const std::vector<server::Served>& models) {
  std::string list;
  for (const server::Served& model : models) {
    list += StrCat(list.empty() ? "" : ", ", model.name, " (POST ",
                   ServedPath(model.batcher->model().spec().task), ", ",
                   model.batcher->counts().capacity, " sequences)");
  }
  return list;
}

// Reads the clients again, if there are any. Keeps those before if it fails.
void SetClients(server::Server& server, const Options& options, const std::string& key) {
  if (!options.clients_file) return;
  try {
    std::vector<server::ClientOptions> clients = server::ReadClients(*options.clients_file, key);
    const size_t count = clients.size();
    server.SetClients(std::move(clients));
    std::cerr << StrCat("clients from now on: ", count, "\n");
  } catch (const std::exception& error) {
    std::cerr << StrCat("the clients stay as they are: ", error.what(), "\n");
  }
}

// Opens the models again, and serves them instead of those before. Keeps those if it fails.
void Reload(server::Server& server, const Options& options) {
  try {
    std::vector<server::Served> models = OpenModels(options);
    const std::string list = Describe(models);
    server.Reload(std::move(models));
    std::cerr << StrCat("reloaded: serving ", list, "\n");
  } catch (const std::exception& error) {
    std::cerr << StrCat("not reloaded, the models stay as they are: ", error.what(), "\n");
  }
}

// Runs the server. SIGHUP replaces the clients at once, and the models on another thread, because
// the models before them finish their requests first. The first other signal drains the server; a
// second one ends the program at once.
void RunUntilSignal(server::Server& server, const sigset_t& signals, const Options& options,
                    const std::string& key) {
  std::atomic<bool> ended{false};
  std::atomic<int> asked{0};  // number of reloads; negative: no more
  std::thread draining, reloading([&] {
    for (int done = 0;;) {
      asked.wait(done);
      if ((done = asked) < 0) return;
      Reload(server, options);
    }
  });
  std::thread waiting([&] {
    for (int signal = 0; sigwait(&signals, &signal) == 0;) {
      if (signal == SIGUSR1) {
        if (ended) return;
        continue;  // sent by another process
      }
      if (signal == SIGHUP) {
        if (draining.joinable()) continue;
        SetClients(server, options, key);
        ++asked;
        asked.notify_one();
        continue;
      }
      if (draining.joinable()) _exit(128 + signal);
      std::cerr << "stopping after the running requests; a second signal ends the server at once\n";
      draining = std::thread([&] { server.Drain(options.grace); });
    }
  });
  server.Run();
  ended = true;
  pthread_kill(waiting.native_handle(), SIGUSR1);
  waiting.join();
  if (draining.joinable()) draining.join();
  asked = -1;
  asked.notify_one();
  reloading.join();
}

// Raises the process's limit of open file descriptors. Each connection needs one, and many systems
// allow only 1,024 unless a program asks for more.
void AllowDescriptors(size_t connections) {
  constexpr rlim_t kOthers = 256;  // descriptors that are not connections
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, connections + kOthers));
  setrlimit(RLIMIT_NOFILE, &limit);
}

void Run(const Options& options) {
  AllowDescriptors(options.server.http.connections);
  const sigset_t signals = BlockSignals();
  std::vector<server::Served> models = OpenModels(options);
  const std::string list = Describe(models);
  server::ServerOptions how = options.server;
  how.api_key = KeyOf(options);
  if (options.clients_file) {
    how.clients = server::ReadClients(*options.clients_file, how.api_key);
  }
  how.states.bytes = options.states_mb * 1e6;
  if (options.site && options.site->empty()) throw InputError("--site is empty; give a folder");
  how.site = options.site.value_or("");
  if (options.chat) {
    how.chat = std::make_shared<const ChatFormat>(ChatFormat::Of(*options.chat));
  }
  how.warn = [](const std::string& line) { std::cerr << line + "\n"; };
  how.states.log = how.warn;
  if (!options.quiet) how.log = how.warn;
  const std::string key = how.api_key;
  const std::string need = how.clients.empty() ? key.empty() ? "" : "; requests need the API key"
                           : key.empty() ? "; requests need a client's key, and nobody can read "
                                           "/metrics without LINNET_API_KEY"
                                         : "; requests need a client's key or the API key";
  const std::string host =
      how.http.host.find(':') != std::string::npos ? "[" + how.http.host + "]" : how.http.host;
  server::Server server(std::move(models), std::move(how));
  const int port = server.Bind();
  std::cout << "serving " << list << "\n"
            << "at http://" << host << ":" << port << "/" << need << "; Ctrl-C ends it"
            << std::endl;
  RunUntilSignal(server, signals, options, key);
}

// The options of snapshots and of kept states.
void AddStateOptions(CLI::App* verb, Options& options) {
  AddOption(verb, "--snapshots", options.snapshots_mb, "MB",
            "Memory for snapshots, per model; 0: keeps none in memory", Between(0, 1e7));
  verb->add_option("--snapshot-folder", options.folder,
                   "Folder that keeps snapshots of 128 tokens or more across restarts")
      ->type_name("DIR");
  AddOption(verb, "--snapshot-folder-size", options.folder_mb, "MB",
            "Maximum size of the snapshot files, of all models together", Between(0, 1e9));
  verb->add_option("--state-folder", options.server.states.folder,
                   "Folder for states that clients keep ('return_state', POST /v1/states); without "
                   "it, they can keep none")
      ->type_name("DIR");
  AddOption(verb, "--state-folder-size", options.states_mb, "MB",
            "Maximum size of --state-folder, with --clients of each one's part of it; states that "
            "do not fit get status 507",
            Between(0, 1e9));
}

}  // namespace

std::vector<std::string> ShippedModels() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& folder : {fs::path("models"), program / ".." / "share" / "linnet" / "models",
                                 program / ".." / ".." / ".." / "models"}) {
    std::vector<std::string> models;
    for (const fs::directory_entry& file : fs::directory_iterator(folder, error)) {
      if (file.path().extension() != ".safetensors") continue;
      try {
        const Checkpoint checkpoint = Checkpoint::Open(file.path());
        if (ServedPath(checkpoint.spec().task) != nullptr) models.push_back(file.path());
      } catch (const Error&) {  // skipped silently: the user did not name this file
      }
    }
    std::sort(models.begin(), models.end());
    if (!models.empty()) return models;
  }
  return {};
}

void AddServeVerb(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "serve", "Serve models over HTTP: JSON, server-sent events, and a page at /",
      R"(Couplet models answer POST /v1/couplets, text models POST /v1/completions (OpenAI's API).
Models of other tasks cannot be served. Without MODEL, serves the models that ship with linnet. The
server also answers GET /healthz, /metrics (for Prometheus) and /v1/models.
Snapshots are a prefix cache: a snapshot is a model's state after the beginning of a prompt, and
later prompts that begin with the same tokens continue from it.
SIGTERM stops the server after the running requests. SIGHUP reads --clients and opens the models
again, and serves the new ones without dropping a request. If LINNET_API_KEY is set in the
environment or --api-key-file is given, /v1 and /metrics require that key; with --clients, /v1
requires that key or a client's.)",
      "  linnet serve\n"
      "  linnet serve models/couplet.safetensors --port 8000 --snapshot-folder snapshots\n"
      "  linnet serve --site web/dist\n"
      "  curl http://127.0.0.1:8080/v1/couplets -H 'Content-Type: application/json' "
      "-d '{\"first\": \"海上明月\"}'\n"
      "  curl -N http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' "
      "-d '{\"model\": \"shakespeare\", \"prompt\": \"ROMEO:\", \"stream\": true}'\n");
  auto options = std::make_shared<Options>();
  verb->add_option("-m,--model,MODEL", options->models,
                   "Models, as PATH or NAME=PATH; a PATH is a model file or the folder of a run")
      ->type_name("")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  server::ServerOptions& server = options->server;
  verb->add_option("--host", server.http.host,
                   "Address to listen on; 0.0.0.0: all addresses, reachable from other machines")
      ->type_name("ADDRESS")
      ->capture_default_str();
  verb->add_option("--port", server.http.port, "Port; 0: any free port")
      ->type_name("N")
      ->check(Between(0, 65535))
      ->capture_default_str();
  verb->add_option("--api-key-file", options->key_file, "File that holds the API key")
      ->type_name("FILE");
  verb->add_option("--clients", options->clients_file,
                   "JSON file of clients with keys and quotas of their own (docs/operating.md)")
      ->type_name("FILE");
  AddOption(verb, "--memory", options->memory_mb, "MB",
            "Memory for the states of running sequences, per model", Between(0.001, 1e7));
  AddOption(verb, "--sequences", options->batcher.sequences, "N",
            "Maximum number of concurrent sequences per model; 0: as many as --memory holds, at "
            "most 256",
            Between(0, 65536));
  AddOption(verb, "--queue", options->batcher.queue, "N",
            "Maximum number of waiting sequences per model; further requests get status 429",
            Between(0, 1e6));
  AddOption(verb, "--queue-tokens", options->batcher.prompt_tokens, "N",
            "Maximum number of tokens in the prompts of all running and waiting requests of a "
            "model; further requests get status 429",
            Between(1, 1e12));
  AddStateOptions(verb, *options);
  verb->add_option("--chat", options->chat,
                   "Answer chats (POST /v1/chat/completions, /v1/responses) of text models in this "
                   "format: chatml, plain, rwkv, or a JSON file (docs/http.md)")
      ->type_name("FORMAT");
  AddOption(verb, "--max-candidates", server.limits.candidates, "N",
            "Largest 'candidates' (couplets) or 'n' (texts) that a request may have",
            Between(1, 1024));
  AddOption(verb, "--max-tokens", server.limits.tokens, "N",
            "Largest max_tokens that a text request may have; the prompt does not count",
            Between(1, 1e7));
  AddOption(verb, "--max-body", server.http.body, "BYTES", "Maximum size of a request body",
            Between(256, 1e9));
  AddOption(verb, "--connections", server.http.connections, "N",
            "Maximum number of concurrent connections; further ones wait", Between(1, 65536));
  AddOption(verb, "--timeout", server.seconds, "SECONDS",
            "Maximum time per request, queue included", Between(0.01, 86400));
  AddOption(verb, "--grace", options->grace, "SECONDS",
            "Grace period for running requests at shutdown", Between(0, 86400));
  verb->add_option("--site", options->site,
                   "Folder of web pages to serve instead of the built-in page, such as the studio "
                   "that web/build makes; read once, at the start. Its files need no key")
      ->type_name("DIR");
  verb->add_option("--traces", server.traces,
                   "File to which a trace of each request to a model is appended: JSON lines in "
                   "OpenTelemetry's format (OTLP)")
      ->type_name("FILE");
  verb->add_flag("--quiet", options->quiet, "Do not log requests");
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->batcher.threads);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
