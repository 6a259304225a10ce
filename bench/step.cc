// linnet bench step: times one recurrent step of a batch of sequences. The limit is TokenLimit(),
// from rates measured in the same run with the same threads.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "bench/bench.h"
#include "bench/benchmarks.h"
#include "bench/products.h"
#include "bench/random_model.h"
#include "linnet/base/aligned.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/progress.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/model/checkpoint.h"
#include "linnet/model/mixer.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"

namespace linnet::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShipped = "models/digits.safetensors";

struct StepBenchOptions : BenchOptions {
  std::vector<std::string> models;
  std::vector<std::string> languages;   // kinds of random language models
  std::string random;                   // data set of a random image model, or empty
  MixerSpec attention;                  // of the random image model
  std::vector<std::string> precisions;  // none: a file's own, and all for language models
  std::vector<size_t> batches = {1};
  size_t from = 0;  // the first position that is timed
};

// Returns the path of the shipped model, or "" if it is not found. Looks below the current folder,
// then below each folder above this executable; in a source tree, one of these is the root.
std::string FindShippedModel() {
  std::error_code error;
  if (fs::exists(kShipped, error)) return kShipped;
  for (fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
       folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::exists(folder / kShipped, error)) return (folder / kShipped).string();
  }
  return "";
}

std::vector<int32_t> RandomTokens(const ModelSpec& spec, size_t count) {
  Philox rng(/*seed=*/2);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.Below(static_cast<uint32_t>(spec.input.vocabulary)));
  }
  return tokens;
}

// Compares the outputs of single steps with those of Prefix(), for the first and the last sequence
// of a batch. Throws RuntimeError if they differ, InputError if the model has no recurrent form.
void Check(Engine& engine, const std::string& name, size_t batch) {
  if (!engine.model().steps()) {
    throw InputError(name, ": '", engine.model().spec().stack.mixer().kind,
                     "' has no recurrent form: each step reads all tokens again");
  }
  const size_t length =
      static_cast<size_t>(std::min(engine.model().spec().input.max_length, batch == 1 ? 100 : 40));
  const size_t outputs = engine.output_size();
  const std::vector<int32_t> tokens = RandomTokens(engine.model().spec(), batch * length);
  std::vector<float> steps(batch * outputs), whole(length * outputs);
  State state = engine.NewState(batch);
  std::vector<float> first, last;  // all outputs of these two sequences
  std::vector<int32_t> column(batch);
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < batch; ++i) column[i] = tokens[i * length + t];
    engine.Step(state, column, steps);
    first.insert(first.end(), steps.begin(), steps.begin() + outputs);
    last.insert(last.end(), steps.end() - outputs, steps.end());
  }
  RelativeError error;
  const auto compare = [&](const std::vector<float>& stepped, size_t sequence) {
    State one = engine.NewState(1);
    engine.Prefix(one, std::span(tokens).subspan(sequence * length, length), length, whole);
    for (size_t i = 0; i < whole.size(); ++i) error.Add(stepped[i], whole[i]);
  };
  compare(first, 0);
  if (batch > 1) compare(last, batch - 1);
  const double allowed = engine.model().precision() == Precision::kF32 ? 1e-4 : 0.1;
  if (!(error.value() <= allowed)) {
    throw RuntimeError("bench step: ", name, ": stepping differs from the whole prefix by ",
                       error.value(), " (allowed: ", allowed, "); not timed");
  }
}

// Reads `floats` with the engine's threads.
void Read(Engine& engine, const AlignedBuffer<float>& floats) {
  engine.pool().For(floats.size(), [&](size_t first, size_t end) {
    kernels::ReadFloats(floats.data() + first, end - first);
  });
}

// Seconds per call, over as many calls as take `least` seconds.
double SecondsPerCall(double least, FunctionRef<void()> call) {
  const Stopwatch watch;
  int count = 0;
  do {
    call();
    ++count;
  } while (watch.Seconds() < least);
  return watch.Seconds() / count;
}

struct StepTimes {
  double seconds = 0;   // of a step of the whole batch
  double position = 0;  // mean position of the timed steps
  MachineRates rates;
  double read_rate = 0;  // bytes per second, from as many bytes as weights and states have
};

constexpr size_t kMostRead = size_t{1} << 29;  // most bytes to read for StepTimes::read_rate

