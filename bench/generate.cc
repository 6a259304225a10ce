// linnet bench generate: times whole images, sampling included. The limit, the shortest possible
// time per token, is the longer of two times: that of reading the weights once for the whole batch,
// divided by the batch, and that of a token's products with them. Both follow from the rates that
// simple loops reach in the same run. For softmax attention, the time to read the cached keys and
// values is added. With --stateless, the limit per token is the time to multiply all positions so
// far with the weights.
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/benchmarks.h"
#include "bench/generate.h"
#include "bench/products.h"
#include "bench/random_model.h"
#include "linnet/base/aligned.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/engine.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/kernels/narrow_linear.h"
#include "linnet/program/machine.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"
#include "linnet/runtime/model_ref.h"
#include "linnet/tasks/images/images.h"

namespace linnet::bench {
namespace {

struct GenerateBenchOptions : BenchOptions {
  std::string model, random;
  MixerSpec attention;
  bool stateless = false, whole = false, attention_given = false, lsh_given = false;
  std::vector<int> batches = {1};
  std::vector<std::string> precisions;
  cli::DeviceKind device = cli::DeviceKind::kCpu;
  CudaBenchOptions cuda;
};

// The largest allowed relative error. It is larger in bf16 and int8, where float and double
// occasionally round to different sides of a quantization boundary.
double Tolerance(Precision precision) {
  return precision == Precision::kInt8 ? 0.05 : precision == Precision::kBf16 ? 0.02 : 1e-4;
}

// Compares outputs of the first and the last sequence of a batch with the reference (ModelRef).
// Returns the relative error; throws RuntimeError if it is above Tolerance().
double Check(Engine& engine, const Checkpoint& checkpoint, size_t batch) {
  const ModelSpec& spec = checkpoint.spec();
  // Checks ten positions. Reformer, which has no recurrent form, is checked over two chunks
  // instead, so that positions also attend to the previous chunk.
  const bool steps = engine.model().steps();
  const auto length = static_cast<size_t>(
      std::min(spec.input.max_length, steps ? 10 : 2 * spec.stack.mixer().lsh_chunk));
  const size_t outputs = engine.output_size();
  std::vector<std::vector<int32_t>> tokens(batch);
  for (size_t i = 0; i < batch; ++i) {
    Philox rng(/*seed=*/2, /*stream=*/i);
    for (size_t t = 0; t < length; ++t) {
      tokens[i].push_back(
          static_cast<int32_t>(rng.Below(static_cast<uint32_t>(spec.input.vocabulary))));
    }
  }
  // The reference reads positions as the engine does: one by one, or all in one call.
  ModelRef ref(checkpoint, engine.model());
  const ModelRef::Rows first = ref.Outputs(tokens[0], steps ? 0 : length),
                       last = ref.Outputs(tokens[batch - 1], steps ? 0 : length);
  std::vector<float> out(batch * outputs);
  std::vector<double> errors;  // one per position
  const auto compare = [&](size_t t, const float* of_first, const float* of_last) {
    RelativeError error;
    for (size_t o = 0; o < outputs; ++o) {
      error.Add(of_first[o], first[t][o]);
      error.Add(of_last[o], last[t][o]);
    }
    errors.push_back(error.value());
  };
  if (steps) {
    State state = engine.NewState(batch);
    std::vector<int32_t> column(batch);
    for (size_t t = 0; t < length; ++t) {
      for (size_t i = 0; i < batch; ++i) column[i] = tokens[i][t];
      engine.Step(state, column, out);
      compare(t, out.data(), out.data() + (batch - 1) * outputs);
    }
  } else {
    std::vector<int32_t> rows;
    for (const auto& row : tokens) rows.insert(rows.end(), row.begin(), row.end());
    out.resize(batch * length * outputs);
    engine.Whole(batch, rows, length, out);
    for (size_t t = 0; t < length; ++t) {
      compare(t, &out[t * outputs], &out[((batch - 1) * length + t) * outputs]);
    }
  }
  std::sort(errors.begin(), errors.end());
  // Rounding may hash a position into another bucket. This changes the outputs of the position and
  // of all positions that attend to it. Therefore the median error counts for Reformer, and the
  // maximum for all others.
  const double error = steps ? errors.back() : errors[errors.size() / 2];
  if (!(error <= Tolerance(engine.model().precision()))) {
    throw RuntimeError("bench generate: outputs differ from the reference's by ", error,
                       " (allowed: ", Tolerance(engine.model().precision()), "); not timed");
  }
  return error;
}

// Calls step(t) for each of `length` positions. Returns the mean seconds per position in each
// eighth of the sequence.
std::vector<double> ByEighths(size_t length, const std::function<void(size_t)>& step) {
  std::vector<double> mean;
  const size_t parts = std::min<size_t>(8, length);
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = length * part / parts, end = length * (part + 1) / parts;
    const Stopwatch watch;
    for (size_t t = begin; t < end; ++t) step(t);
    mean.push_back(watch.Seconds() / static_cast<double>(end - begin));
  }
  return mean;
}

// The time of a batch of images if every token reads all earlier tokens again. It is integrated
// over a few lengths by the trapezoidal rule, since timing all lengths would take hours.
struct Stateless {
  double seconds = 0;           // for the batch
  std::vector<size_t> lengths;  // the timed lengths, in positions
  std::vector<double> each;     // seconds of one call at each of `lengths`
};
Stateless MeasureStateless(Engine& engine, size_t pixels, size_t batch) {
  constexpr size_t kLengths = 9;
  const auto vocabulary = static_cast<size_t>(engine.model().spec().input.vocabulary);
  State state = engine.model().steps() ? engine.NewState(batch) : State();
  std::vector<float> outputs(batch * engine.output_size());
  Stateless result;
  for (size_t i = 0; i < kLengths; ++i) {
    const size_t length = std::max<size_t>(1, (pixels - 1) * i / (kLengths - 1));
    std::vector<int32_t> tokens(batch * length);
    Philox rng(/*seed=*/3);  // random: equal tokens would all get the same hash
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(rng.Below(static_cast<uint32_t>(vocabulary)));
    }
    const auto once = [&] {
      if (!engine.model().steps()) return engine.Whole(batch, tokens, length, outputs);
      state.Reset();
      engine.Prefix(state, tokens, length, outputs);
    };
    const Stopwatch watch;
    once();
    constexpr double kLongEnough = 0.5;  // seconds; a longer call is timed only once
    const double first = watch.Seconds();
    result.lengths.push_back(length);
    result.each.push_back(first > kLongEnough && i > 0 ? first : MedianSeconds({once}, 0.3)[0]);
    if (i == 0) continue;
    const double width = static_cast<double>(length - result.lengths[i - 1]);
    result.seconds += width * (result.each[i] + result.each[i - 1]) / 2;
  }
  // The time is a sum over all lengths. The trapezoidal rule gives the first and the last length
  // only half their weight, so this adds the other half.
  result.seconds += (result.each.front() + result.each.back()) / 2;
  return result;
}

