// linnet bench generate: whole images, sampling included. The limit is what no way of running the
// model can do without: reading its weights once a token, or multiplying with them at the rate that
// this machine's products reach, whichever takes longer.
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/error.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/rng.h"
#include "linnet/base/units.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/random_model.h"
#include "linnet/cli/verbs.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/linear.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/kernels/narrow_linear.h"
#include "linnet/runtime/engine.h"
#include "linnet/runtime/images.h"
#include "linnet/runtime/model_ref.h"

namespace linnet::cli {
namespace {

struct Options : BenchOptions {
  std::string model, random;
  std::vector<int> batches = {1};
  std::vector<std::string> precisions;
};

// Rounding in double and in single precision now and then falls on two sides of a boundary.
double Tolerance(Precision precision) {
  return precision == Precision::kInt8 ? 0.05 : precision == Precision::kBf16 ? 0.02 : 1e-4;
}

// Steps of the first and the last sequence of a batch must give what the plain network gives.
double Check(Engine& engine, const Checkpoint& checkpoint, size_t batch) {
  const ModelSpec& spec = checkpoint.spec();
  const size_t length = static_cast<size_t>(std::min(spec.max_length, 10));
  const size_t outputs = engine.output_size();
  std::vector<std::vector<int32_t>> tokens(batch);
  for (size_t i = 0; i < batch; ++i) {
    Philox rng(/*seed=*/2, /*stream=*/i);
    for (size_t t = 0; t < length; ++t) {
      tokens[i].push_back(static_cast<int32_t>(rng.Below(static_cast<uint32_t>(spec.vocabulary))));
    }
  }
  ModelRef ref(checkpoint, engine.model());
  const ModelRef::Rows first = ref.Outputs(tokens[0]), last = ref.Outputs(tokens[batch - 1]);
  State state = engine.NewState(batch);
  std::vector<float> out(batch * outputs);
  std::vector<int32_t> column(batch);
  RelativeError error;
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < batch; ++i) column[i] = tokens[i][t];
    engine.Step(state, column, out);
    for (size_t o = 0; o < outputs; ++o) {
      error.Add(out[o], first[t][o]);
      error.Add(out[(batch - 1) * outputs + o], last[t][o]);
    }
  }
  if (!(error.value() <= Tolerance(engine.model().precision()))) {
    throw RuntimeError("bench generate: outputs differ from the plain network's by ", error.value(),
                       " (allowed: ", Tolerance(engine.model().precision()), "); not timed");
  }
  return error.value();
}

// Operations a second of all threads in products of the model's kind: 128 rows each by 256 x 1024.
class Products {
 public:
  Products(Precision precision, size_t threads) : precision_(precision), workers_(threads) {
    const std::vector<float> weight(kIn * kOut, 0.5f);
    const std::vector<int8_t> value(kIn * kOut, 1);
    const std::vector<float> scale(kOut, 1.0f), x(kRows * kIn, 1.0f);
    const bool narrow = precision != Precision::kF32;
    const kernels::NarrowType type =
        precision == Precision::kInt8 ? kernels::NarrowType::kInt8 : kernels::NarrowType::kBf16;
    for (Worker& worker : workers_) {
      worker.packed =
          AlignedBuffer<std::byte>(narrow ? kernels::PackedNarrowSize(type, kIn, kOut)
                                          : kernels::PackedLinearSize(kIn, kOut) * sizeof(float));
      worker.y = AlignedBuffer<float>(kRows * kOut);
      worker.x = AlignedBuffer<std::byte>(narrow ? kernels::NarrowRowsSize(type, kRows, kIn)
                                                 : kRows * kIn * sizeof(float));
      if (precision == Precision::kInt8) {
        kernels::PackInt8(kIn, kOut, value.data(), kIn, scale.data(), nullptr,
                          worker.packed.data());
      } else if (narrow) {
        kernels::PackBf16(kIn, kOut, weight.data(), kIn, nullptr, worker.packed.data());
      } else {
        kernels::PackLinear(kIn, kOut, weight.data(), kIn, nullptr,
                            reinterpret_cast<float*>(worker.packed.data()));
      }
      if (narrow) {
        worker.rows = kernels::TakeNarrowRows(type, kRows, kIn, worker.x.data());
        kernels::NarrowActivations(kRows, kIn, x.data(), kIn, nullptr, worker.rows);
      }
    }
  }