// Medians over laps: the steps from position options.from to the end, or the first of them if they
// take longer than a fifth of the time to measure. Of several steps, the first is not timed. Each
// lap also measures the machine's rates.
StepTimes Time(Engine& engine, size_t batch, const StepBenchOptions& options) {
  const Model& model = engine.model();
  const auto length = static_cast<size_t>(model.spec().input.max_length);
  std::vector<float> outputs(batch * engine.output_size());
  State begin = engine.NewState(batch);
  if (options.from > 0) {
    const std::vector<int32_t> prefix = RandomTokens(model.spec(), batch * options.from);
    engine.Prefix(begin, prefix, options.from, outputs);
  }
  const AlignedBuffer<float> weights(model.weight_bytes() / sizeof(float)),
      all(std::min(kMostRead, model.weight_bytes() + begin.bytes()) / sizeof(float));
  const double all_bytes = static_cast<double>(all.size() * sizeof(float));
  Products products(model.precision(), static_cast<size_t>(engine.threads()));
  const std::vector<int32_t> tokens = RandomTokens(model.spec(), batch * (length - options.from));
  std::vector<double> steps, positions, reads, read_rates, product_rates;
  // Seconds per call, after one call that brings data into the caches.
  const auto per_call = [](FunctionRef<void()> call) {
    call();
    constexpr double kLeast = 0.002;
    return SecondsPerCall(kLeast, call);
  };
  const Stopwatch watch;
  constexpr size_t kLeastLaps = 5;
  while (steps.size() < kLeastLaps || watch.Seconds() < options.seconds) {
    State state = begin.Clone();
    size_t position = options.from;
    const auto step = [&] {
      const size_t at = batch * (position++ - options.from);
      engine.Step(state, std::span(tokens).subspan(at, batch), outputs);
    };
    if (position + 1 < length) step();  // brings the weights back into the caches
    const size_t first = position;
    const Stopwatch lap;
    do {
      step();
    } while (position < length && lap.Seconds() < options.seconds / 5);
    steps.push_back(lap.Seconds() / static_cast<double>(position - first));
    positions.push_back(static_cast<double>(first + position - 1) / 2);
    reads.push_back(per_call([&] { Read(engine, weights); }));
    read_rates.push_back(all_bytes / per_call([&] { Read(engine, all); }));
    product_rates.push_back(products.Operations() / per_call([&] { products.Run(engine.pool()); }));
  }
  return {
      Median(steps), Median(positions), {Median(reads), Median(product_rates)}, Median(read_rates)};
}

// Throws InputError if the machine has too little memory to time a batch.
void RequireMemory(const Model& model, const std::string& name, size_t batch) {
  const double states = 2.0 * static_cast<double>(batch) *  // Time() keeps a copy
                        static_cast<double>(StateBytes(model.spec(), model.precision()));
  const auto machine = static_cast<double>(MachineMemory());
  if (states + static_cast<double>(kMostRead + 2 * model.weight_bytes()) < machine) return;
  throw InputError("--batch ", batch, ": ", name, ": the states and a copy of them take ",
                   FormatBytes(states), ", and this machine has ", FormatBytes(machine),
                   " of memory");
}

Record Measure(const std::shared_ptr<const Model>& model, const std::string& name, size_t batch,
               const StepBenchOptions& options) {
  const ModelSpec& spec = model->spec();
  const size_t length = static_cast<size_t>(spec.input.max_length);
  if (options.from >= length) {
    throw InputError("--from ", options.from, ": ", name, " has only ", length, " positions");
  }
  Engine engine(model, {.threads = options.threads});
  Check(engine, name, batch);
  const StepTimes times = Time(engine, batch, options);
  const double token = times.seconds / static_cast<double>(batch);
  const double cached = times.position / static_cast<double>(length);
  Record record = {.name = "step",
                   .label = batch == 1 ? name : StrCat(name, "  batch ", batch),
                   .value = 1e6 * token,
                   .unit = "us/token",
                   .limit = 1e6 * TokenLimit(*model, times.rates, batch, cached),
                   .identity = {{"model", name},
                                {"attention", spec.stack.mixer().kind},
                                {"layers", spec.stack.layers()},
                                {"d_model", spec.stack.d_model},
                                {"N", length},
                                {"batch", batch},
                                {"threads", engine.threads()},
                                {"precision", PrecisionName(model->precision())},
                                {"isa", kernels::ActiveIsa()},
                                {"weight_bytes", model->weight_bytes()},
                                {"state_bytes", StateBytes(spec, model->precision())},
                                {"token_operations", ProductOperations(spec)},
                                {"mean_position", times.position},
                                {"read_us", 1e6 * times.rates.read_seconds},
                                {"read_gbs", times.read_rate / 1e9},
                                {"product_gops", times.rates.product_rate / 1e9},
                                {"tokens_a_second", 1 / token}}};
  if (options.from > 0) record.identity["from"] = options.from;
  return record;
}