// Seconds for a batch of images without a state, timed at every length. MeasureStateless()
// approximates this number.
double MeasureWhole(Engine& engine, size_t pixels, size_t batch) {
  const Stopwatch watch;
  if (!engine.model().steps()) {
    SampleImages(engine, batch, {.seed = 1, .batch = batch});
    return watch.Seconds();
  }
  State state = engine.NewState(batch);
  std::vector<float> outputs(batch * engine.output_size());
  std::vector<int32_t> tokens;
  for (size_t length = 1; length < pixels; ++length) {
    tokens.assign(batch * length, engine.model().spec().input.vocabulary / 2);
    state.Reset();
    engine.Prefix(state, tokens, length, outputs);
  }
  return watch.Seconds();
}

// Peak memory for a batch of images, in bytes, with scratch but without weights: after the first
// token, and after the last one.
struct OverAnImage {
  int64_t first = 0, last = 0;
};
OverAnImage MeasureMemory(const std::shared_ptr<const Model>& model, size_t pixels, size_t batch,
                          const GenerateBenchOptions& options) {
  Engine engine(model, {.threads = options.threads});  // a new engine has no scratch yet
  std::vector<float> outputs(batch * engine.output_size());
  std::vector<int32_t> tokens(batch * pixels, model->spec().input.vocabulary / 2);
  ResetPeakMemory();
  const int64_t before = PeakMemory();
  OverAnImage memory;
  if (options.stateless) {
    for (const size_t length : {size_t{1}, pixels - 1}) {
      engine.Whole(batch, std::span(tokens).first(batch * length), length, outputs);
      (length == 1 ? memory.first : memory.last) = PeakMemory() - before;
    }
    return memory;
  }
  State state = engine.NewState(batch);
  for (size_t t = 0; t + 1 < pixels; ++t) {
    engine.Step(state, std::span(tokens).first(batch), outputs);
    if (t == 0) memory.first = PeakMemory() - before;
  }
  memory.last = PeakMemory() - before;
  return memory;
}