  void Run(ThreadPool& pool) {
    pool.Run([&](int w) {
      Worker& worker = workers_[static_cast<size_t>(w)];
      if (precision_ == Precision::kF32) {
        kernels::Linear(kRows, kIn, kOut, reinterpret_cast<const float*>(worker.x.data()), kIn,
                        reinterpret_cast<const float*>(worker.packed.data()),
                        kernels::LinearMode::kOverwrite, worker.y.data(), kOut);
      } else {
        kernels::NarrowLinear(kRows, kIn, kOut, worker.rows, worker.packed.data(),
                              kernels::LinearMode::kOverwrite, worker.y.data(), kOut);
      }
    });
  }
  double Operations() const {
    return 2.0 * static_cast<double>(kRows * kIn * kOut * workers_.size());
  }

 private:
  static constexpr size_t kRows = 128, kIn = 256, kOut = 1024;
  struct Worker {
    AlignedBuffer<std::byte> packed, x;
    AlignedBuffer<float> y;
    kernels::NarrowRows rows;
  };
  Precision precision_;
  std::vector<Worker> workers_;
};

// Operations of a token's products.
double Operations(const ModelSpec& spec) {
  const double d = spec.d_model, heads = spec.heads;
  const double layer =
      d * heads * (2.0 * spec.query_dim + 2.0 * spec.value_dim) + 2 * d * spec.d_ff;
  return 2 * (spec.layers * layer + d * spec.OutputSize());
}

std::vector<Record> Measure(const Checkpoint& checkpoint, const std::string& name,
                            Precision precision, size_t batch, const Options& options) {
  const auto model = Model::FromCheckpoint(checkpoint, {precision});
  const ModelSpec& spec = model->spec();
  Engine engine(model, {.threads = options.threads});
  const double error = Check(engine, checkpoint, batch);

  const auto pixels = static_cast<size_t>(spec.max_length) + 1;
  const AlignedBuffer<float> weights(model->weight_bytes() / sizeof(float));
  Products products(precision, static_cast<size_t>(engine.pool().size()));
  const auto read = [&] {
    engine.pool().For(weights.size(), [&](size_t begin, size_t end) {
      kernels::ReadFloats(weights.data() + begin, end - begin);
    });
  };
  const auto multiply = [&] { products.Run(engine.pool()); };
  SampleOptions sample{.seed = 1, .batch = batch};
  SampleImages(engine, batch, sample);  // what is made once is there
  ResetPeakMemory();
  const int64_t before = PeakMemory();
  std::vector<double> seconds, reads, rates;
  const Stopwatch whole;
  do {
    // In turns, so that a slow spell of the machine falls on all.
    const std::vector<double> limits = MedianSeconds({read, multiply}, 0.1);
    reads.push_back(limits[0]), rates.push_back(products.Operations() / limits[1]);
    const Stopwatch watch;
    SampleImages(engine, batch, sample);
    seconds.push_back(watch.Seconds());
  } while (seconds.size() < 3 || whole.Seconds() < options.seconds);
  const int64_t grown = PeakMemory() - before;
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  const double image = median(seconds) / static_cast<double>(batch);
  const double rate = median(rates), once = median(reads);
  const double multiplied = Operations(spec) / rate;  // a token of one sequence
  const double limit =
      static_cast<double>(pixels - 1) * std::max(once / static_cast<double>(batch), multiplied);

  // Steps alone: those of the first eighth of the sequence, and of the last.
  State state = engine.NewState(batch);
  std::vector<float> outputs(batch * engine.output_size());
  const std::vector<int32_t> token(batch, spec.vocabulary / 2);
  const size_t eighth = std::max<size_t>((pixels - 1) / 8, 1);
  double early = 0, late = 0;
  for (size_t t = 0; t + 1 < pixels; ++t) {
    const Stopwatch watch;
    engine.Step(state, token, outputs);
    if (t < eighth) early += watch.Seconds();
    if (t + 1 + eighth >= pixels) late += watch.Seconds();
  }

  const nlohmann::ordered_json identity = {
      {"model", name},
      {"N", pixels},
      {"batch", batch},
      {"precision", PrecisionName(precision)},
      {"threads", engine.pool().size()},
      {"isa", kernels::ActiveIsa()},
      {"dot_unit", kernels::DotUnitName(kernels::ActiveDotUnit())},
      {"images_per_second", 1 / image},
      {"us_per_token", 1e6 * image / static_cast<double>(pixels - 1)},
      {"weight_bytes", model->weight_bytes()},
      {"read_us", 1e6 * once},
      {"product_gops", rate / 1e9},
      {"state_bytes", StateBytes(spec, precision)},
      {"memory_growth_bytes", grown},
      {"error", error}};
  const std::string label = StrCat(name, "  ", PrecisionName(precision), "  batch ", batch);
  return {{.name = "generate",
           .label = label,
           .value = 1e3 * image,
           .unit = "ms/image",
           .limit = 1e3 * limit,
           .identity = identity},
          {.name = "generate/flatness",
           .label = label + "  (last eighth of the steps over the first)",
           .value = late / early,
           .unit = "x",
           .limit = 1,
           .identity = identity}};
}

