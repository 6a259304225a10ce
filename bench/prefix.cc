// linnet bench prefix: times reading a known prefix in one call, against reading the same tokens
// step by step.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/benchmarks.h"
#include "bench/products.h"
#include "bench/random_model.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"

namespace linnet::bench {
namespace {

struct PrefixBenchOptions : BenchOptions {
  int length = 10'000;
  std::vector<std::string> precisions = {"f32", "bf16", "int8"};
  std::vector<std::string> languages;  // mixers of random language models; empty: the paper's model
};

Record Measure(const std::string& name, const Checkpoint& checkpoint, Precision precision,
               const PrefixBenchOptions& options) {
  const auto model = Model::FromCheckpoint(checkpoint, {precision});
  Engine engine(model, {.threads = options.threads});
  const auto length = static_cast<size_t>(options.length);
  Philox rng(/*seed=*/4, /*stream=*/0);
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.Below(static_cast<uint32_t>(model->spec().input.vocabulary)));
  }
  State state = engine.NewState(1);
  std::vector<float> at_once(engine.output_size()), stepped = at_once;

  const Stopwatch steps;
  for (size_t t = 0; t < length; ++t) {
    engine.Step(state, std::span(tokens).subspan(t, 1), stepped);
  }
  const double in_steps = steps.Seconds();
  const auto prefix = [&] {
    state.Reset();
    engine.Prefix(state, tokens, length, at_once);
  };
  prefix();
  // Compares the single call with the steps, and not with the double-precision reference, which
  // would take hours at this length. Tests compare both with the reference at short lengths.
  RelativeError error;
  for (size_t i = 0; i < at_once.size(); ++i) error.Add(at_once[i], stepped[i]);
  const double allowed = precision == Precision::kF32 ? 1e-3 : 0.1;
  if (!(error.value() <= allowed)) {
    throw RuntimeError("bench prefix: the prefix differs from the steps by ", error.value(),
                       " (allowed: ", allowed, "); not timed");
  }
  Products products(precision, static_cast<size_t>(engine.threads()));
  const auto multiply = [&] { products.Run(engine.pool()); };
  const std::vector<double> median = MedianSeconds({prefix, multiply}, options.seconds);
  const double seconds = median[0], rate = products.Operations() / median[1];
  // The model's head runs only at the last token.
  const ModelSpec& spec = model->spec();
  const double head = 2.0 * spec.stack.d_model * spec.OutputSize();
  const double operations = (ProductOperations(spec) - head) * options.length + head;
  return {.name = "prefix",
          .label = StrCat(name, "  ", PrecisionName(precision), "  ", length,
                          length == 1 ? " token; in steps " : " tokens; in steps ",
                          FormatCount(1e3 * in_steps), " ms"),
          .value = 1e3 * seconds,
          .unit = "ms",
          .limit = 1e3 * operations / rate,
          .identity = {{"model", name},
                       {"N", length},
                       {"batch", 1},
                       {"layers", spec.stack.layers()},
                       {"d_model", spec.stack.d_model},
                       {"tokens_a_second", options.length / seconds},
                       {"precision", PrecisionName(precision)},
                       {"threads", engine.threads()},
                       {"isa", kernels::ActiveIsa()},
                       {"dot_unit", kernels::DotUnitName(kernels::ActiveDotUnit())},
                       {"steps_ms", 1e3 * in_steps},
                       {"product_gops", rate / 1e9},
                       {"speedup", in_steps / seconds},
                       {"error", error.value()}}};
}

void Run(const PrefixBenchOptions& options) {
  std::vector<Record> records;
  const auto measure = [&](const std::string& name, const ModelSpec& spec) {
    const Checkpoint checkpoint = RandomModel(spec);
    for (const std::string& precision : options.precisions) {
      records.push_back(Measure(name, checkpoint, ParsePrecision(precision), options));
    }
  };
  for (const std::string& kind : options.languages) measure(kind, RandomLanguageSpec(kind));
  if (options.languages.empty()) {
    // The layers of the MNIST model as a model of tokens, since an image model has a fixed length.
    ModelSpec spec = RandomSpec("mnist");
    spec.task = "copy", spec.part = std::monostate(), spec.head.kind = HeadKind::kCategorical,
    spec.head.classes = spec.input.vocabulary = 128;
    spec.input.max_length = options.length;
    measure("paper", spec);
  }
  PrintRecords(records, options.json);
  if (options.json) return;
  std::cout << "\n";
  for (const Record& record : records) {
    std::cout << record.identity["model"].get<std::string>() << ", "
              << record.identity["precision"].get<std::string>() << ": "
              << FormatCount(record.identity["tokens_a_second"].get<double>())
              << " tokens per second; the prefix is " << record.identity["speedup"].get<double>()
              << " times faster than the steps\n";
  }
}

}  // namespace

void AddPrefix(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "prefix", "Time a long prefix in one call and in single steps",
      R"(Times models with random weights at batch 1: the paper's MNIST model, or language models of
12 layers of width 768. The outputs of one call and of single steps are compared first. The limit is
the time of the products with the weights, at a rate that is measured in the same run.)",
      "  linnet bench prefix\n"
      "  linnet bench prefix --length 2000 --precision bf16 --json\n"
      "  linnet bench prefix --language gated-delta-net,rwkv7 --length 512\n");
  auto options = std::make_shared<PrefixBenchOptions>();
  cli::AddOption(verb, "--length", options->length, "N", "Length of the prefix, in tokens",
                 cli::Between(1, 1'000'000));
  cli::AddListOption(verb, "--precision", options->precisions, "NAMES",
                     "One or more of f32, bf16 and int8");
  cli::AddListOption(verb, "--language", options->languages, "KINDS",
                     "Instead of the paper's model, time language models with these mixers: "
                     "gated-delta-net, rwkv7, ...");
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::bench