// The time of an image, and the machine's rates, from which Limit() computes the limit.
struct ImageTimes {
  double image = 0;  // seconds per image
  MachineRates rates = {};
  int64_t grown = 0;         // growth of the peak memory during the measurement, in bytes
  Stateless stateless = {};  // with --stateless
};
ImageTimes MeasureImages(Engine& engine, size_t pixels, size_t batch,
                         const GenerateBenchOptions& options) {
  const AlignedBuffer<float> weights(engine.model().weight_bytes() / sizeof(float));
  Products products(engine.model().precision(), static_cast<size_t>(engine.threads()));
  const auto read = [&] {
    engine.pool().For(weights.size(), [&](size_t begin, size_t end) {
      kernels::ReadFloats(weights.data() + begin, end - begin);
    });
  };
  const auto multiply = [&] { products.Run(engine.pool()); };
  const SampleOptions sample{.seed = 1, .batch = batch};
  if (!options.stateless) SampleImages(engine, batch, sample);  // warm-up
  ResetPeakMemory();
  const int64_t before = PeakMemory();
  ImageTimes times;
  std::vector<double> seconds, reads, rates;
  const Stopwatch whole;
  do {
    // Measures rates and images in turns, so that other load on the machine affects both.
    const std::vector<double> limits = MedianSeconds({read, multiply}, 0.1);
    reads.push_back(limits[0]), rates.push_back(products.Operations() / limits[1]);
    if (options.stateless) {
      times.stateless = MeasureStateless(engine, pixels, batch);
      seconds.push_back(times.stateless.seconds);
      break;
    }
    const Stopwatch watch;
    SampleImages(engine, batch, sample);
    seconds.push_back(watch.Seconds());
  } while (seconds.size() < 3 || whole.Seconds() < options.seconds);
  times.grown = PeakMemory() - before;
  times.image = Median(seconds) / static_cast<double>(batch);
  times.rates = {Median(reads), Median(rates)};
  return times;
}

// The limit: the fewest seconds per image that the machine's rates allow.
double Limit(const Model& model, const ImageTimes& times, size_t pixels, size_t batch,
             bool stateless) {
  const double steps = static_cast<double>(pixels - 1);
  if (stateless) {
    return steps * (steps + 1) / 2 * ProductOperations(model.spec()) / times.rates.product_rate;
  }
  // A step reads half of the full cache on average.
  return steps * TokenLimit(model, times.rates, batch, /*cached=*/0.5);
}

// Microseconds per step, without sampling, in each eighth of an image.
std::vector<double> MeasureSteps(Engine& engine, size_t pixels, size_t batch) {
  State state = engine.NewState(batch);
  std::vector<float> outputs(batch * engine.output_size());
  const std::vector<int32_t> token(batch, engine.model().spec().input.vocabulary / 2);
  std::vector<std::vector<double>> passes;  // three, since other load may slow down one
  for (int pass = 0; pass < 3; ++pass) {
    state.Reset();
    passes.push_back(ByEighths(pixels - 1, [&](size_t) { engine.Step(state, token, outputs); }));
  }
  std::vector<double> eighths;
  for (size_t i = 0; i < passes[0].size(); ++i) {
    eighths.push_back(1e6 * Median({passes[0][i], passes[1][i], passes[2][i]}));
  }
  return eighths;
}

