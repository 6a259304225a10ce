// linnet bench scan: times forward, forward + backward and single steps of the gated recurrences at
// several sequence lengths, with causal linear attention in the same run for comparison. The limit
// is the longer of two times: computing the multiply-adds at this machine's measured peak, and
// reading the inputs and writing the outputs once.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/benchmarks.h"
#include "bench/scan.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/kernels/scan.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"

namespace linnet::bench {
namespace {

using kernels::ScanShape;
using Buffer = ScanData::Buffer;

// A problem for one policy, with all the tensors of a training step.
class ScanCase {
 public:
  ScanCase(const ScanBench& options, const ScanPolicy& policy, size_t length, ThreadPool& pool)
      : pool_(pool), data_(options, policy, length) {
    for (size_t i = 0; i < 6; ++i) grad_[i] = Buffer(data_.in[i].size());
    out_ = Buffer(data_.in[2].size());
    kept_ = Buffer(kernels::ScanKept(data_.shape, data_.options));
    const size_t slots = static_cast<size_t>(pool.size());
    forward_scratch_ = Buffer(kernels::ScanForwardScratch(data_.shape, data_.options) * slots);
    backward_scratch_ = Buffer(kernels::ScanBackwardScratch(data_.shape, data_.options) * slots);
    state_ = Buffer(data_.shape.heads * data_.shape.dim * data_.shape.value_dim);
    step_scratch_ = Buffer(kernels::ScanStepScratch(data_.shape));
  }

  void Forward() {
    kernels::ScanForward(data_.shape, data_.options,
                         {.in = In(), .out = Out(), .kept = kept_.data()},
                         {forward_scratch_.data(), static_cast<size_t>(pool_.size())},
                         [this](size_t count, RangeBody body) { pool_.For(count, body); });
  }
  void Backward() {
    kernels::ScanBackward(
        data_.shape, data_.options,
        {.in = In(),
         .out = data_.View<const float>(out_.data(), data_.shape.value_dim),
         .grad_out = data_.View<const float>(data_.grad_out.data(), data_.shape.value_dim),
         .kept = kept_.data(),
         .grad = data_.Tensors<float>([&](size_t i) { return grad_[i].data(); })},
        {backward_scratch_.data(), static_cast<size_t>(pool_.size())},
        [this](size_t count, RangeBody body) { pool_.For(count, body); });
  }
  // Runs all positions one by one, on one thread.
  void Steps() {
    std::fill(state_.begin(), state_.end(), 0.0f);
    kernels::ScanStepArgs args{
        .in = In(), .out = Out(), .s = state_.data(), .scratch = step_scratch_.data()};
    ScanShape one = data_.shape;
    one.length = 1;
    for (size_t t = 0; t < data_.shape.length; ++t) {
      kernels::ScanStep(one, data_.options, args);
      const auto next = [](auto& x) { x.data += x.time; };
      next(args.in.q), next(args.in.k), next(args.in.v), next(args.out);
      next(args.in.decay), next(args.in.erase), next(args.in.write);
    }
  }
  // Reads the inputs and writes the outputs of the forward pass (with `backward`, of both passes)
  // once. With `past_caches`, the stores bypass the caches.
  void Stream(bool backward, bool past_caches) {
    for (const Buffer& x : data_.in) ReadAll(x);
    WriteAll(out_, past_caches);
    if (!backward) return;
    ReadAll(data_.grad_out);
    for (Buffer& x : grad_) WriteAll(x, past_caches);
  }

  // With `steps`, runs Steps(), otherwise Forward() and Backward(). Throws RuntimeError if the
  // results differ from the reference.
  void Check(bool steps) {
    if (steps) {
      Steps();
    } else {
      Forward();
      Backward();
    }
    const float* grad[6];
    for (size_t i = 0; i < 6; ++i) grad[i] = grad_[i].data();
    data_.Check(data_.shape.heads - 1, out_.data(), steps ? nullptr : grad);
  }

 private:
  kernels::ScanTensors<const float> In() const {
    return data_.Tensors<const float>([&](size_t i) { return data_.in[i].data(); });
  }
  kernels::Strided<float> Out() { return data_.View<float>(out_.data(), data_.shape.value_dim); }
  void ReadAll(const Buffer& x) {
    pool_.For(x.size(), [&](size_t begin, size_t end) {
      kernels::ReadFloats(x.data() + begin, end - begin);
    });
  }
  void WriteAll(Buffer& x, bool past_caches) {
    pool_.For(x.size(), [&](size_t begin, size_t end) {
      kernels::WriteFloats(x.data() + begin, end - begin, past_caches);
    });
  }