void Run(const Options& options) {
  if (options.model.empty() == options.random.empty()) {
    throw InputError("give a MODEL, or --random mnist or cifar10");
  }
  const Checkpoint checkpoint = options.model.empty() ? RandomModel(RandomSpec(options.random))
                                                      : Checkpoint::Open(options.model);
  const std::string name = options.model.empty() ? options.random + " (random)" : options.model;
  std::vector<Precision> precisions;
  for (const std::string& p : options.precisions) precisions.push_back(ParsePrecision(p));
  if (precisions.empty()) precisions = {checkpoint.precision()};
  if (checkpoint.spec().task != "images") {
    throw InputError(checkpoint.path(), ": a model of the task '", checkpoint.spec().task,
                     "', not of images");
  }
  std::vector<Record> records;
  for (const int batch : options.batches) {
    for (const Precision precision : precisions) {
      const auto measured =
          Measure(checkpoint, name, precision, static_cast<size_t>(batch), options);
      records.insert(records.end(), measured.begin(), measured.end());
    }
  }
  PrintRecords(records, options.json);
  if (options.json) return;
  std::cout << "\n";
  for (const Record& record : records) {
    if (record.name != "generate") continue;
    const auto number = [&](const char* field) { return record.identity[field].get<double>(); };
    std::cout << record.label << ": " << FormatCount(number("images_per_second")) << " images/s, "
              << FormatCount(number("us_per_token")) << " us a token; "
              << FormatBytes(number("weight_bytes")) << " of weights, read in "
              << FormatCount(number("read_us")) << " us; products at "
              << FormatCount(number("product_gops")) << " GOP/s\n";
  }
}

}  // namespace

void AddBenchGenerate(CLI::App& bench) {
  CLI::App* verb = AddVerb(
      bench, "generate", "Time whole images, sampling included, at any batch and precision",
      "Outputs are checked against the network written out in double precision. The limit: a "
      "token\n"
      "needs the weights read once for all sequences, and multiplied with once for each; both are\n"
      "measured in the same run.",
      "  linnet bench generate models/digits.safetensors\n"
      "  linnet bench generate --random mnist --batch 1,64 --precision f32,bf16,int8\n"
      "  linnet bench generate --random cifar10 --json\n");
  auto options = std::make_shared<Options>();
  verb->add_option("MODEL", options->model, "A model of images")->type_name("");
  verb->add_option("--random", options->random, "The paper's model for mnist or cifar10 instead")
      ->type_name("NAME")
      ->check(CLI::IsMember({"mnist", "cifar10"}));
  verb->add_option("--batch", options->batches, "Images made together, as 1,64")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N")
      ->check(Between(1, 65536))
      ->capture_default_str();
  verb->add_option("--precision", options->precisions,
                   "f32, bf16 or int8, or several (default: as the file has it)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAMES");
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