std::vector<Record> Measure(const Checkpoint& checkpoint, const std::string& name,
                            Precision precision, size_t batch,
                            const GenerateBenchOptions& options) {
  const auto model = Model::FromCheckpoint(checkpoint, {precision});
  const ModelSpec& spec = model->spec();
  const auto pixels = static_cast<size_t>(spec.input.max_length) + 1;
  const OverAnImage memory = MeasureMemory(model, pixels, batch, options);
  Engine engine(model, {.threads = options.threads});
  const double error = Check(engine, checkpoint, batch);
  const ImageTimes times = MeasureImages(engine, pixels, batch, options);
  const double limit = Limit(*model, times, pixels, batch, options.stateless);
  nlohmann::ordered_json identity = {
      {"model", name},
      {"attention", spec.stack.mixer().kind},
      {"lsh_rounds", model->steps() ? 0 : spec.stack.mixer().lsh_rounds},
      {"stateless", options.stateless},
      {"N", pixels - (spec.input.whole_pixels ? 1 : 0)},
      {"batch", batch},
      {"precision", PrecisionName(precision)},
      {"threads", engine.threads()},
      {"isa", kernels::ActiveIsa()},
      {"dot_unit", kernels::DotUnitName(kernels::ActiveDotUnit())},
      {"images_per_second", 1 / times.image},
      {"us_per_token", 1e6 * times.image / static_cast<double>(pixels - 1)},
      {"weight_bytes", model->weight_bytes()},
      {"read_us", 1e6 * times.rates.read_seconds},
      {"product_gops", times.rates.product_rate / 1e9},
      {"state_bytes", StateBytes(spec, precision)},
      {"memory_growth_bytes", times.grown},
      {"memory_first_bytes", memory.first},
      {"memory_last_bytes", memory.last},
      {"machine", cli::MachineName()},
      {"date", cli::Today()},
      {"error", error}};
  std::vector<double> eighths;
  if (options.stateless) {
    std::vector<double> microseconds = times.stateless.each;
    for (double& time : microseconds) time *= 1e6;
    identity["lengths"] = times.stateless.lengths;
    identity["us_at_lengths"] = microseconds;
    if (options.whole) {
      identity["whole_ms_per_image"] =
          1e3 * MeasureWhole(engine, pixels, batch) / static_cast<double>(batch);
    }
  } else {
    eighths = MeasureSteps(engine, pixels, batch);
    identity["us_by_eighths"] = eighths;
  }
  const std::string label = StrCat(
      name, StateKindOf(*model) == StateKind::kCache ? "  softmax" : "",
      model->steps() ? "" : StrCat("  LSH-", spec.stack.mixer().lsh_rounds),
      options.stateless ? "  stateless" : "", "  ", PrecisionName(precision), "  batch ", batch);
  std::vector<Record> records = {{.name = "generate",
                                  .label = label,
                                  .value = 1e3 * times.image,
                                  .unit = "ms/image",
                                  .limit = 1e3 * limit,
                                  .identity = identity}};
  if (!eighths.empty()) {
    records.push_back({.name = "generate/flatness",
                       .label = label + "  (time of the last eighth of the steps / of the first)",
                       .value = eighths.back() / eighths.front(),
                       .unit = "x",
                       .limit = 1,
                       .identity = identity});
  }
  return records;
}

void Run(const GenerateBenchOptions& options) {
  if (options.model.empty() == options.random.empty()) {
    throw InputError("give a MODEL, or --random mnist or cifar10");
  }
  if (options.random.empty() && options.attention_given) {
    throw InputError("--attention needs --random; a MODEL has its own attention");
  }
  if (options.lsh_given &&
      (options.random.empty() || FindMixer(options.attention.kind).recurrent)) {
    throw InputError("--lsh-rounds and --lsh-chunk need --random and --attention reformer");
  }
  const Checkpoint checkpoint = options.model.empty()
                                    ? RandomModel(RandomSpec(options.random, options.attention))
                                    : Checkpoint::Open(options.model);
  const std::string name = options.model.empty() ? options.random + " (random)" : options.model;
  if (!FindMixer(checkpoint.spec().stack.mixer().kind).recurrent && !options.stateless) {
    throw InputError(name, ": its attention has no recurrent form; time it with --stateless");
  }
  std::vector<Precision> precisions;
  for (const std::string& p : options.precisions) precisions.push_back(ParsePrecision(p));
  if (precisions.empty()) precisions = {checkpoint.precision()};
  if (!checkpoint.spec().image()) {
    throw InputError(checkpoint.path(), ": a model of the task '", checkpoint.spec().task,
                     "'; give a model of images");
  }
  if (options.device == cli::DeviceKind::kCuda && (options.stateless || options.whole)) {
    throw InputError("--stateless needs --device cpu");
  }
  std::vector<Record> records;
  for (const int batch : options.batches) {
    for (const Precision precision : precisions) {
      CudaBenchOptions cuda = options.cuda;
      cuda.seconds = options.seconds;
      const auto measured =
          options.device == cli::DeviceKind::kCuda
              ? MeasureGenerationOnCuda(checkpoint, name, precision, static_cast<size_t>(batch),
                                        cuda)
              : Measure(checkpoint, name, precision, static_cast<size_t>(batch), options);
      records.insert(records.end(), measured.begin(), measured.end());
    }
  }
  PrintRecords(records, options.json);
  if (options.json) return;
  std::cout << "\n";
  for (const Record& record : records) {
    if (record.name != "generate") continue;
    const auto number = [&](const char* field) { return record.identity[field].get<double>(); };
    if (options.device == cli::DeviceKind::kCuda) {
      std::cout << record.label << ": " << FormatCount(number("images_per_second")) << " images/s, "
                << FormatCount(number("us_per_step"))
                << " us per step (at the GPU's rates, the bytes of a step take "
                << FormatCount(number("step_bytes_us")) << " us, and its products "
                << FormatCount(number("step_products_us")) << " us)\n";
      if (!record.identity.contains("kernels_us")) continue;
      for (const auto& [kernel, us] : record.identity["kernels_us"].items()) {
        std::cout << "  " << FormatCount(us.get<double>()) << " us  " << kernel << "\n";
      }
      continue;
    }
    std::cout << record.label << ": " << FormatCount(number("images_per_second")) << " images/s, "
              << FormatCount(number("us_per_token")) << " us per token; "
              << FormatBytes(number("weight_bytes")) << " of weights, read in "
              << FormatCount(number("read_us")) << " us; products at "
              << FormatCount(number("product_gops")) << " GOP/s\n";
  }
}

}  // namespace