  ThreadPool& pool_;
  const ScanData data_;
  Buffer grad_[6];  // of data_.in
  Buffer out_, kept_, forward_scratch_, backward_scratch_, state_, step_scratch_;
};

// Causal linear attention of the same shape, without feature map and denominator.
class Baseline {
 public:
  Baseline(const ScanBench& options, size_t length, ThreadPool& pool)
      : pool_(pool),
        rows_(options.layout == "row"),
        shape_{1, length, options.heads, options.dim, options.dim},
        kept_(kernels::CausalLinearKept(shape_)),
        scratch_(kernels::CausalLinearScratch(shape_) * static_cast<size_t>(pool.size())) {
    for (Buffer& x : tensors_) {
      x = Buffer(options.heads * length * options.dim);
      Philox rng(/*seed=*/length, static_cast<uint64_t>(&x - tensors_));
      for (float& value : x) value = 2 * rng.Uniform() - 1;
    }
  }
  void Forward() {
    kernels::CausalLinearForwardArgs args;
    args.q = View<const float>(0), args.k = View<const float>(1), args.v = View<const float>(2);
    args.out = View<float>(3), args.kept = kept_.data();
    kernels::CausalLinearForward(shape_, kBare, args, Slots(),
                                 [this](size_t n, RangeBody body) { pool_.For(n, body); });
  }
  void Backward() {
    kernels::CausalLinearBackwardArgs args;
    args.q = View<const float>(0), args.k = View<const float>(1), args.v = View<const float>(2);
    args.out = View<const float>(3), args.grad_out = View<const float>(4);
    args.kept = kept_.data();
    args.grad_q = View<float>(5), args.grad_k = View<float>(6), args.grad_v = View<float>(7);
    kernels::CausalLinearBackward(shape_, kBare, args, Slots(),
                                  [this](size_t n, RangeBody body) { pool_.For(n, body); });
  }

 private:
  static constexpr kernels::CausalLinearOptions kBare{kernels::FeatureMap::kIdentity, false, 0};

  template <typename T>
  kernels::Strided<T> View(size_t i) {
    return rows_
               ? kernels::RowMajor<T>(tensors_[i].data(), shape_.length, shape_.heads, shape_.dim)
               : kernels::HeadMajor<T>(tensors_[i].data(), shape_.length, shape_.heads, shape_.dim);
  }
  kernels::Scratch Slots() { return {scratch_.data(), static_cast<size_t>(pool_.size())}; }

  ThreadPool& pool_;
  const bool rows_;
  const kernels::CausalLinearShape shape_;
  Buffer kept_, scratch_;
  Buffer tensors_[8];  // q, k, v, out and the gradients of out, q, k, v
};

class ScanMeasurement {
 public:
  explicit ScanMeasurement(const ScanBench& options) : options_(options), pool_(options.threads) {}

  void Run() {
    for (size_t length = options_.min_n; length <= options_.max_n; length *= 2) {
      // ScanCase and Baseline have about 24 fp32 tensors [length, heads, dim].
      const double need = 4.0 * static_cast<double>(length * options_.heads * options_.dim) * 24;
      const auto there = static_cast<double>(AvailableMemory());
      if (there > 0 && need > 0.8 * there) {
        if (records_.empty()) {
          throw InputError("bench scan: N = ", length, " needs ", FormatBytes(need),
                           " of memory, and ", FormatBytes(there),
                           " are free; give a smaller --min-n");
        }
        std::cerr << "linnet bench scan: left out: N = " << length << std::endl;
        break;
      }
      for (const ScanPolicy& policy : kScanPolicies) {
        if (Chosen(policy, options_.policies)) Measure(policy, length);
      }
    }
    PrintRecords(records_, options_.json);
    if (!options_.json) PrintRatios();
  }

