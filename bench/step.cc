// linnet bench step: times one recurrent step at batch 1. The limit is the time to read as many
// bytes as the weights have, with the same threads.
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
#include "bench/random_model.h"
#include "linnet/base/aligned.h"
#include "linnet/base/progress.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/model/checkpoint.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"

namespace linnet::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShipped = "models/digits.safetensors";

struct StepBenchOptions : BenchOptions {
  std::vector<std::string> models;
  std::vector<std::string> languages;   // kinds of random language models
  std::vector<std::string> precisions;  // none: a file's own, and all for language models
  size_t from = 0;                      // the first position that is timed
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

// Compares the outputs of single steps with those of Prefix(). Throws RuntimeError if they differ,
// InputError if the model has no recurrent form.
void Check(Engine& engine, const std::string& name) {
  if (!engine.model().steps()) {
    throw InputError(name, ": '", engine.model().spec().stack.mixer().kind,
                     "' has no recurrent form: each step reads all tokens again");
  }
  const size_t length = static_cast<size_t>(std::min(engine.model().spec().input.max_length, 100));
  const size_t outputs = engine.output_size();
  const std::vector<int32_t> tokens = RandomTokens(engine.model().spec(), length);
  std::vector<float> whole(length * outputs), one(outputs);
  State state = engine.NewState(1);
  engine.Prefix(state, tokens, length, whole);
  state.Reset();
  RelativeError error;
  for (size_t t = 0; t < length; ++t) {
    engine.Step(state, std::span(tokens).subspan(t, 1), one);
    for (size_t i = 0; i < outputs; ++i) error.Add(one[i], whole[t * outputs + i]);
  }
  const double allowed = engine.model().precision() == Precision::kF32 ? 1e-4 : 0.1;
  if (!(error.value() <= allowed)) {
    throw RuntimeError("bench step: ", name, ": stepping differs from the whole prefix by ",
                       error.value(), " (allowed: ", allowed, "); not timed");
  }
}

struct StepSeconds {
  double step = 0, read = 0;  // of a step, and of reading the weights
};

// Medians over laps: the steps from position options.from to the end, or the first of them if they
// take longer than a fifth of the time to measure. Each lap also reads the weights, several times
// if they are small.
StepSeconds Time(Engine& engine, std::span<const int32_t> tokens, const StepBenchOptions& options) {
  std::vector<float> outputs(engine.output_size());
  State begin = engine.NewState(1);
  if (options.from > 0) {
    engine.Prefix(begin, tokens.first(options.from), options.from, outputs);
  }
  const AlignedBuffer<float> weights(engine.model().weight_bytes() / sizeof(float));
  std::vector<double> steps, reads;
  const Stopwatch all;
  constexpr size_t kLeastLaps = 5;
  while (steps.size() < kLeastLaps || all.Seconds() < options.seconds) {
    State state = begin.Clone();
    const Stopwatch lap;
    size_t position = options.from;
    do {
      engine.Step(state, tokens.subspan(position++, 1), outputs);
    } while (position < tokens.size() && lap.Seconds() < options.seconds / 5);
    steps.push_back(lap.Seconds() / static_cast<double>(position - options.from));
    const auto read = [&] {
      engine.pool().For(weights.size(), [&](size_t first, size_t end) {
        kernels::ReadFloats(weights.data() + first, end - first);
      });
    };
    read();                             // brings small weights into the caches, as steps do
    constexpr double kReading = 0.002;  // seconds
    const Stopwatch reading;
    int count = 0;
    do {
      read();
      ++count;
    } while (reading.Seconds() < kReading);
    reads.push_back(reading.Seconds() / count);
  }
  return {Median(steps), Median(reads)};
}

Record Measure(const std::shared_ptr<const Model>& model, const std::string& name,
               const StepBenchOptions& options) {
  const ModelSpec& spec = model->spec();
  const size_t length = static_cast<size_t>(spec.input.max_length);
  if (options.from >= length) {
    throw InputError("--from ", options.from, ": ", name, " has only ", length, " positions");
  }
  Engine engine(model, {.threads = options.threads});
  Check(engine, name);
  const StepSeconds seconds = Time(engine, RandomTokens(spec, length), options);
  Record record = {.name = "step",
                   .label = name,
                   .value = 1e6 * seconds.step,
                   .unit = "us/token",
                   .limit = 1e6 * seconds.read,
                   .identity = {{"model", name},
                                {"layers", spec.stack.layers()},
                                {"d_model", spec.stack.d_model},
                                {"N", length},
                                {"batch", 1},
                                {"threads", engine.threads()},
                                {"precision", PrecisionName(model->precision())},
                                {"isa", kernels::ActiveIsa()},
                                {"weight_bytes", model->weight_bytes()},
                                {"tokens_a_second", 1 / seconds.step}}};
  if (options.from > 0) record.identity["from"] = options.from;
  return record;
}

void Run(const StepBenchOptions& options) {
  std::vector<Precision> precisions;
  for (const std::string& name : options.precisions) precisions.push_back(ParsePrecision(name));
  std::vector<Record> records;
  for (const std::string& path : options.models) {
    if (precisions.empty()) records.push_back(Measure(Model::Open(path), path, options));
    for (const Precision precision : precisions) {
      records.push_back(Measure(Model::Open(path, {precision}),
                                StrCat(path, "  ", PrecisionName(precision)), options));
    }
  }
  if (precisions.empty()) precisions = {Precision::kF32, Precision::kBf16, Precision::kInt8};
  for (const std::string& kind : options.languages) {
    const Checkpoint checkpoint = RandomModel(RandomLanguageSpec(kind));
    for (const Precision precision : precisions) {
      records.push_back(Measure(Model::FromCheckpoint(checkpoint, {precision}),
                                StrCat(kind, "  ", PrecisionName(precision)), options));
    }
  }
  if (options.models.empty() && options.languages.empty()) {
    const std::string shipped = FindShippedModel();
    if (shipped.empty()) {
      std::cerr << "linnet: no " << kShipped << " here; timing only a model of the paper's size\n";
    } else {
      records.push_back(Measure(Model::Open(shipped), shipped, options));
    }
    records.push_back(Measure(Model::FromCheckpoint(RandomModel(RandomSpec("mnist"))),
                              "paper (8 x 256, random weights)", options));
  }
  PrintRecords(records, options.json);
}

}  // namespace

void AddStep(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "step", "Time one recurrent step at batch 1",
      "The limit is the time to read the weights once.",
      "  linnet bench step\n"
      "  linnet bench step --language gated-delta-net,rwkv7 --precision bf16\n"
      "  linnet bench step models/digits.safetensors --threads 1 --json\n"
      "  linnet bench step models/digits-softmax.safetensors --precision int8 --from 733\n");
  auto options = std::make_shared<StepBenchOptions>();
  cli::AddOption(verb, "MODEL", options->models, "",
                 "Models to time (default: the shipped digits model and the paper's MNIST model)");
  cli::AddListOption(
      verb, "--language", options->languages, "KINDS",
      "In place of MODEL: time language models with these mixers (12 layers of width 768, "
      "random weights): gated-delta-net, rwkv7, ...");
  cli::AddListOption(verb, "--precision", options->precisions, "NAMES",
                     "One or more of f32, bf16 and int8 (default: a file's own; all with "
                     "--language)");
  cli::AddOption(verb, "--from", options->from, "N",
                 "Read N tokens first, and time only the steps after them; N is below the model's "
                 "length",
                 cli::Between(0, 1e9));
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::bench
