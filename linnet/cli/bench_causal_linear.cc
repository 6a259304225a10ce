// linnet bench causal-linear: the attention kernel, forward and forward + backward, over sequence
// lengths. The limit is the time that its multiply-adds alone take at this machine's measured peak.
#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/error.h"
#include "linnet/base/rng.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/verbs.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/causal_linear_ref.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"

namespace linnet::cli {
namespace {

using kernels::CausalLinearRef;
using kernels::HeadMajor;

constexpr size_t kHeads = 8, kDim = 32;  // the paper's image model
constexpr size_t kMinLength = 512, kMaxLength = 65536;
constexpr double kTolerance = 1e-4;
// Forward: update s, read s, 2 D M multiply-adds; backward: five sweeps' worth (eqs. 13-15).
constexpr double kForwardFlops = 4.0 * kDim * kDim, kBothFlops = 14.0 * kDim * kDim;

// One problem, head-major [H, N, D], with everything a training step holds.
struct Case {
  Case(size_t length, ThreadPool& pool)
      : length(length),
        pool(pool),
        shape{.batch = 1, .length = length, .heads = kHeads, .dim = kDim, .value_dim = kDim},
        kept(kernels::CausalLinearKept(shape)),
        scratch(kernels::CausalLinearScratch(shape) * static_cast<size_t>(pool.size())) {
    uint64_t stream = 0;
    for (auto* x : {&q, &k, &v, &grad_out}) {
      *x = AlignedBuffer<float>(kHeads * length * kDim);
      Philox rng(/*seed=*/length, stream++);
      for (float& value : *x) value = 2 * rng.Uniform() - 1;
    }
    for (auto* x : {&out, &grad_q, &grad_k, &grad_v}) {
      *x = AlignedBuffer<float>(kHeads * length * kDim);
    }
  }

  void Forward() {
    kernels::CausalLinearForwardArgs args;
    args.q = In(q), args.k = In(k), args.v = In(v), args.out = Out(out);
    args.kept = kept.data();
    kernels::CausalLinearForward(shape, options, args, Slots(),
                                 [this](size_t count, RangeBody body) { pool.For(count, body); });
  }

  void Backward() {
    kernels::CausalLinearBackwardArgs args;
    args.q = In(q), args.k = In(k), args.v = In(v);
    args.out = In(out), args.grad_out = In(grad_out), args.kept = kept.data();
    args.grad_q = Out(grad_q), args.grad_k = Out(grad_k), args.grad_v = Out(grad_v);
    kernels::CausalLinearBackward(shape, options, args, Slots(),
                                  [this](size_t count, RangeBody body) { pool.For(count, body); });
  }

  kernels::Strided<const float> In(const AlignedBuffer<float>& x) const {
    return HeadMajor(x.data(), length, kHeads, kDim);
  }
  kernels::Strided<float> Out(AlignedBuffer<float>& x) const {
    return HeadMajor(x.data(), length, kHeads, kDim);
  }
  kernels::Scratch Slots() { return {scratch.data(), static_cast<size_t>(pool.size())}; }

  const size_t length;
  ThreadPool& pool;
  const kernels::CausalLinearShape shape;
  const kernels::CausalLinearOptions options;
  AlignedBuffer<float> q, k, v, grad_out;
  AlignedBuffer<float> out, grad_q, grad_k, grad_v;
  AlignedBuffer<float> kept, scratch;
};

std::vector<double> HeadOf(const AlignedBuffer<float>& x, size_t length, size_t head) {
  const float* begin = x.data() + head * length * kDim;
  return {begin, begin + length * kDim};
}

void Check(Case& problem) {
  problem.Forward();
  problem.Backward();
  const size_t length = problem.length;
  // The plain twin's gradients cost O(N) a row: all rows of the output, some of the gradients.
  const std::set<size_t> rows = {0, 1, 33, length / 3, length / 2, length - 2, length - 1};
  RelativeError out, grad_q, grad_k, grad_v;
  const auto compare = [&](RelativeError& error, const AlignedBuffer<float>& x, size_t head,
                           size_t row, const std::vector<double>& expected) {
    const float* values = x.data() + (head * length + row) * kDim;
    for (size_t c = 0; c < kDim; ++c) error.Add(values[c], expected[c]);
  };
  for (size_t head : {size_t{0}, kHeads - 1}) {
    const CausalLinearRef twin(length, kDim, kDim, problem.options, HeadOf(problem.q, length, head),
                               HeadOf(problem.k, length, head), HeadOf(problem.v, length, head),
                               length);
    const std::vector<double> grad = HeadOf(problem.grad_out, length, head);
    for (size_t row = 0; row < length; ++row) compare(out, problem.out, head, row, twin.Out(row));
    for (size_t row : rows) {
      compare(grad_q, problem.grad_q, head, row, twin.GradQ(row, grad));
      compare(grad_k, problem.grad_k, head, row, twin.GradK(row, grad));
      compare(grad_v, problem.grad_v, head, row, twin.GradV(row, grad));
    }
  }
  const double worst = std::max({out.value(), grad_q.value(), grad_k.value(), grad_v.value()});
  if (!(worst <= kTolerance)) {
    throw RuntimeError("bench causal-linear: at N = ", length, " the kernel differs from its ",
                       "reference by ", worst, " (allowed: ", kTolerance, "); not timed");
  }
}

struct Options : BenchOptions {
  size_t max_n = kMaxLength;
};

void Run(const Options& options) {
  ThreadPool pool(options.threads);
  std::vector<Record> records;
  for (size_t length = kMinLength; length <= options.max_n; length *= 2) {
    Case problem(length, pool);
    Check(problem);

    constexpr size_t kRounds = 100'000;
    const auto forward = [&] { problem.Forward(); };
    const auto both = [&] {
      problem.Forward();
      problem.Backward();
    };
    const auto spin = [&] { pool.Run([](int) { kernels::SpinFma(kRounds); }); };
    const std::vector<double> median = MedianSeconds({forward, both, spin}, options.seconds);

    const double peak = pool.size() * kernels::FmaFlops(kRounds) / median[2];
    const double tokens = static_cast<double>(length * kHeads);
    const auto add = [&](const std::string& pass, double seconds, double flops) {
      records.push_back({.name = "causal-linear/" + pass,
                         .label = StrCat("N=", length),
                         .value = 1e3 * seconds,
                         .unit = "ms",
                         .limit = 1e3 * flops * tokens / peak,
                         .identity = {{"N", length},
                                      {"batch", 1},
                                      {"heads", kHeads},
                                      {"dim", kDim},
                                      {"value_dim", kDim},
                                      {"threads", pool.size()},
                                      {"precision", "f32"},
                                      {"isa", kernels::ActiveIsa()},
                                      {"peak_gflops", peak / 1e9}}});
    };
    add("forward", median[0], kForwardFlops);
    add("forward+backward", median[1], kBothFlops);
  }
  PrintRecords(records, options.json);
}

}  // namespace

void AddBenchCausalLinear(CLI::App& bench) {
  CLI::App* verb = AddVerb(
      bench, "causal-linear", "Time the causal linear attention kernel, 8 heads x 32",
      "For N = 512, 1024, ... 65536, forward and forward + backward. The limit is the time of\n"
      "the multiply-adds alone at the machine's peak.",
      "  linnet bench causal-linear\n"
      "  linnet bench causal-linear --max-n 4096 --threads 1 --json\n");
  auto options = std::make_shared<Options>();
  verb->add_option("--max-n", options->max_n, "The longest sequence")
      ->type_name("N")
      ->check(Between(kMinLength, kMaxLength))
      ->capture_default_str();
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
