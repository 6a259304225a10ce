// linnet bench scan: times forward, forward + backward and single steps of the gated recurrences at
// several sequence lengths, with causal linear attention in the same run for comparison. The limit
// is the longer of two times: computing the multiply-adds at this machine's measured peak, and
// reading the inputs and writing the outputs once.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/benchmarks.h"
#include "bench/scan_policies.h"
#include "linnet/base/aligned.h"
#include "linnet/base/larger_error.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/kernels/scan.h"
#include "linnet/kernels/scan_ref.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"

namespace linnet::bench {
namespace {

using kernels::ScanOptions;
using kernels::ScanShape;
using kernels::ScanWidths;
using kernels::ScanWrite;
using Buffer = AlignedBuffer<float>;

struct ScanBenchOptions : BenchOptions {
  size_t heads = 8, dim = 32, min_n = 512, max_n = 65536;
  std::string layout = "head";
  std::vector<std::string> policies;
};

// A problem for one policy, with all the tensors of a training step.
class ScanCase {
 public:
  ScanCase(const ScanBenchOptions& options, const ScanPolicy& policy, size_t length,
           ThreadPool& pool)
      : pool_(pool),
        rows_(options.layout == "row"),
        shape_{.batch = 1,
               .length = length,
               .heads = options.heads,
               .dim = options.dim,
               .value_dim = options.dim},
        options_{.decay = policy.decay,
                 .write = policy.write,
                 .scale = 1 / std::sqrt(static_cast<float>(options.dim))},
        widths_(options_, options.dim, options.dim) {
    const size_t sizes[] = {options.dim,   options.dim,   options.dim,
                            widths_.decay, widths_.erase, widths_.write};
    for (size_t i = 0; i < 6; ++i) {
      in_[i] = Buffer(shape_.heads * length * sizes[i]);
      grad_[i] = Buffer(in_[i].size());
      Philox rng(/*seed=*/length, /*stream=*/i);
      for (float& x : in_[i]) x = 2 * rng.Uniform() - 1;
    }
    Prepare(policy);
    out_ = Buffer(in_[2].size()), grad_out_ = Buffer(in_[2].size());
    Philox rng(/*seed=*/length, /*stream=*/6);
    for (float& x : grad_out_) x = 2 * rng.Uniform() - 1;
    kept_ = Buffer(kernels::ScanKept(shape_, options_));
    const size_t slots = static_cast<size_t>(pool.size());
    forward_scratch_ = Buffer(kernels::ScanForwardScratch(shape_, options_) * slots);
    backward_scratch_ = Buffer(kernels::ScanBackwardScratch(shape_, options_) * slots);
    state_ = Buffer(shape_.heads * options.dim * options.dim);
    step_scratch_ = Buffer(kernels::ScanStepScratch(shape_));
  }

  const ScanShape& shape() const { return shape_; }

  void Forward() {
    kernels::ScanForward(shape_, options_,
                         {.in = In(), .out = View(out_, shape_.value_dim), .kept = kept_.data()},
                         {forward_scratch_.data(), static_cast<size_t>(pool_.size())},
                         [this](size_t count, RangeBody body) { pool_.For(count, body); });
  }
  void Backward() {
    kernels::ScanBackward(shape_, options_,
                          {.in = In(),
                           .out = View<const float>(out_, shape_.value_dim),
                           .grad_out = View<const float>(grad_out_, shape_.value_dim),
                           .kept = kept_.data(),
                           .grad = Tensors<float>(grad_)},
                          {backward_scratch_.data(), static_cast<size_t>(pool_.size())},
                          [this](size_t count, RangeBody body) { pool_.For(count, body); });
  }
  // Runs all positions one by one, on one thread.
  void Steps() {
    std::fill(state_.begin(), state_.end(), 0.0f);
    kernels::ScanStepArgs args{.in = In(),
                               .out = View(out_, shape_.value_dim),
                               .s = state_.data(),
                               .scratch = step_scratch_.data()};
    ScanShape one = shape_;
    one.length = 1;
    for (size_t t = 0; t < shape_.length; ++t) {
      kernels::ScanStep(one, options_, args);
      const auto next = [](auto& x) { x.data += x.time; };
      next(args.in.q), next(args.in.k), next(args.in.v), next(args.out);
      next(args.in.decay), next(args.in.erase), next(args.in.write);
    }
  }
  // Reads the inputs and writes the outputs of the forward pass (with `backward`, of both passes)
  // once. With `past_caches`, the stores bypass the caches.
  void Stream(bool backward, bool past_caches) {
    for (const Buffer& x : in_) ReadAll(x);
    WriteAll(out_, past_caches);
    if (!backward) return;
    ReadAll(grad_out_);
    for (Buffer& x : grad_) WriteAll(x, past_caches);
  }

