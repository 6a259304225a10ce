// linnet bench memory: measures the peak memory of a forward and a backward pass of causal linear
// attention.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <torch/autograd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <string>

#include "bench/bench.h"
#include "bench/torch/benchmarks.h"
#include "linnet/base/peak_memory.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/kernels/isa.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/program/program.h"
#ifdef LINNET_WITH_PLOT
#include "linnet/plot/plot.h"
#endif

namespace linnet::bench {
namespace {

constexpr int64_t kWidth = 256;  // heads x dimensions of a head, the same in all cases
constexpr int64_t kMinLength = 1024, kMaxLength = 65536;
constexpr int64_t kDims[] = {16, 32, 64, 128};

struct MemoryBenchOptions {
  int64_t max_n = 16384;
  int threads = 0;
  bool json = false;
  std::string plot;
};

// Returns the bytes that a pass adds to the peak memory. Runs in the child process of
// MeasureApart(). First, a warm-up pass over a few positions loads code and starts threads.
double Measure(int64_t length, int64_t dim) {
  const auto pass = [&](int64_t n) {
    const auto input = [&] { return torch::rand({1, n, kWidth / dim, dim}).requires_grad_(); };
    const torch::Tensor q = input(), k = input(), v = input();
    const torch::Tensor out = ops::CausalLinearAttention(q, k, v);
    out.backward(torch::ones_like(out));
    // Checks the sum, since torch::isfinite() of a whole gradient would raise the peak memory.
    if (!std::isfinite(q.grad().sum().item<float>()))
      throw RuntimeError("a gradient is NaN or infinite");
  };
  pass(64);
  ResetPeakMemory();
  const int64_t before = PeakMemory();
  pass(length);
  return static_cast<double>(PeakMemory() - before);
}

// Calls Measure() in a new process, where no memory is left from earlier passes.
double MeasureApart(int64_t length, int64_t dim, int threads) {
  int ends[2];
  if (pipe(ends) != 0) throw RuntimeError("bench memory: cannot create a pipe");
  const pid_t child = fork();
  if (child < 0) throw RuntimeError("bench memory: cannot start a process");
  if (child == 0) {
    double bytes = -1;
    try {
      at::set_num_threads(threads);
      bytes = Measure(length, dim);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "linnet bench memory: %s\n", error.what());
    }
    const bool written = write(ends[1], &bytes, sizeof(bytes)) == sizeof(bytes);
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  double bytes = -1;
  const bool got = read(ends[0], &bytes, sizeof(bytes)) == sizeof(bytes);
  close(ends[0]);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!got || bytes < 0) throw RuntimeError("bench memory: a measurement failed");
  return bytes;
}

#ifdef LINNET_WITH_PLOT
// Draws one line per head size, and one for the size of inputs, outputs and gradients.
void DrawRecords(const std::vector<Record>& records, const std::string& path) {
  plot::Plot panel{.x = {"sequence length", /*log=*/true}, .y = {"MB at the peak", /*log=*/true}};
  plot::Series limit{.label = "inputs, outputs, gradients", .dashed = true};
  for (const int64_t dim : kDims) {
    plot::Series series{.label = StrCat(kWidth / dim, " heads of ", dim),
                        .style = plot::Style::kLineAndPoints};
    for (const Record& record : records) {
      if (record.identity.at("dim") != dim) continue;
      const double length = record.identity.at("N");
      series.x.push_back(length);
      series.y.push_back(record.value);
      if (dim == kDims[0]) limit.x.push_back(length), limit.y.push_back(record.limit);
    }
    panel.series.push_back(series);
  }
  panel.series.push_back(limit);
  plot::Draw({.title = "Memory of causal linear attention, forward and backward",
              .subtitle = "one sequence, 256 dimensions, fp32; a separate process for each point",
              .panels = {panel}},
             path);
}
#endif

void Run(const MemoryBenchOptions& options) {
  const int threads = options.threads > 0 ? options.threads : at::get_num_threads();
  std::vector<Record> records;
  for (const int64_t dim : kDims) {
    for (int64_t length = kMinLength; length <= options.max_n; length *= 2) {
      // Counts q, k, v, out, the gradients of all four, and one denominator per position and head.
      // Saved states do not count, because the backward pass could compute them again.
      const double needed =
          4.0 * static_cast<double>(length) * (8.0 * kWidth + static_cast<double>(kWidth / dim));
      records.push_back({.name = "memory",
                         .label = StrCat("D=M=", dim, "  N=", length),
                         .value = MeasureApart(length, dim, threads) / 1e6,
                         .unit = "MB",
                         .limit = needed / 1e6,
                         .identity = {{"N", length},
                                      {"heads", kWidth / dim},
                                      {"dim", dim},
                                      {"value_dim", dim},
                                      {"batch", 1},
                                      {"threads", threads},
                                      {"isa", kernels::ActiveIsa()},
                                      {"precision", "f32"}}});
    }
  }
  PrintRecords(records, options.json);
#ifdef LINNET_WITH_PLOT
  if (!options.plot.empty()) DrawRecords(records, options.plot);
#endif
}

}  // namespace

void AddMemory(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "memory", "Measure the memory of training causal linear attention",
      R"(Measures the peak memory of a forward and a backward pass over one sequence, with 256
dimensions divided into heads of 16 to 128. Each case runs in a separate process. The limit is the
size of inputs, outputs and gradients; an implementation that stores the state (query size x value
size) at every position needs many times as much.)",
      "  linnet bench memory\n"
      "  linnet bench memory --max-n 65536 --plot memory.svg\n");
  auto options = std::make_shared<MemoryBenchOptions>();
  cli::AddOption(verb, "--max-n", options->max_n, "N", "Length of the longest sequence",
                 cli::Between(kMinLength, kMaxLength));
#ifdef LINNET_WITH_PLOT
  cli::AddOption(verb, "--plot", options->plot, "FILE", "Figure to draw, .png or .svg");
#endif
  cli::AddThreadsOption(verb, options->threads);
  cli::AddJsonFlag(verb, options->json);
  verb->callback([options] {
#ifdef LINNET_WITH_PLOT
    if (!options->plot.empty()) {
      plot::CheckFormat(options->plot);
      AtomicFile probe(options->plot);  // fails early if it cannot be written
    }
#endif
    Run(*options);
  });
}

}  // namespace linnet::bench