void AddGenerate(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "generate",
      "Time the generation of images, sampling included, by batch size and precision",
      R"(Outputs are checked against a double-precision reference. The limit of a token is the
larger of two times: reading the weights once for the whole batch, and multiplying with them once
per sequence. With softmax attention, reading the cached keys and values is added. With --stateless,
the limit is the time of the products for all tokens so far. Simple loops measure the machine's
reading and multiply-add rates in the same run, so on a noisy machine a time may fall below its
limit.)",
      "  linnet bench generate models/digits.safetensors\n"
      "  linnet bench generate --random mnist --batch 1,64 --precision f32,bf16,int8\n"
      "  linnet bench generate --random cifar10 --json\n"
      "  linnet bench generate --random mnist --batch 1,10000 --device cuda --kernels\n"
      "  linnet bench generate --random mnist --attention full --stateless\n"
      "  linnet bench generate --random mnist --attention reformer --lsh-rounds 1 --lsh-chunk 29 "
      "--stateless\n");
  auto options = std::make_shared<GenerateBenchOptions>();
  cli::AddOption(verb, "MODEL", options->model, "", "An image model");
  cli::AddOption(verb, "--random", options->random, "NAME",
                 "The paper's model of mnist or cifar10 with random weights, in place of MODEL",
                 CLI::IsMember({"mnist", "cifar10"}));
  CLI::Option* attention =
      cli::AddOption(verb, "--attention", options->attention.kind, "KIND",
                     "Attention of the random model: causal-linear, full (softmax, with a cache of "
                     "keys and values), or reformer, which needs --stateless",
                     CLI::IsMember({"causal-linear", "full", "reformer"}));
  CLI::Option* rounds = cli::AddOption(verb, "--lsh-rounds", options->attention.lsh_rounds, "N",
                                       "Hash rounds of the reformer", cli::Between(1, 64));
  CLI::Option* chunk =
      cli::AddOption(verb, "--lsh-chunk", options->attention.lsh_chunk, "N",
                     "Chunk size of the reformer, in positions", cli::Between(1, 65536));
  verb->add_flag(
      "--stateless", options->stateless,
      "Recompute all previous tokens for each new one, as a transformer without a state does; "
      "timed at nine prefix lengths, from which the time of an image is interpolated (ignores "
      "--seconds)");
  verb->add_flag(
          "--whole", options->whole,
          "With --stateless: also time every token of an image, to check the interpolated time")
      ->needs("--stateless");
  cli::AddListOption(verb, "--batch", options->batches, "N", "Batch sizes, for example 1,64",
                     cli::Between(1, 1'000'000));
  cli::AddListOption(verb, "--precision", options->precisions, "NAMES",
                     "One or more of f32, bf16 and int8 (default: the file's)");
  cli::AddDeviceOption(verb, options->device);
  cli::AddOption(verb, "--lanes", options->cuda.lanes, "N",
                 "With --device cuda: number of parts of the batch that step concurrently",
                 cli::Between(1, 8));
  verb->add_flag("--kernels", options->cuda.profile,
                 "With --device cuda: also time each kernel of a step");
  AddBenchOptions(verb, *options);
  verb->callback([=] {
    options->attention_given = attention->count() > 0;
    options->lsh_given = rounds->count() + chunk->count() > 0;
    Run(*options);
  });
}

}  // namespace linnet::bench
