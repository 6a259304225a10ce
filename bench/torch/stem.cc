// linnet bench stem: times the causal stem of images in training. The limit is the time of its
// multiply-adds at the machine's peak rate.
#include <ATen/Parallel.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/torch/benchmarks.h"
#include "linnet/base/larger_error.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/nn/stem.h"
#include "linnet/ops/plain.h"
#include "linnet/program/machine.h"
#include "linnet/program/program.h"

namespace linnet::bench {
namespace {

using torch::Tensor;

struct StemBenchOptions : BenchOptions {
  int batch = 4, channels = 64, d_model = 128;
};

// The models that the presets `demo` and `color` train.
ModelSpec SpecOf(bool color, const StemBenchOptions& options) {
  ModelSpec spec;
  const int side = color ? 32 : 28;
  spec.part = ImageSpec{.width = side, .height = side, .channels = color ? 3 : 1};
  spec.stack.d_model = options.d_model;
  spec.input.stem.channels = options.channels;
  spec.input.whole_pixels = color;
  spec.input.max_length = side * side - (color ? 0 : 1);
  return spec;
}

Tensor Tokens(const ModelSpec& spec, int64_t batch) {
  const int64_t values = spec.input.whole_pixels ? 1 << 24 : 256;
  return torch::randint(values, {batch, spec.input.max_length}, torch::kInt64);
}

// The stem's output, and the gradients of its parameters.
std::vector<Tensor> Update(nn::Stem& stem, const Tensor& tokens, const Tensor& grad, bool plain) {
  std::optional<ops::PlainGuard> guard;
  if (plain) guard.emplace();
  const Tensor out = stem->forward(tokens);
  std::vector<Tensor> results = torch::autograd::grad({out}, stem->parameters(), {grad});
  results.push_back(out.detach());
  return results;
}

void Check(const ModelSpec& spec) {
  nn::Stem stem(spec);
  const Tensor tokens = Tokens(spec, 2);
  const Tensor grad = torch::randn({2, spec.input.max_length, spec.EmbeddingWidth()});
  const std::vector<Tensor> fused = Update(stem, tokens, grad, false);
  const std::vector<Tensor> plain = Update(stem, tokens, grad, true);
  double worst = 0;
  for (size_t i = 0; i < fused.size(); ++i) {
    const double size = plain[i].norm().item<double>();
    worst = LargerError(worst, (fused[i] - plain[i]).norm().item<double>() / size);
  }
  if (!(worst <= 1e-4)) {
    throw RuntimeError("bench stem: output or gradients of the fused stem differ from those of ",
                       "conv2d by ", worst, "; not timed");
  }
}

// Multiply-adds of a pixel whose windows lie within the image: forward and the weights' gradient of
// both convolutions, and the features' gradient.
double MultiplyAdds(const ModelSpec& spec) {
  const double channels = spec.input.stem.channels;
  return 2 * channels * StemInputs(spec, 0) +
         3 * channels * StemFeatures(spec).Inputs(0) * static_cast<double>(spec.EmbeddingWidth());
}

Record Measure(bool color, const StemBenchOptions& options) {
  torch::manual_seed(1);
  const ModelSpec spec = SpecOf(color, options);
  Check(spec);
  nn::Stem stem(spec);
  const Tensor tokens = Tokens(spec, options.batch);
  const Tensor grad = torch::randn({options.batch, spec.input.max_length, spec.EmbeddingWidth()});
  constexpr size_t kRounds = 1 << 18;
  const int threads = at::get_num_threads();
  ThreadPool pool(threads);
  const std::vector<double> median = MedianSeconds(
      {[&] { Update(stem, tokens, grad, false); }, [&] { Update(stem, tokens, grad, true); },
       [&] { pool.Run([](int) { kernels::SpinFma(kRounds); }); }},
      options.seconds);
  const double flops = 2 * MultiplyAdds(spec) * static_cast<double>(tokens.numel());
  const double peak = threads * kernels::FmaFlops(kRounds) / median[2];
  return {.name = "stem",
          .label = color ? "color" : "gray",
          .value = 1e3 * median[0],
          .unit = "ms",
          .limit = 1e3 * flops / peak,
          .identity = {{"batch", options.batch},
                       {"channels", options.channels},
                       {"width", spec.EmbeddingWidth()},
                       {"conv2d_ms", 1e3 * median[1]},
                       {"gflops", flops / median[0] / 1e9},
                       {"peak_gflops", peak / 1e9},
                       {"threads", threads},
                       {"isa", kernels::ActiveIsa()},
                       {"machine", cli::MachineName()},
                       {"date", cli::Today()}}};
}

void Run(const StemBenchOptions& options) {
  at::set_num_threads(options.threads > 0 ? options.threads : ThreadPool::AvailableProcessors());
  const std::vector<Record> records = {Measure(false, options), Measure(true, options)};
  PrintRecords(records, options.json);
  if (options.json) return;
  for (const Record& record : records) {
    std::printf("%s: %.0f GFLOP/s of %.0f; by conv2d %.2f ms\n", record.label.c_str(),
                record.identity.at("gflops").get<double>(),
                record.identity.at("peak_gflops").get<double>(),
                record.identity.at("conv2d_ms").get<double>());
  }
}

}  // namespace

void AddStem(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "stem", "Time the causal stem of images in training",
      R"(Times the causal stem (two masked convolutions) of gray images of 28 x 28 pixels, and of
color images of 32 x 32 whole pixels: forward, and the gradients of its parameters. The gradients
are first compared with those of libtorch's conv2d, which is timed in turns with them. The limit is
the time of the multiply-adds of whole windows at the measured peak rate.)",
      "  linnet bench stem --threads 1\n"
      "  linnet bench stem --batch 16 --channels 128 --json\n");
  auto options = std::make_shared<StemBenchOptions>();
  cli::AddOption(verb, "--batch", options->batch, "N", "Images in a batch", cli::Between(1, 4096));
  cli::AddOption(verb, "--channels", options->channels, "C", "Channels of the first convolution",
                 cli::Between(1, 1024));
  cli::AddOption(verb, "--d-model", options->d_model, "D", "Channels of the second convolution",
                 cli::Between(1, 4096));
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::bench
