// linnet bench scan-torch: times linnet's fused scan against the chunked form of the same
// recurrence in libtorch operations, the usual implementation where no custom kernel is written.
#include <ATen/Parallel.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/scan_policies.h"
#include "bench/torch/benchmarks.h"
#include "linnet/base/larger_error.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/scan.h"
#include "linnet/program/program.h"

namespace linnet::bench {
namespace {

using kernels::ScanDecay;
using kernels::ScanOptions;
using kernels::ScanWrite;
using torch::Tensor;

struct TorchScanBenchOptions : BenchOptions {
  int64_t length = 4096, heads = 8, dim = 32, chunk = 64;
  std::vector<std::string> policies;
};

// The chunked form: processes chunks of C positions with matrix products. S is the state before a
// chunk, S' the state after the chunk, c the prefix sums of log-decays within the chunk, and β the
// strength of the delta rule's updates:
//
//   A_ij = Σ_d q_id k_jd e^(c_id - c_jd), i >= j    M_ij = β_i Σ_d k_id k_jd e^(c_id - c_jd), i > j
//   V' = (I + M)^-1 (β v - β k e^c S)               without the delta rule: V' = v
//   out = (q e^c) S + A V'                          S' = e^(c_C) S + (k e^(c_C - c))^T V'
class Chunks {
 public:
  Chunks(const ScanOptions& options, int64_t size) : options_(options), size_(size) {}

  Tensor operator()(const ops::ScanInputs& in) const {
    const int64_t n = in.q.size(0), length = in.q.size(1), heads = in.q.size(2);
    const auto cut = [&](const Tensor& x) {  // [N, H, chunks, C, width]
      return x.view({n, length / size_, size_, heads, -1}).permute({0, 3, 1, 2, 4});
    };
    const Tensor q = cut(in.q) * options_.scale, k = cut(in.k);
    // reads_q = q e^c, writes = k e^(c_C - c), last = c_C; with the delta rule, reads_k = β k e^c
    Tensor v = cut(in.v), c, reads_q = q, reads_k, writes = k, last;
    if (options_.decay != ScanDecay::kNone) {
      c = cut(in.decay).cumsum(3);
      last = c.narrow(3, size_ - 1, 1);
      reads_q = q * c.exp();
      writes = k * (last - c).exp();
    }
    const Tensor a = Products(q, k, c).tril();
    if (options_.write == ScanWrite::kDelta) {
      const Tensor beta = cut(in.erase);
      reads_k = beta * (c.defined() ? k * c.exp() : k);
      const Tensor m = Products(beta * k, k, c).tril(-1);
      const Tensor solved =
          at::linalg_solve_triangular(m, torch::cat({beta * v, reads_k}, 4), /*upper=*/false,
                                      /*left=*/true, /*unitriangular=*/true);
      v = solved.narrow(4, 0, v.size(4));
      reads_k = solved.narrow(4, v.size(4), k.size(4));
    }
    Tensor s = torch::zeros({n, heads, q.size(4), v.size(4)}, q.options());
    std::vector<Tensor> out;
    for (int64_t i = 0; i < length / size_; ++i) {
      const auto chunk = [i](const Tensor& x) { return x.select(2, i); };
      Tensor write = chunk(v);
      if (reads_k.defined()) write = write - torch::matmul(chunk(reads_k), s);
      out.push_back(torch::matmul(chunk(reads_q), s) + torch::matmul(chunk(a), write));
      if (last.defined()) s = chunk(last).exp().transpose(2, 3) * s;
      s = s + torch::matmul(chunk(writes).transpose(2, 3), write);
    }
    return torch::stack(out, 2).permute({0, 2, 3, 1, 4}).reshape(in.v.sizes());
  }

 private:
  // Σ_d x_id y_jd e^(c_id - c_jd) for i >= j. Subtracts first, since e^(-c) alone may overflow.
  Tensor Products(const Tensor& x, const Tensor& y, const Tensor& c) const {
    if (!c.defined()) return torch::matmul(x, y.transpose(3, 4));
    if (c.size(4) == 1) {
      return torch::matmul(x, y.transpose(3, 4)) * (c - c.transpose(3, 4)).tril().exp();
    }
    // With one decay per key channel, computes column by column, to avoid a [C, C, D] tensor.
    std::vector<Tensor> columns;
    for (int64_t j = 0; j < size_; ++j) {
      const Tensor decayed = x * (c - c.narrow(3, j, 1)).clamp_max(0).exp();
      columns.push_back(torch::matmul(decayed, y.select(3, j).unsqueeze(4)));
    }
    return torch::cat(columns, 4);
  }

  const ScanOptions options_;
  const int64_t size_;
};

class Case {
 public:
  Case(const TorchScanBenchOptions& options, const ScanPolicy& policy)
      : policy_(policy),
        options_{.decay = policy.decay,
                 .write = policy.write,
                 .scale = 1 / std::sqrt(static_cast<float>(options.dim))},
        chunks_(options_, options.chunk) {
    torch::manual_seed(1);
    const auto random = [&](int64_t width) {
      return torch::rand({1, options.length, options.heads, width});
    };
    const auto gradient = [](const Tensor& x) { return x.detach().requires_grad_(); };
    in_.q = gradient(2 * random(options.dim) - 1);
    const Tensor k = 2 * random(options.dim) - 1;
    in_.k = gradient(k / k.square().sum(3, true).sqrt());
    in_.v = gradient(2 * random(options.dim) - 1);
    leaves_ = {in_.q, in_.k, in_.v};
    if (policy.decay != ScanDecay::kNone) {
      in_.decay = gradient(-0.1 * random(policy.decay == ScanDecay::kHead ? 1 : options.dim));
      leaves_.push_back(in_.decay);
    }
    if (policy.write == ScanWrite::kDelta) leaves_.push_back(in_.erase = gradient(random(1)));
    grad_out_ = 2 * random(options.dim) - 1;
  }

