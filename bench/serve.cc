// linnet bench serve: times couplet requests from many concurrent clients, or the first token of a
// text model. The limit is the time of the engine alone: without HTTP and, for couplets, without
// reading prompts.
#include <httplib.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <thread>

#include "bench/bench.h"
#include "bench/benchmarks.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/program/machine.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"
#include "linnet/server/server.h"
#include "linnet/tasks/couplet/couplet.h"
#include "linnet/tasks/couplet/couplets.h"
#include "linnet/tasks/text/text.h"

namespace linnet::bench {
namespace {

using nlohmann::ordered_json;

struct ServeBenchOptions : BenchOptions {
  std::string model, data;
  int clients = 64, candidates = 5;
};

// The sampling options of the requests.
constexpr ChoiceOptions kChoice = {.temperature = 0.7f, .top_p = 0.95f};
constexpr size_t kChecked = 64;  // requests sent alone and under load; responses must match

// First lines of couplets for the requests: the data set's test lines or, without --data, random
// lines of five or seven characters.
std::vector<std::string> FirstLines(const ServeBenchOptions& options, const CoupletTokens& tokens) {
  std::vector<std::string> lines;
  if (!options.data.empty()) {
    for (const Couplet& pair : LoadCouplets(options.data, CoupletSplit::kTest).pairs) {
      if (CountCharacters(pair.first) <= tokens.longest) lines.push_back(pair.first);
    }
    return lines;
  }
  Philox rng(1);
  for (size_t i = 0; i < 4096; ++i) {
    std::string line;
    const size_t characters = rng.Below(2) == 0 ? 5 : 7;
    for (size_t at = 0; at < characters;) {
      const auto token = static_cast<int32_t>(
          Vocabulary::kFirst +
          rng.Below(static_cast<uint32_t>(tokens.vocabulary.size()) - Vocabulary::kFirst));
      if (tokens.punctuation[static_cast<size_t>(token)]) continue;
      line += tokens.vocabulary.Decode(token);
      ++at;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// Median tokens per second of the engine alone, which steps `batch` sequences through whole lines
// and samples each token.
double EngineRate(Engine& engine, const CoupletTokens& tokens,
                  const std::vector<std::string>& lines, size_t batch, double seconds) {
  const size_t width = engine.output_size();
  std::vector<double> rates;
  const Stopwatch watch;
  do {
    const CoupletLine line(tokens, lines[rates.size() % lines.size()]);
    const std::vector<int32_t> prompt = line.Prompt();
    std::vector<float> logits(width);
    State one = engine.NewState(1);
    engine.Prefix(one, prompt, prompt.size(), logits);
    State state = one.Fork(batch);
    std::vector<float> outputs;
    for (size_t i = 0; i < batch; ++i) outputs.insert(outputs.end(), logits.begin(), logits.end());
    std::vector<CoupletDraft> drafts;
    for (size_t i = 0; i < batch; ++i) drafts.emplace_back(line, kChoice, rates.size(), i);
    std::vector<int32_t> next(batch);
    const Stopwatch steps;
    for (size_t at = 0; at < line.size(); ++at) {
      if (at > 0) engine.Step(state, next, outputs);
      engine.pool().For(batch, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) {
          next[i] = drafts[i].Next(std::span(outputs).subspan(i * width, width));
        }
      });
    }
    rates.push_back(static_cast<double>(batch * line.size()) / steps.Seconds());
  } while (watch.Seconds() < seconds);
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

std::string BodyOf(const std::string& line, size_t seed, int candidates) {
  return ordered_json({{"first", line},
                       {"candidates", candidates},
                       {"temperature", kChoice.temperature},
                       {"top_p", kChoice.top_p},
                       {"seed", seed}})
      .dump();
}

// A server of one model. It runs on a separate thread until the destructor drains it.
class LocalServer {
 public:
  LocalServer(const char* name, const std::shared_ptr<const Model>& model,
              const server::BatcherOptions& options)
      : server_(Serve(name, model, options, &batcher_), {.http = {.port = 0}}),
        port_(server_.Bind()),
        serving_([this] { server_.Run(); }) {}
  ~LocalServer() {
    server_.Drain(10);
    serving_.join();
  }
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  server::Batcher::Counts counts() const { return batcher_->counts(); }

  std::unique_ptr<httplib::Client> Connect() const {
    auto client = std::make_unique<httplib::Client>("127.0.0.1", port_);
    client->set_keep_alive(true);
    client->set_tcp_nodelay(true);
    client->set_read_timeout(600);  // on a crowded machine or under a sanitizer, answers take long
    return client;
  }

 private:
  // Makes the server's list of one model, and sets *batcher to the batcher in it.
  static std::vector<server::Served> Serve(const char* name,
                                           const std::shared_ptr<const Model>& model,
                                           const server::BatcherOptions& options,
                                           server::Batcher** batcher) {
    std::vector<server::Served> served;
    served.push_back({name, std::make_unique<server::Batcher>(model, options)});
    *batcher = served[0].batcher.get();
    return served;
  }

  server::Batcher* batcher_ = nullptr;  // owned by server_
  server::Server server_;
  const int port_;
  std::thread serving_;
};

// Posts a couplet request and returns the body of the response. Throws RuntimeError on failure.
std::string Ask(httplib::Client& client, const std::string& body) {
  const auto result = client.Post("/v1/couplets", body, "application/json");
  if (!result) throw RuntimeError("bench serve: ", httplib::to_string(result.error()));
  if (result->status != 200) {
    throw RuntimeError("bench serve: status ", result->status, ": ", result->body);
  }
  return result->body;
}

// Resident memory of this process, in bytes.
double Resident() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// Sends a prompt over a new connection. Returns the milliseconds until the first token arrives.
double FirstToken(const LocalServer& server, const std::string& prompt) {
  const auto client = server.Connect();
  const std::string body =
      ordered_json({{"prompt", prompt}, {"max_tokens", 8}, {"seed", 1}, {"stream", true}}).dump();
  const Stopwatch watch;
  double first = -1;
  httplib::Request request;
  request.method = "POST", request.path = "/v1/completions", request.body = body;
  request.set_header("Content-Type", "application/json");
  request.content_receiver = [&](const char*, size_t, uint64_t, uint64_t) {
    if (first < 0) first = 1e3 * watch.Seconds();
    return true;
  };
  const auto result = client->send(request);
  if (!result || result->status != 200 || first < 0) throw RuntimeError("bench serve: no answer");
  return first;
}

std::vector<std::string> RandomPrompts(size_t count, size_t length) {
  std::vector<std::string> prompts(count);
  for (size_t i = 0; i < count; ++i) {
    Philox rng(2, i);
    while (prompts[i].size() < length) prompts[i] += static_cast<char>('a' + rng.Below(26));
  }
  return prompts;
}

// Milliseconds that the engine alone takes to read the prompt, and to read one token.
std::pair<double, double> EngineTimes(const std::shared_ptr<const Model>& model,
                                      const std::string& prompt, int threads) {
  Engine engine(model, {.threads = threads});
  const std::vector<int32_t> tokens = TextPrompt(*model, VocabularyOf(*model), prompt);
  std::vector<float> outputs(engine.output_size());
  State state = engine.NewState(1);
  const auto read = [&] {
    state.Reset();
    engine.Prefix(state, tokens, tokens.size(), outputs);
  };
  const auto step = [&] {
    if (state.position() >= tokens.size()) state.Reset();
    engine.Step(state, std::span(tokens).last(1), outputs);
  };
  const double reading = 1e3 * MedianSeconds({read}, 0.5)[0];
  state.Reset();
  return {reading, 1e3 * MedianSeconds({step}, 0.1)[0]};
}

// The path of a temporary folder, which the destructor removes.
struct TemporaryFolder {
  const std::string path =
      std::filesystem::temp_directory_path() / StrCat("linnet_bench_serve.", getpid());
  TemporaryFolder() { std::filesystem::remove_all(path); }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

// Times the first token for long prompts. Each prompt is sent to a text model three times: new
// ("cold"), repeated ("warm"), and repeated after a restart of the server with the same snapshot
// folder ("restarted"). In between, prompts are sent that leave these shortly before their end, in
// the second of two different ways ("branched").
void MeasureText(const ServeBenchOptions& options, const std::shared_ptr<const Model>& model) {
  constexpr size_t kPrompts = 15;
  const auto length = static_cast<size_t>(model->spec().input.max_length) - 16;
  const std::vector<std::string> prompts = RandomPrompts(kPrompts, length);
  const auto [reading, step] = EngineTimes(model, prompts[0], options.threads);
  const TemporaryFolder folder;
  std::vector<std::pair<const char*, double>> medians;
  const auto start = [&] {
    auto server = std::make_unique<LocalServer>(
        "text", model,
        server::BatcherOptions{
            .threads = options.threads,
            .snapshots = {.folder = std::make_shared<server::SnapshotFolder>(folder.path, 1e9)}});
    FirstToken(*server, "a");  // warms up threads and connections
    return server;
  };
  const auto measure = [&](const char* name, const LocalServer& server, const char* end = "") {
    std::vector<double> times;
    for (std::string prompt : prompts) {
      prompt.replace(prompt.size() - std::strlen(end), std::string::npos, end);
      times.push_back(FirstToken(server, prompt));
    }
    medians.emplace_back(name, Median(std::move(times)));
  };
  {
    const auto server = start();
    measure("cold", *server);
    measure("warm", *server);
    measure("", *server, " leaves here");
    medians.pop_back();
    measure("branched", *server, " leaves there");
  }
  measure("restarted", *start());

  std::vector<Record> records;
  records.reserve(medians.size());
  for (const auto& [name, median] : medians) {
    records.push_back(
        {.name = StrCat("serve/first/", name),
         .label = StrCat(options.model, "  prompts of ", length, " tokens"),
         .value = median,
         .unit = "ms",
         .limit = std::string_view(name) == "cold" ? reading : step,
         .identity = {
             {"prompt", length}, {"machine", cli::MachineName()}, {"date", cli::Today()}}});
  }
  PrintRecords(records, options.json);
}

// Many concurrent clients that request couplets.
class Load {
 public:
  Load(const LocalServer& server, const ServeBenchOptions& options, std::vector<std::string> lines)
      : server_(server), options_(options), lines_(std::move(lines)) {}

  // Sends the kChecked requests one at a time. Returns the mean seconds per request.
  double AskAlone() {
    const auto client = server_.Connect();
    const Stopwatch watch;
    for (size_t i = 0; i < kChecked; ++i) alone_.push_back(Ask(*client, Body(i)));
    return watch.Seconds() / kChecked;
  }

  // Sends requests from all clients for options.seconds. Throws if a request fails, or if a
  // response differs from the one that AskAlone() got.
  void Run() {
    const server::Batcher::Counts before = server_.counts();
    const Stopwatch watch;
    std::vector<std::thread> clients;
    clients.reserve(static_cast<size_t>(options_.clients));
    for (int c = 0; c < options_.clients; ++c) clients.emplace_back([this] { RunClient(); });
    cli::WithProgress("seconds", [&](const auto& report) {
      const auto all = static_cast<size_t>(std::llround(options_.seconds));
      while (watch.Seconds() < options_.seconds) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (early == 0 && watch.Seconds() > options_.seconds / 4) early = Resident();
        report(std::min(all, static_cast<size_t>(watch.Seconds())), all);
      }
    });
    seconds = watch.Seconds(), late = Resident();
    const server::Batcher::Counts after = server_.counts();
    stop_ = true;
    for (std::thread& client : clients) client.join();
    if (different_ > 0) {
      throw RuntimeError("bench serve: ", different_.load(),
                         " responses under load differ from those to the same requests alone");
    }
    if (failed_ > 0) {
      throw RuntimeError("bench serve: ", failed_.load(), " requests failed, one with: ", why_);
    }
    if (latencies_.empty()) {
      throw RuntimeError("bench serve: no request ended in time; give more --seconds");
    }
    std::sort(latencies_.begin(), latencies_.end());
    rate = static_cast<double>(after.generated - before.generated) / seconds;
    prompt_rate = static_cast<double>(after.read - before.read) / seconds;
    known = after.known - before.known;
  }

  size_t requests() const { return latencies_.size(); }
  double Milliseconds(double quantile) const {
    const double last = static_cast<double>(latencies_.size() - 1);
    return 1e3 * latencies_[static_cast<size_t>(quantile * last)];
  }

  double seconds = 0;
  double rate = 0, prompt_rate = 0;  // tokens per second: generated, and read from prompts
  size_t known = 0;                  // prompt tokens restored from snapshots
  double early = 0, late = 0;        // resident bytes after a quarter of the time, and at its end

 private:
  std::string Body(size_t seed) const {
    return BodyOf(lines_[seed % lines_.size()], seed, options_.candidates);
  }

  // Every eighth request repeats one of the kChecked requests; all others have new seeds.
  void RunClient() {
    const auto client = server_.Connect();
    std::vector<double> mine;
    while (!stop_) {
      const size_t number = asked_++;
      const bool checked = number % 8 == 0;
      const size_t seed = checked ? number / 8 % kChecked : kChecked + number;
      const Stopwatch request;
      try {
        const std::string answer = Ask(*client, Body(seed));
        mine.push_back(request.Seconds());
        if (checked && answer != alone_[seed]) ++different_;
      } catch (const std::exception& error) {
        ++failed_;
        const std::lock_guard lock(mutex_);
        why_ = error.what();
      }
    }
    const std::lock_guard lock(mutex_);
    latencies_.insert(latencies_.end(), mine.begin(), mine.end());
  }

  const LocalServer& server_;
  const ServeBenchOptions& options_;
  const std::vector<std::string> lines_;
  std::vector<std::string> alone_;  // responses to the kChecked requests, from AskAlone()
  std::atomic<size_t> asked_{0}, different_{0}, failed_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards latencies_ and why_
  std::vector<double> latencies_;
  std::string why_;
};

void MeasureCouplets(const ServeBenchOptions& options, const std::shared_ptr<const Model>& model) {
  CheckTask(*model, kCoupletTask, "bench serve");
  const CoupletTokens tokens(*model);
  const std::vector<std::string> lines = FirstLines(options, tokens);
  const auto clients = static_cast<size_t>(options.clients);
  double engine_rate = 0;
  {
    Engine engine(model, {.threads = options.threads});
    engine_rate = EngineRate(engine, tokens, lines, clients, 3);
  }
  const LocalServer server("couplet", model,
                           {.threads = options.threads,
                            .sequences = std::max<size_t>(64, clients),
                            .queue = 64 * clients});
  Load load(server, options, lines);
  const double alone = 1e3 * load.AskAlone();
  load.Run();
  const double p50 = load.Milliseconds(0.5), p99 = load.Milliseconds(0.99);
  PrintRecords(
      {{.name = "serve",
        .label = StrCat(options.model, "  ", options.clients, " clients, ", options.candidates,
                        " candidates each"),
        .value = 1e6 / load.rate,
        .unit = "us/token",
        .limit = 1e6 / engine_rate,
        .identity = {{"clients", options.clients},
                     {"candidates", options.candidates},
                     {"seconds", load.seconds},
                     {"requests", load.requests()},
                     {"requests_per_second", static_cast<double>(load.requests()) / load.seconds},
                     {"tokens_per_second", load.rate},
                     {"engine_tokens_per_second", engine_rate},
                     {"prompt_tokens_per_second", load.prompt_rate},
                     {"prompt_tokens_known", load.known},
                     {"p50_ms", p50},
                     {"p99_ms", p99},
                     {"alone_ms", alone},
                     {"resident_at_a_quarter", load.early},
                     {"resident_at_the_end", load.late},
                     {"machine", cli::MachineName()},
                     {"date", cli::Today()}}}},
      options.json);
  if (options.json) return;
  std::cout << "\n"
            << load.requests() << " requests in " << FormatSeconds(load.seconds)
            << ", none failed; " << FormatCount(load.rate)
            << " tokens/s (the engine alone: " << FormatCount(engine_rate) << "); p50 "
            << FormatCount(p50) << " ms, p99 " << FormatCount(p99) << " ms, a request alone "
            << FormatCount(alone) << " ms; memory " << FormatBytes(load.early)
            << " after a quarter, " << FormatBytes(load.late) << " at the end\n";
}

void Run(const ServeBenchOptions& options) {
  const auto model = Model::Open(options.model);
  IsOf(model->spec(), kTextTask) ? MeasureText(options, model) : MeasureCouplets(options, model);
}

}  // namespace

void AddServe(CLI::App& app) {
  CLI::App* verb = cli::AddVerb(
      app, "serve", "Time a model over HTTP: couplets under load, or the first token of text",
      R"(Server and clients share this machine. A couplet model answers many clients. Each response
is compared, byte for byte, with the response to the same request sent alone. The limit is the rate
of the engine alone, which steps one sequence per client and samples each token, without prompts and
HTTP. For a text model, the benchmark measures the time to the first token of long prompts: new,
repeated, leaving an earlier prompt shortly before its end, and repeated after a restart. The limit
is the time that the engine alone takes to read such a new prompt, or one token of the others.)",
      "  linnet bench serve models/couplet.safetensors\n"
      "  linnet bench serve models/couplet.safetensors --clients 8 --candidates 1 --json\n"
      "  linnet bench serve runs/text/model.safetensors\n");
  auto options = std::make_shared<ServeBenchOptions>();
  options->seconds = 60;
  cli::AddModelArgument(verb, options->model);
  cli::AddOption(verb, "--data", options->data, "DIR",
                 "Folder of a couplet data set; its test lines are sent (default: random lines of "
                 "five and seven characters)");
  cli::AddOption(verb, "--clients", options->clients, "N",
                 "Concurrent clients, each with one request at a time", cli::Between(1, 1000));
  cli::AddOption(verb, "--candidates", options->candidates, "N", "Candidates per request",
                 cli::Between(1, 16));
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::bench
