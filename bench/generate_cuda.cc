#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/generate.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/program/machine.h"
#include "linnet/rng.h"
#include "linnet/runtime/cuda/cuda_engine.h"
#include "linnet/runtime/model_ref.h"
#include "linnet/tasks/images/images.h"

namespace linnet::bench {
namespace {

// The largest allowed relative error. In bf16 it is larger than on the CPU: the GPU also rounds the
// results of products to bf16, except in the residual stream.
double GpuTolerance(Precision precision) { return precision == Precision::kF32 ? 1e-4 : 0.05; }

// Compares the outputs of steps, for the first and the last sequence of the batch, with the
// reference (ModelRef). Returns the largest relative error of a position; throws RuntimeError if it
// is too large. 20 positions include an update of the state: the kernel adds keys and values to it
// every 8 positions in fp32, every 16 in bf16 (RecentKeys() in kernels/linear_step.h).
double Check(CudaEngine& engine, const Checkpoint& checkpoint) {
  const ModelSpec& spec = checkpoint.spec();
  const auto length = static_cast<size_t>(std::min(spec.input.max_length, 20));
  const size_t outputs = engine.output_size(), batch = engine.batch();
  const auto token = [&](size_t i, size_t t) {
    Philox rng(/*seed=*/2, /*stream=*/i, /*counter=*/t);
    return static_cast<int32_t>(rng.Below(static_cast<uint32_t>(spec.input.vocabulary)));
  };
  std::vector<std::vector<int32_t>> tokens(2);
  for (size_t t = 0; t < length; ++t) {
    tokens[0].push_back(token(0, t));
    tokens[1].push_back(token(batch - 1, t));
  }
  ModelRef ref(checkpoint, engine.model());
  const ModelRef::Rows first = ref.Outputs(tokens[0]), last = ref.Outputs(tokens[1]);
  std::vector<int32_t> column(batch);
  std::vector<float> out(batch * outputs);
  double worst = 0;
  engine.Reset();
  for (size_t t = 0; t < length; ++t) {
    for (size_t i = 0; i < batch; ++i) column[i] = token(i, t);
    engine.Step(column, out);
    RelativeError error;
    for (size_t o = 0; o < outputs; ++o) {
      error.Add(out[o], first[t][o]);
      error.Add(out[(batch - 1) * outputs + o], last[t][o]);
    }
    worst = std::isnan(error.value()) ? INFINITY : std::max(worst, error.value());
  }
  engine.Reset();
  const double allowed = GpuTolerance(engine.model().precision());
  if (!(worst <= allowed)) {
    throw RuntimeError("bench generate: outputs differ from the reference's by ", worst,
                       " (allowed: ", allowed, "); not timed");
  }
  return worst;
}

}  // namespace

std::vector<Record> MeasureGenerationOnCuda(const Checkpoint& checkpoint, const std::string& name,
                                            Precision precision, size_t batch,
                                            const CudaBenchOptions& options) {
  const CudaLimits limits = MeasureCudaLimits(precision);
  CudaEngine engine(checkpoint, {.batch = batch, .precision = precision, .lanes = options.lanes});
  const ModelSpec& spec = engine.model().spec();
  const double error = Check(engine, checkpoint);
  // Each step reads a pixel and draws the next one. The first pixel needs no step.
  const auto pixels = static_cast<size_t>(spec.input.max_length) + 1;
  const double steps = static_cast<double>(pixels - 1);

  std::vector<double> seconds;
  const Stopwatch whole;
  do {
    const Stopwatch watch;
    SampleImages(engine, batch, {.seed = 1, .batch = batch});
    seconds.push_back(watch.Seconds());
  } while (whole.Seconds() < options.seconds);
  std::sort(seconds.begin(), seconds.end());
  // image: seconds per image, the median time of a batch divided by its size. The next three are
  // seconds per step of the whole batch: `step` is measured, a mean over many steps; `moved` and
  // `multiplied` are its lower bounds by memory traffic and by matrix products.
  const double image = seconds[seconds.size() / 2] / static_cast<double>(batch);
  const double step = engine.SecondsOfStep(std::min<size_t>(pixels - 1, 256));
  const double moved = engine.StepBytes() / limits.bytes_per_second;
  const double multiplied = engine.StepOperations() / limits.operations_per_second;
  const double limit = steps * std::max(moved, multiplied) / static_cast<double>(batch);

  // Only us_per_token is divided by the batch; the other "us" are times of the whole batch. In
  // product_gops, a multiply and an add are two operations. A lane is a part of the batch that
  // steps on a CUDA stream of its own (CudaOptions::lanes).
  nlohmann::ordered_json identity = {{"model", name},
                                     {"attention", spec.stack.mixer().kind},
                                     {"N", pixels},
                                     {"batch", batch},
                                     {"precision", PrecisionName(precision)},
                                     {"device", engine.device()},
                                     {"lanes", engine.lanes()},
                                     {"images_per_second", 1 / image},
                                     {"us_per_token", 1e6 * image / steps},
                                     {"us_per_step", 1e6 * step},
                                     {"step_bytes", engine.StepBytes()},
                                     {"step_bytes_us", 1e6 * moved},
                                     {"step_products_us", 1e6 * multiplied},
                                     {"copy_bytes_per_second", limits.bytes_per_second},
                                     {"product_gops", limits.operations_per_second / 1e9},
                                     {"weight_bytes", engine.memory().weights},
                                     {"state_bytes", engine.memory().states},
                                     {"work_bytes", engine.memory().work},
                                     {"runs", seconds.size()},
                                     {"date", cli::Today()},
                                     {"error", error}};
  if (options.profile) {
    nlohmann::ordered_json& kernels = identity["kernels_us"];
    for (const auto& [kernel, took] : engine.ProfileStep()) kernels[kernel] = 1e6 * took;
  }
  const std::string label =
      StrCat(name, "  ", engine.device(), "  ", PrecisionName(precision), "  batch ", batch);
  return {{.name = "generate",
           .label = label,
           .value = 1e3 * image,
           .unit = "ms/image",
           .limit = 1e3 * limit,
           .identity = identity}};
}

}  // namespace linnet::bench