 private:
  void Measure(const ScanPolicy& policy, size_t length) {
    ScanCase problem(options_, policy, length, pool_);
    Baseline baseline(options_, length, pool_);
    problem.Check(/*steps=*/true);
    problem.Check(/*steps=*/false);
    constexpr size_t kRounds = 100'000;
    const auto forward = [&] { problem.Forward(); };
    const auto both = [&] { problem.Forward(), problem.Backward(); };
    const auto steps = [&] { problem.Steps(); };
    const auto bare_forward = [&] { baseline.Forward(); };
    const auto bare_both = [&] { baseline.Forward(), baseline.Backward(); };
    // stream_* store through the caches, past_* bypass them. The limit uses the faster of the two.
    const auto stream_forward = [&] { problem.Stream(false, false); };
    const auto stream_both = [&] { problem.Stream(true, false); };
    const auto past_forward = [&] { problem.Stream(false, true); };
    const auto past_both = [&] { problem.Stream(true, true); };
    const auto spin = [&] { pool_.Run([](int) { kernels::SpinFma(kRounds); }); };
    const std::vector<double> median =
        MedianSeconds({forward, both, steps, bare_forward, bare_both, stream_forward, stream_both,
                       past_forward, past_both, spin},
                      options_.seconds);
    const double peak = pool_.size() * kernels::FmaFlops(kRounds) / median[9];
    const double operations =
        2.0 * static_cast<double>(length * options_.heads * options_.dim * options_.dim);
    const char* const passes[] = {"forward", "forward+backward", "steps"};
    for (size_t pass : {0, 1, 2}) {
      const size_t kind = pass == 1;  // steps have the limit of the forward pass
      const double flops = pass == 2 ? peak / pool_.size() : peak;  // steps run on one thread
      const double limit = std::max(operations * (kind ? policy.both : policy.forward) / flops,
                                    std::min(median[5 + kind], median[7 + kind]));
      nlohmann::ordered_json with = {{"N", length},
                                     {"batch", 1},
                                     {"heads", options_.heads},
                                     {"dim", options_.dim},
                                     {"layout", options_.layout},
                                     {"threads", pass == 2 ? 1 : pool_.size()},
                                     {"precision", "f32"},
                                     {"isa", kernels::ActiveIsa()},
                                     {"peak_gflops", flops / 1e9}};
      if (pass < 2) with["to_causal_linear"] = median[pass] / median[3 + pass];
      if (pass == 2) with["to_forward"] = median[2] / median[0];
      records_.push_back({.name = StrCat("scan/", policy.name, "/", passes[pass]),
                          .label = StrCat("N=", length),
                          .value = 1e3 * median[pass],
                          .unit = "ms",
                          .limit = 1e3 * limit,
                          .identity = with});
    }
  }

  void PrintRatios() const {
    std::cout << "\n";
    for (const Record& record : records_) {
      const bool steps = record.identity.contains("to_forward");
      std::cout << record.name << "  " << record.label << ": "
                << FormatCount(
                       record.identity[steps ? "to_forward" : "to_causal_linear"].get<double>())
                << (steps ? " times the forward pass\n" : " times bare causal-linear\n");
    }
  }

  const ScanBench& options_;
  ThreadPool pool_;
  std::vector<Record> records_;
};

}  // namespace

void AddScan(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "scan", "Time the kernel of gated recurrences",
      R"(Times forward, forward + backward, and N single steps on one thread, for N = 512, 1024, ...
65536 and each policy, which is a rule for the state's decay and for each position's update of it.
Causal linear attention without feature map and normalizer is timed in the same run for comparison.
The first 4096 outputs of each case, and the gradients at N <= 512, are compared with the reference.
The limit is the larger of two times: the multiply-adds at the machine's peak, and reading and
writing the tensors once. On a GPU, the forward pass and forward + backward are timed; the limit is
reading and writing the tensors once.)",
      "  linnet bench scan\n"
      "  linnet bench scan --policies gla,kda --dim 64 --layout row\n"
      "  linnet bench scan --max-n 4096 --threads 1 --json\n"
      "  linnet bench scan --device cuda --min-n 4096 --max-n 4096\n");
  auto options = std::make_shared<ScanBench>();
  const auto add = [&](const char* name, size_t& value, const char* help, double low, double high) {
    return cli::AddOption(verb, name, value, "N", help, cli::Between(low, high));
  };
  add("--min-n", options->min_n, "Length of the shortest sequence", 64, 1 << 20);
  add("--max-n", options->max_n, "Length of the longest sequence", 64, 1 << 20);
  add("--heads", options->heads, "Number of heads", 1, 64);
  cli::AddOption(verb, "--dim", options->dim, "D", "Dimensions of keys and values: 32, 64 or 128",
                 CLI::IsMember({32, 64, 128}).description(""));
  std::vector<std::string> names;
  for (const ScanPolicy& policy : kScanPolicies) names.push_back(policy.name);
  cli::AddListOption(verb, "--policies", options->policies, "NAMES",
                     "Policies: linear, simple-gla, gla, delta-rule, gated-delta-rule, kda, gdn2, "
                     "rwkv7 (default: all)",
                     CLI::IsMember(names).description(""));
  cli::AddOption(verb, "--layout", options->layout, "NAME",
                 "Order of the tensors in memory: head (H, N, D) or row (N, H, D)",
                 CLI::IsMember({"head", "row"}).description(""));
  cli::AddOption(verb, "--device", options->device, "NAME", "cpu, or cuda (an NVIDIA GPU)",
                 CLI::IsMember({"cpu", "cuda"}).description(""));
  add("--batch", options->batch, "With --device cuda: number of sequences (default: 16)", 1, 65536);
  AddBenchOptions(verb, *options);
  verb->callback([options] {
    if (options->batch != 0 && options->device == "cpu") {
      throw InputError("--batch needs --device cuda");
    }
    if (options->min_n > options->max_n) {
      throw InputError("--min-n ", options->min_n, " is longer than --max-n ", options->max_n);
    }
    if (options->device == "cuda") return RunScanOnGpu(*options);
    ScanMeasurement(*options).Run();
  });
}

}  // namespace linnet::bench