  // With `steps`, runs Steps(), otherwise Forward() and Backward(). Compares the first kMostRows
  // outputs of the last head with the reference. Without `steps`, also compares the gradients if
  // the sequence has at most kMostGradients positions. Throws RuntimeError if results differ.
  void Check(const ScanPolicy& policy, bool steps) {
    constexpr size_t kMostRows = 4096, kMostGradients = 512;
    if (steps) {
      Steps();
    } else {
      Forward();
      Backward();
    }
    const size_t length = std::min(shape_.length, kMostRows), dim = shape_.dim;
    kernels::ScanSequence x{.length = length, .dim = dim, .value_dim = dim, .options = options_};
    std::vector<double>* const to[] = {&x.q, &x.k, &x.v, &x.decay, &x.erase, &x.write};
    for (size_t i = 0; i < 6; ++i) *to[i] = Head(in_[i], length);
    const kernels::ScanRef twin(x);
    double worst = Error(Head(out_, length), twin.out());
    if (!steps && shape_.length <= kMostGradients) {
      const kernels::ScanSequence grad = twin.Gradients(Head(grad_out_, length));
      const std::vector<double>* const want[] = {&grad.q,     &grad.k,     &grad.v,
                                                 &grad.decay, &grad.erase, &grad.write};
      for (size_t i = 0; i < 6; ++i) {
        const double error = Error(Head(grad_[i], length), *want[i]);
        worst = LargerError(worst, error);
      }
    }
    if (!(worst <= 1e-4)) {
      throw RuntimeError("bench scan: at N = ", shape_.length, " ", policy.name,
                         steps ? " in steps" : "", " differs from its reference by ", worst,
                         " (allowed: 1e-4); not timed");
    }
  }

 private:
  // Turns the random numbers in (-1, 1) of in_ (q, k, v, decay, erase, write) into valid inputs:
  // negative log-decays, erase and write strengths in (0, 1), and keys of norm 1.
  void Prepare(const ScanPolicy& policy) {
    for (float& g : in_[3]) g = -0.05f * (1 + g);  // mean -0.05, as for trained gates
    if (policy.write == ScanWrite::kAdd) return;
    Normalize(in_[1]);
    if (policy.write != ScanWrite::kRwkv7) {
      for (size_t i : {4, 5}) {
        for (float& x : in_[i]) x = 0.5f * (1 + x);
      }
      return;
    }
    Normalize(in_[5]);
    // In RWKV-7, erase is a = -kk and write is b = kk * eta, where kk is a key of norm 1.
    for (size_t i = 0; i < in_[4].size(); ++i) {
      const float eta = 0.5f * (1 + in_[4][i]);
      in_[4][i] = -in_[5][i], in_[5][i] *= eta;
    }
  }
  void Normalize(Buffer& rows) const {
    for (float* row = rows.begin(); row < rows.end(); row += shape_.dim) {
      float sum = 1e-6f;
      for (size_t d = 0; d < shape_.dim; ++d) sum += row[d] * row[d];
      for (size_t d = 0; d < shape_.dim; ++d) row[d] /= std::sqrt(sum);
    }
  }

  template <typename T, class B>
  kernels::Strided<T> View(B& x, size_t width) const {
    if (x.size() == 0) return {};
    return rows_ ? kernels::RowMajor<T>(x.data(), shape_.length, shape_.heads, width)
                 : kernels::HeadMajor<T>(x.data(), shape_.length, shape_.heads, width);
  }
  kernels::Strided<float> View(Buffer& x, size_t width) const {
    return View<float, Buffer>(x, width);
  }
  template <typename T, class Buffers>
  kernels::ScanTensors<T> Tensors(Buffers& x) const {
    return {View<T>(x[0], shape_.dim),    View<T>(x[1], shape_.dim),
            View<T>(x[2], shape_.dim),    View<T>(x[3], widths_.decay),
            View<T>(x[4], widths_.erase), View<T>(x[5], widths_.write)};
  }
  kernels::ScanTensors<const float> In() const { return Tensors<const float>(in_); }
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
  // The first `length` rows of the last head, row-major.
  std::vector<double> Head(const Buffer& x, size_t length) const {
    std::vector<double> values;
    const size_t width = x.size() / (shape_.heads * shape_.length);
    const auto view = View<const float>(x, width);
    for (size_t t = 0; t < length && width > 0; ++t) {
      const float* row = view.At(0, t, shape_.heads - 1);
      values.insert(values.end(), row, row + width);
    }
    return values;
  }
  static double Error(const std::vector<double>& got, const std::vector<double>& want) {
    RelativeError error;
    for (size_t i = 0; i < want.size(); ++i) error.Add(got[i], want[i]);
    return want.empty() ? 0 : error.value();
  }

  ThreadPool& pool_;
  const bool rows_;  // layout (N, H, D); otherwise (H, N, D)
  const ScanShape shape_;
  const ScanOptions options_;
  const ScanWidths widths_;
  Buffer in_[6], grad_[6];  // q, k, v, decay, erase, write
  Buffer out_, grad_out_, kept_, forward_scratch_, backward_scratch_, state_, step_scratch_;
};

// Causal linear attention of the same shape, without feature map and denominator.
class Baseline {
 public:
  Baseline(const ScanBenchOptions& options, size_t length, ThreadPool& pool)
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
  explicit ScanMeasurement(const ScanBenchOptions& options)
      : options_(options), pool_(options.threads) {}

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
    problem.Check(policy, /*steps=*/true);
    problem.Check(policy, /*steps=*/false);
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

  const ScanBenchOptions& options_;
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
writing the tensors once.)",
      "  linnet bench scan\n"
      "  linnet bench scan --policies gla,kda --dim 64 --layout row\n"
      "  linnet bench scan --max-n 4096 --threads 1 --json\n");
  auto options = std::make_shared<ScanBenchOptions>();
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
  AddBenchOptions(verb, *options);
  verb->callback([options] {
    if (options->min_n > options->max_n) {
      throw InputError("--min-n ", options->min_n, " is longer than --max-n ", options->max_n);
    }
    ScanMeasurement(*options).Run();
  });
}

}  // namespace linnet::bench
