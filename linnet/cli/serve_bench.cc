// linnet bench serve: many concurrent clients against the server. The limit is the server's own
// engine.
#include <httplib.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <thread>

#include "linnet/base/error.h"
#include "linnet/base/rng.h"
#include "linnet/base/units.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/program.h"
#include "linnet/cli/serve.h"
#include "linnet/cli/verbs.h"
#include "linnet/server/server.h"
#include "linnet/tasks/couplet/couplet.h"
#include "linnet/tasks/couplet/couplets.h"
#include "linnet/tasks/text/text.h"

namespace linnet::cli {
namespace {

using nlohmann::ordered_json;

struct Options : BenchOptions {
  std::string model, data;
  int clients = 64, candidates = 5;
};

// The sampling options of the requests.
constexpr ChoiceOptions kChoice = {.temperature = 0.7f, .top_p = 0.95f};
constexpr size_t kChecked = 64;  // distinct requests sent alone first, then compared under load

std::vector<std::string> FirstLines(const Options& options, const CoupletSymbols& symbols) {
  std::vector<std::string> lines;
  if (!options.data.empty()) {
    for (const Couplet& pair : LoadCouplets(options.data, CoupletSplit::kTest).pairs) {
      if (CountCharacters(pair.first) <= symbols.longest) lines.push_back(pair.first);
    }
    return lines;
  }
  Philox rng(1);
  for (size_t i = 0; i < 4096; ++i) {
    std::string line;
    const size_t characters = rng.Below(2) == 0 ? 5 : 7;
    for (size_t at = 0; at < characters;) {
      const auto symbol = static_cast<int32_t>(
          Vocabulary::kFirst +
          rng.Below(static_cast<uint32_t>(symbols.vocabulary.size()) - Vocabulary::kFirst));
      if (symbols.punctuation[static_cast<size_t>(symbol)]) continue;
      line += symbols.vocabulary.Decode(symbol);
      ++at;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// Tokens per second of the engine alone: steps of `batch` sequences over whole lines, each with a
// draw.
double EngineRate(Engine& engine, const CoupletSymbols& symbols,
                  const std::vector<std::string>& lines, size_t batch, double seconds) {
  const size_t width = engine.output_size();
  std::vector<double> rates;
  const Stopwatch watch;
  do {
    const CoupletLine line(symbols, lines[rates.size() % lines.size()]);
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

// Returns the response; throws on failure.
std::string Ask(httplib::Client& client, const std::string& body) {
  const auto result = client.Post("/v1/couplets", body, "application/json");
  if (!result) throw RuntimeError("bench serve: ", httplib::to_string(result.error()));
  if (result->status != 200) {
    throw RuntimeError("bench serve: status ", result->status, ": ", result->body);
  }
  return result->body;
}

double Resident() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096;
}

// Milliseconds from a prompt to the first token, over a new connection.
double FirstSymbol(int port, const std::string& prompt) {
  httplib::Client client("127.0.0.1", port);
  client.set_tcp_nodelay(true);
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
  const auto result = client.send(request);
  if (!result || result->status != 200 || first < 0) throw RuntimeError("bench serve: no answer");
  return first;
}

// Sends long prompts to a text model three times: cold, again, and again after the server has been
// restarted with the same snapshot folder.
void RunText(const Options& options, const std::shared_ptr<const Model>& model) {
  constexpr size_t kPrompts = 15;
  const Vocabulary vocabulary = VocabularyOf(*model);
  const auto length = static_cast<size_t>(model->spec().input.max_length) - 16;
  std::vector<std::string> prompts;
  for (size_t i = 0; i < kPrompts; ++i) {
    Philox rng(2, i);
    std::string prompt;
    while (prompt.size() < length) prompt += static_cast<char>('a' + rng.Below(26));
    prompts.push_back(std::move(prompt));
  }
  const std::string folder =
      std::filesystem::temp_directory_path() / StrCat("linnet_bench_serve.", getpid());
  std::filesystem::remove_all(folder);
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  double limit = 0;
  {
    Engine engine(model, {.threads = options.threads});
    const std::vector<int32_t> symbols = TextPrompt(*model, vocabulary, prompts[0]);
    std::vector<float> outputs(engine.output_size());
    State state = engine.NewState(1);
    const auto read = [&] {
      state.Reset();
      engine.Prefix(state, symbols, symbols.size(), outputs);
    };
    limit = 1e3 * MedianSeconds({read}, 0.5)[0];
  }
  std::vector<double> times[3];  // cold, warm, after the restart
  for (const bool restarted : {false, true}) {
    std::vector<server::Served> served;
    served.push_back({"text", std::make_unique<server::Batcher>(
                                  model, server::BatcherOptions{.threads = options.threads,
                                                                .snapshots = {.folder = folder}})});
    server::Server server(std::move(served), {.port = 0});
    const int port = server.Bind();
    std::thread serving([&] { server.Run(); });
    FirstSymbol(port, "a");  // warms up threads and connections
    for (int pass = restarted ? 2 : 0; pass < (restarted ? 3 : 2); ++pass) {
      for (const std::string& prompt : prompts) times[pass].push_back(FirstSymbol(port, prompt));
    }
    server.Drain(10);
    serving.join();
  }
  std::filesystem::remove_all(folder);
  std::vector<Record> records;
  const char* const names[] = {"cold", "warm", "restarted"};
  for (size_t pass = 0; pass < 3; ++pass) {
    records.push_back(
        {.name = StrCat("serve/first/", names[pass]),
         .label = StrCat(options.model, "  prompts of ", length, " symbols"),
         .value = median(times[pass]),
         .unit = "ms",
         .limit = limit,
         .identity = {{"prompt", length}, {"machine", MachineName()}, {"date", Today()}}});
  }
  PrintRecords(records, options.json);
}

void Run(const Options& options) {
  const auto model = Model::Open(options.model);
  if (IsOf(model->spec(), kTextTask)) return RunText(options, model);
  CheckTask(*model, kCoupletTask, "bench serve");
  const CoupletSymbols symbols(*model);
  const std::vector<std::string> lines = FirstLines(options, symbols);
  const auto clients = static_cast<size_t>(options.clients);
  double engine_rate = 0;
  {
    Engine engine(model, {.threads = options.threads});
    engine_rate = EngineRate(engine, symbols, lines, clients, 3);
  }
  std::vector<server::Served> served;
  served.push_back(
      {"couplet", std::make_unique<server::Batcher>(
                      model, server::BatcherOptions{.threads = options.threads,
                                                    .sequences = std::max<size_t>(64, clients),
                                                    .queue = 64 * clients})});
  server::Batcher& batcher = *served[0].batcher;
  server::Server server(std::move(served), {.port = 0});
  const int port = server.Bind();
  std::thread serving([&] { server.Run(); });

  // One request at a time, for comparison.
  std::vector<std::string> alone;
  double alone_seconds = 0;
  {
    httplib::Client client("127.0.0.1", port);
    client.set_keep_alive(true);
    client.set_tcp_nodelay(true);
    const Stopwatch watch;
    for (size_t i = 0; i < kChecked; ++i) {
      alone.push_back(Ask(client, BodyOf(lines[i % lines.size()], i, options.candidates)));
    }
    alone_seconds = watch.Seconds() / kChecked;
  }
  std::atomic<size_t> asked{0}, different{0}, failed{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::vector<double> latencies;
  std::string why;
  const auto before = batcher.counts();
  const Stopwatch watch;
  std::vector<std::thread> threads;
  for (size_t c = 0; c < clients; ++c) {
    threads.emplace_back([&] {
      httplib::Client client("127.0.0.1", port);
      client.set_keep_alive(true);
      client.set_tcp_nodelay(true);
      std::vector<double> mine;
      while (!stop) {
        const size_t number = asked++;
        // Every eighth request has a known response; the others have seeds of their own.
        const bool checked = number % 8 == 0;
        const size_t seed = checked ? number / 8 % kChecked : kChecked + number;
        const Stopwatch request;
        try {
          const std::string answer =
              Ask(client, BodyOf(lines[seed % lines.size()], seed, options.candidates));
          mine.push_back(request.Seconds());
          if (checked && answer != alone[seed]) ++different;
        } catch (const std::exception& error) {
          ++failed;
          const std::lock_guard lock(mutex);
          why = error.what();
        }
      }
      const std::lock_guard lock(mutex);
      latencies.insert(latencies.end(), mine.begin(), mine.end());
    });
  }
  double early = 0;
  WithProgress("seconds", [&](const auto& report) {
    const auto all = static_cast<size_t>(options.seconds + 0.5);
    while (watch.Seconds() < options.seconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (early == 0 && watch.Seconds() > options.seconds / 4) early = Resident();
      report(std::min(all, static_cast<size_t>(watch.Seconds())), all);
    }
  });
  const double seconds = watch.Seconds(), late = Resident();
  const auto after = batcher.counts();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  server.Drain(10);
  serving.join();
  if (different > 0) {
    throw RuntimeError("bench serve: ", different.load(),
                       " answers under load differ from those alone");
  }
  if (failed > 0)
    throw RuntimeError("bench serve: ", failed.load(), " requests failed, one with: ", why);
  std::sort(latencies.begin(), latencies.end());
  const auto quantile = [&](double q) {
    return latencies[static_cast<size_t>(q * static_cast<double>(latencies.size() - 1))];
  };
  const double rate = static_cast<double>(after.generated - before.generated) / seconds;
  PrintRecords(
      {{.name = "serve",
        .label = StrCat(options.model, "  ", options.clients, " clients, ", options.candidates,
                        " candidates each"),
        .value = 1e6 / rate,
        .unit = "us/symbol",
        .limit = 1e6 / engine_rate,
        .identity = {{"clients", options.clients},
                     {"candidates", options.candidates},
                     {"seconds", seconds},
                     {"requests", latencies.size()},
                     {"requests_per_second", static_cast<double>(latencies.size()) / seconds},
                     {"symbols_per_second", rate},
                     {"engine_symbols_per_second", engine_rate},
                     {"prompt_symbols_per_second",
                      static_cast<double>(after.read - before.read) / seconds},
                     {"prompt_symbols_known", after.known - before.known},
                     {"p50_ms", 1e3 * quantile(0.5)},
                     {"p99_ms", 1e3 * quantile(0.99)},
                     {"alone_ms", 1e3 * alone_seconds},
                     {"resident_at_a_quarter", early},
                     {"resident_at_the_end", late},
                     {"machine", MachineName()},
                     {"date", Today()}}}},
      options.json);
  if (options.json) return;
  std::cout << "\n"
            << latencies.size() << " requests in " << FormatSeconds(seconds) << ", none failed; "
            << FormatCount(rate) << " symbols/s (the engine alone: " << FormatCount(engine_rate)
            << "); p50 " << FormatCount(1e3 * quantile(0.5)) << " ms, p99 "
            << FormatCount(1e3 * quantile(0.99)) << " ms, alone "
            << FormatCount(1e3 * alone_seconds) << " ms; memory " << FormatBytes(early)
            << " after a quarter, " << FormatBytes(late) << " at the end\n";
}

}  // namespace

void AddServeBench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Time the server");
  bench->require_subcommand(1);
  CLI::App* verb = AddVerb(
      *bench, "serve", "Time a model over HTTP: couplets under load, or the first token of text",
      "Server and clients share this machine. Answers under load are compared, byte for byte, with "
      "those to the same\nrequests alone. The limit: the engine's steps for as many sequences, "
      "with a "
      "draw each, without prompts and HTTP.\nFor a model of text: the time to the first token of "
      "long prompts, cold, warm and after a restart;\nthe limit is the engine's time to read them.",
      "  linnet bench serve models/couplet.safetensors\n"
      "  linnet bench serve models/couplet.safetensors --clients 8 --candidates 1 --json\n"
      "  linnet bench serve runs/text/model.safetensors\n");
  auto options = std::make_shared<Options>();
  options->seconds = 60;
  AddModelArgument(verb, options->model);
  AddOption(verb, "--data", options->data, "DIR",
            "Folder of couplets whose test lines are asked; without: made-up lines of five and "
            "seven characters");
  AddOption(verb, "--clients", options->clients, "N",
            "Concurrent clients, each with one request at a time", Between(1, 1000));
  AddOption(verb, "--candidates", options->candidates, "N",
            "Candidates per request; the page asks for five", Between(1, 16));
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