  Tensor Fused() const { return ops::Scan(in_, options_); }
  Tensor Torch() const { return chunks_(in_); }
  // Runs the backward pass and returns the gradients of all inputs.
  std::vector<Tensor> Gradients(const Tensor& out) const {
    return torch::autograd::grad({out}, leaves_, {grad_out_});
  }

  void Check() const {
    const Tensor got = Fused(), want = Torch();
    double worst = Error(got, want);
    const std::vector<Tensor> grads = Gradients(got), expected = Gradients(want);
    for (size_t i = 0; i < grads.size(); ++i) {
      const double error = Error(grads[i], expected[i]);
      worst = LargerError(worst, error);
    }
    if (!(worst <= 1e-4)) {
      throw RuntimeError("bench scan-torch: ", policy_.name, " differs from the chunked form by ",
                         worst, " (allowed: 1e-4); not timed");
    }
  }

 private:
  static double Error(const Tensor& got, const Tensor& want) {
    return ((got - want).abs().max() / want.abs().max()).item<double>();
  }

  const ScanPolicy& policy_;
  const ScanOptions options_;
  const Chunks chunks_;
  ops::ScanInputs in_;
  std::vector<Tensor> leaves_;
  Tensor grad_out_;
};

void Run(const TorchScanBenchOptions& options) {
  if (options.length % options.chunk != 0) {
    throw InputError("--n ", options.length, " must be a multiple of --chunk ", options.chunk);
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  std::vector<Record> records;
  for (const ScanPolicy& policy : kScanPolicies) {
    if (policy.write != ScanWrite::kAdd && policy.write != ScanWrite::kDelta) continue;
    if (!Chosen(policy, options.policies)) continue;
    const Case problem(options, policy);
    problem.Check();
    constexpr size_t kRounds = 100'000;
    const auto without_graph = [](auto run) {
      torch::NoGradGuard guard;
      run();
    };
    const std::vector<double> median =
        MedianSeconds({[&] { without_graph([&] { problem.Fused(); }); },
                       [&] { problem.Gradients(problem.Fused()); },
                       [&] { without_graph([&] { problem.Torch(); }); },
                       [&] { problem.Gradients(problem.Torch()); },
                       [&] {
                         ops::AtParallelFor(ops::AtSlots(), [](size_t begin, size_t end) {
                           for (size_t i = begin; i < end; ++i) kernels::SpinFma(kRounds);
                         });
                       }},
                      options.seconds);
    const double peak = at::get_num_threads() * kernels::FmaFlops(kRounds) / median[4];
    for (const size_t both : {0, 1}) {
      const double products = both ? policy.both : policy.forward;
      const double flops =
          2.0 * products *
          static_cast<double>(options.length * options.heads * options.dim * options.dim);
      records.push_back(
          {.name = StrCat("scan-torch/", policy.name, both ? "/forward+backward" : "/forward"),
           .label = StrCat("N=", options.length),
           .value = 1e3 * median[both],
           .unit = "ms",
           .limit = 1e3 * flops / peak,
           .identity = {{"N", options.length},
                        {"batch", 1},
                        {"heads", options.heads},
                        {"dim", options.dim},
                        {"chunk", options.chunk},
                        {"threads", at::get_num_threads()},
                        {"precision", "f32"},
                        {"isa", kernels::ActiveIsa()},
                        {"libtorch_ms", 1e3 * median[2 + both]},
                        {"libtorch_to_linnet", median[2 + both] / median[both]}}});
    }
  }
  PrintRecords(records, options.json);
  if (options.json) return;
  std::printf("\n");
  for (const Record& record : records) {
    std::printf("%s: libtorch takes %s ms, %s times as long as linnet\n", record.name.c_str(),
                FormatCount(record.identity.at("libtorch_ms")).c_str(),
                FormatCount(record.identity.at("libtorch_to_linnet")).c_str());
  }
}

}  // namespace

void AddScanTorch(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "scan-torch", "Time gated recurrences against their chunked form in libtorch",
      R"(Times the forward pass, and forward + backward, of linnet's fused operation and of the
chunked form in plain libtorch operations with autograd, on the same inputs and number of threads.
Outputs and gradients are compared first. The limit is the time of the recurrence's multiply-adds at
the machine's peak.)",
      "  linnet bench scan-torch\n"
      "  linnet bench scan-torch --policies kda --dim 64 --threads 1 --json\n");
  auto options = std::make_shared<TorchScanBenchOptions>();
  const auto add = [&](const char* name, int64_t& value, const char* help, double low,
                       double high) {
    cli::AddOption(verb, name, value, "N", help, cli::Between(low, high));
  };
  add("--n", options->length, "Length of the sequence, in positions", 64, 1 << 20);
  add("--heads", options->heads, "Number of heads", 1, 64);
  add("--dim", options->dim, "Dimensions of keys and values", 1, 256);
  add("--chunk", options->chunk,
      "Length of a chunk in the libtorch form, in positions; divides --n", 1, 1024);
  cli::AddListOption(
      verb, "--policies", options->policies, "NAMES",
      "Policies: linear, simple-gla, gla, delta-rule, gated-delta-rule, kda (default: all)",
      CLI::IsMember({"linear", "simple-gla", "gla", "delta-rule", "gated-delta-rule", "kda"})
          .description(""));
  AddBenchOptions(verb, *options);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::bench