void Run(const StepBenchOptions& options) {
  std::vector<Precision> precisions;
  for (const std::string& name : options.precisions) precisions.push_back(ParsePrecision(name));
  std::vector<Record> records;
  const auto measure = [&](const std::shared_ptr<const Model>& model, const std::string& name) {
    for (const size_t batch : options.batches) RequireMemory(*model, name, batch);
    for (const size_t batch : options.batches) {
      records.push_back(Measure(model, name, batch, options));
    }
  };
  const auto measure_random = [&](const Checkpoint& checkpoint, const std::string& name) {
    for (const Precision precision : precisions) {
      measure(Model::FromCheckpoint(checkpoint, {precision}),
              StrCat(name, "  ", PrecisionName(precision)));
    }
  };
  for (const std::string& path : options.models) {
    if (precisions.empty()) measure(Model::Open(path), path);
    for (const Precision precision : precisions) {
      measure(Model::Open(path, {precision}), StrCat(path, "  ", PrecisionName(precision)));
    }
  }
  if (precisions.empty()) precisions = {Precision::kF32, Precision::kBf16, Precision::kInt8};
  for (const std::string& kind : options.languages) {
    measure_random(RandomModel(RandomLanguageSpec(kind)), kind);
  }
  if (!options.random.empty()) {
    measure_random(RandomModel(RandomSpec(options.random, options.attention)),
                   StrCat(options.random, " (random)  ", options.attention.kind));
  }
  if (options.models.empty() && options.languages.empty() && options.random.empty()) {
    const std::string shipped = FindShippedModel();
    if (shipped.empty()) {
      std::cerr << "linnet: no " << kShipped << " here; timing only a model of the paper's size\n";
    } else {
      measure(Model::Open(shipped), shipped);
    }
    measure(Model::FromCheckpoint(RandomModel(RandomSpec("mnist"))),
            "paper (8 x 256, random weights)");
  }
  PrintRecords(records, options.json);
}

}  // namespace

void AddStep(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "step", "Time one recurrent step of a batch of sequences",
      R"(The time is that of a step divided by the batch size. The limit is the larger of two times:
reading the weights once for the whole batch, and multiplying with them once per sequence. With
softmax attention, reading the cached keys and values is added. With patches, whose steps differ,
the limit is the mean over the steps of a patch.)",
      "  linnet bench step\n"
      "  linnet bench step --language gated-delta-net,rwkv7 --precision bf16\n"
      "  linnet bench step models/digits.safetensors --threads 1 --json\n"
      "  linnet bench step models/digits-softmax.safetensors --precision int8 --from 733\n"
      "  linnet bench step --random cifar10 --attention full --batch 1,8,32 --from 1535\n");
  auto options = std::make_shared<StepBenchOptions>();
  cli::AddOption(verb, "MODEL", options->models, "",
                 "Models to time (default: the shipped digits model and the paper's MNIST model)");
  cli::AddListOption(
      verb, "--language", options->languages, "KINDS",
      "In place of MODEL: time language models with these mixers (12 layers of width 768, "
      "random weights): gated-delta-net, rwkv7, ...");
  CLI::Option* random =
      cli::AddOption(verb, "--random", options->random, "NAME",
                     "In place of MODEL: time the paper's model of mnist or cifar10 with random "
                     "weights",
                     CLI::IsMember({"mnist", "cifar10"}));
  cli::AddOption(verb, "--attention", options->attention.kind, "KIND",
                 "Attention of the random image model: causal-linear, or full (softmax, with a "
                 "cache of keys and values)",
                 CLI::IsMember({"causal-linear", "full"}))
      ->needs(random);
  cli::AddListOption(verb, "--precision", options->precisions, "NAMES",
                     "One or more of f32, bf16 and int8 (default: a file's own; all with "
                     "--language or --random)");
  cli::AddListOption(verb, "--batch", options->batches, "N", "Batch sizes, for example 1,64",
                     cli::Between(1, 1'000'000));
  cli::AddOption(verb, "--from", options->from, "N",
                 "Read N tokens first, and time only the steps after them; N is below the model's "
                 "length",
                 cli::Between(0, 1e9));
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::bench
