// linnet bench causal-linear: times the forward pass, and forward + backward, of the attention
// kernel at several sequence lengths. Two forms are timed: the bare product (phi(x) = x, no
// denominator), and the product fused with feature map and denominator. The limit is the longer of
// two times: computing the multiply-adds at this machine's measured peak, and reading the inputs
// and writing the outputs once.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/causal_linear.h"
#include "linnet/base/aligned.h"
#include "linnet/base/larger_error.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/bfloat16.h"
#include "linnet/kernels/causal_linear.h"
#include "linnet/kernels/causal_linear_ref.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/program/program.h"
#include "linnet/rng.h"

namespace linnet::bench {
namespace {

using kernels::BFloat16;
using kernels::CausalLinearOptions;
using kernels::CausalLinearRef;
using kernels::CausalLinearShape;

constexpr size_t kLeastLength = 64, kMostLength = size_t{1} << 20;

constexpr auto& kForms = kCausalLinearForms;

double ToDouble(float x) { return x; }
double ToDouble(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float wide;
  static_assert(sizeof(wide) == sizeof(bits));
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

// One problem, with all the tensors of a training step. T is their element type.
template <typename T>
struct Case {
  Case(const CausalLinearBench& options, size_t length, ThreadPool& pool)
      : pool(pool),
        rows(options.layout == "row"),
        shape{.batch = 1,
              .length = length,
              .heads = options.heads,
              .dim = options.dim,
              .value_dim = options.value_dim},
        kept(kernels::CausalLinearKept(shape)),
        scratch(kernels::CausalLinearScratch(shape) * static_cast<size_t>(pool.size())) {
    for (auto* x : {&q, &k, &grad_q, &grad_k}) *x = Make(shape.dim);
    for (auto* x : {&v, &out, &grad_out, &grad_v}) *x = Make(shape.value_dim);
    uint64_t stream = 0;
    for (auto* x : {&q, &k, &v, &grad_out}) Fill(*x, stream++);
  }

  AlignedBuffer<T> Make(size_t dim) const {
    return AlignedBuffer<T>(shape.heads * shape.length * dim);
  }
  void Fill(AlignedBuffer<T>& x, uint64_t stream) const {
    Philox rng(/*seed=*/shape.length, stream);
    for (T& value : x) {
      const float wide = 2 * rng.Uniform() - 1;
      if constexpr (std::is_same_v<T, float>) {
        value = wide;
      } else {
        kernels::Narrow(1, &wide, &value);
      }
    }
  }

  void Forward(const CausalLinearOptions& options) {
    kernels::CausalLinearForwardArgsOf<T> args;
    args.q = In(q, shape.dim), args.k = In(k, shape.dim), args.v = In(v, shape.value_dim);
    args.out = Out(out, shape.value_dim);
    args.kept = kept.data();
    kernels::CausalLinearForward(shape, options, args, Slots(),
                                 [this](size_t count, RangeBody body) { pool.For(count, body); });
  }

  void Backward(const CausalLinearOptions& options) {
    kernels::CausalLinearBackwardArgsOf<T> args;
    args.q = In(q, shape.dim), args.k = In(k, shape.dim), args.v = In(v, shape.value_dim);
    args.out = In(out, shape.value_dim), args.grad_out = In(grad_out, shape.value_dim);
    args.kept = kept.data();
    args.grad_q = Out(grad_q, shape.dim), args.grad_k = Out(grad_k, shape.dim);
    args.grad_v = Out(grad_v, shape.value_dim);
    kernels::CausalLinearBackward(shape, options, args, Slots(),
                                  [this](size_t count, RangeBody body) { pool.For(count, body); });
  }

  // Reads the inputs and writes the outputs of the forward pass (with `backward`, of both passes)
  // once. With `past_caches`, the stores bypass the caches.
  void Stream(bool backward, bool past_caches) {
    const auto floats = [](const AlignedBuffer<T>& x) { return x.size() * sizeof(T) / 4; };
    const auto read = [&](const AlignedBuffer<T>& x) {
      pool.For(floats(x), [&](size_t begin, size_t end) {
        kernels::ReadFloats(reinterpret_cast<const float*>(x.data()) + begin, end - begin);
      });
    };
    const auto write = [&](AlignedBuffer<T>& x) {
      pool.For(floats(x), [&](size_t begin, size_t end) {
        kernels::WriteFloats(reinterpret_cast<float*>(x.data()) + begin, end - begin, past_caches);
      });
    };
    for (const auto* x : {&q, &k, &v}) read(*x);
    write(out);
    if (!backward) return;
    read(grad_out);
    for (auto* x : {&grad_q, &grad_k, &grad_v}) write(*x);
  }

  template <typename U>
  kernels::Strided<U> View(U* x, size_t dim) const {
    return rows ? kernels::RowMajor(x, shape.length, shape.heads, dim)
                : kernels::HeadMajor(x, shape.length, shape.heads, dim);
  }
  kernels::Strided<const T> In(const AlignedBuffer<T>& x, size_t dim) const {
    return View(x.data(), dim);
  }
  kernels::Strided<T> Out(AlignedBuffer<T>& x, size_t dim) const { return View(x.data(), dim); }
  kernels::Scratch Slots() { return {scratch.data(), static_cast<size_t>(pool.size())}; }

  std::vector<double> HeadOf(const AlignedBuffer<T>& x, size_t dim, size_t head) const {
    const auto view = In(x, dim);
    std::vector<double> values;
    values.reserve(shape.length * dim);
    for (size_t i = 0; i < shape.length; ++i) {
      const T* row = view.At(0, i, head);
      for (size_t c = 0; c < dim; ++c) values.push_back(ToDouble(row[c]));
    }
    return values;
  }

  ThreadPool& pool;
  const bool rows;  // layout (N, H, D); otherwise (H, N, D)
  const CausalLinearShape shape;
  AlignedBuffer<T> q, k, v, grad_out;
  AlignedBuffer<T> out, grad_q, grad_k, grad_v;
  AlignedBuffer<float> kept, scratch;  // kept: what the forward pass saves for the backward pass
};

template <typename T>
void Check(Case<T>& problem, const CausalLinearForm& form) {
  problem.Forward(form.options);
  problem.Backward(form.options);
  const CausalLinearShape& shape = problem.shape;
  std::vector<CausalLinearHead> heads;
  for (size_t head : std::set<size_t>{0, shape.heads - 1}) {
    const auto keys = [&](const AlignedBuffer<T>& x) { return problem.HeadOf(x, shape.dim, head); };
    const auto values = [&](const AlignedBuffer<T>& x) {
      return problem.HeadOf(x, shape.value_dim, head);
    };
    heads.push_back({.q = keys(problem.q),
                     .k = keys(problem.k),
                     .v = values(problem.v),
                     .grad_out = values(problem.grad_out),
                     .out = values(problem.out),
                     .grad_q = keys(problem.grad_q),
                     .grad_k = keys(problem.grad_k),
                     .grad_v = values(problem.grad_v)});
  }
  CheckCausalLinear(shape, form, std::is_same_v<T, BFloat16>, heads);
}

// Bytes of memory for the tensors of a problem and for Check(), which copies two heads to double
// precision and keeps the reference's results of one.
double Need(const CausalLinearBench& options, size_t length) {
  const auto n = static_cast<double>(length), d = static_cast<double>(options.dim),
             m = static_cast<double>(options.value_dim);
  const double element = options.precision == "bf16" ? 2 : 4;
  return n * static_cast<double>(options.heads) * (4 * (d + m) * element + 4) +
         8 * n * (2 * 4 * (d + m) + 4 * d + 3 * m + 1);
}

// Smallest and largest time per token of one form and pass, over all lengths.
struct Growth {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  void Add(double x) { least = std::min(least, x), most = std::max(most, x); }
};

constexpr const char* kPasses[] = {"forward", "forward+backward"};

// Measures all lengths, with tensors of element type T.
template <typename T>
class Measurement {
 public:
  explicit Measurement(const CausalLinearBench& options)
      : options_(options),
        pool_(options.threads),
        identity_({{"batch", 1},
                   {"heads", options.heads},
                   {"dim", options.dim},
                   {"value_dim", options.value_dim},
                   {"layout", options.layout},
                   {"threads", pool_.size()},
                   {"precision", options.precision},
                   {"isa", kernels::ActiveIsa()}}) {}

  void Run() {
    for (size_t length = options_.min_n; length <= options_.max_n && Fits(length); length *= 2) {
      Measure(length);
      longest_ = length;
    }
    AddSpreads();
    PrintRecords(records_, options_.json);
    if (!options_.json) PrintRatiosToBare();
  }

 private:
  // Whether a problem of `length` fits into the free memory. Throws InputError if the first length
  // does not fit.
  bool Fits(size_t length) const {
    const double need = Need(options_, length), there = static_cast<double>(AvailableMemory());
    if (there <= 0 || need <= 0.8 * there) return true;
    const std::string what = StrCat("N = ", length, " needs ", FormatBytes(need),
                                    " of memory, and ", FormatBytes(there), " are free");
    if (longest_ == 0) throw InputError("bench causal-linear: ", what, "; give a smaller --min-n");
    std::cerr << "linnet bench causal-linear: left out: " << what << std::endl;
    return false;
  }

  void Measure(size_t length) {
    Case<T> problem(options_, length, pool_);
    for (const CausalLinearForm& form : kForms) Check(problem, form);

    constexpr size_t kRounds = 100'000;
    const auto forward = [&](int form) { problem.Forward(kForms[form].options); };
    const auto both = [&](int form) {
      problem.Forward(kForms[form].options);
      problem.Backward(kForms[form].options);
    };
    const auto bare_forward = [&] { forward(0); };
    const auto bare_both = [&] { both(0); };
    const auto fused_forward = [&] { forward(1); };
    const auto fused_both = [&] { both(1); };
    // stream_* store through the caches, past_* bypass them. The limit uses the faster of the two.
    const auto stream_forward = [&] { problem.Stream(false, false); };
    const auto stream_both = [&] { problem.Stream(true, false); };
    const auto past_forward = [&] { problem.Stream(false, true); };
    const auto past_both = [&] { problem.Stream(true, true); };
    const auto spin = [&] { pool_.Run([](int) { kernels::SpinFma(kRounds); }); };
    const std::vector<double> median =
        MedianSeconds({bare_forward, bare_both, fused_forward, fused_both, stream_forward,
                       stream_both, past_forward, past_both, spin},
                      options_.seconds);

    const double peak = pool_.size() * kernels::FmaFlops(kRounds) / median[8];
    for (size_t form : {0, 1}) {
      for (size_t pass : {0, 1}) {
        const double seconds = median[2 * form + pass];
        const double products = CausalLinearFlops(problem.shape, pass == 1) / peak;
        const double stream = std::min(median[4 + pass], median[6 + pass]);
        nlohmann::ordered_json with = {{"N", length}};
        with.update(identity_);
        with.update({{"ns_per_token", 1e9 * seconds / static_cast<double>(length)},
                     {"peak_gflops", peak / 1e9},
                     {"products_ms", 1e3 * products},
                     {"stream_ms", 1e3 * stream}});
        if (form == 1) with["to_bare"] = seconds / median[pass];
        records_.push_back({.name = NameOf(form, pass),
                            .label = StrCat("N=", length),
                            .value = 1e3 * seconds,
                            .unit = "ms",
                            .limit = 1e3 * std::max(products, stream),
                            .identity = with});
        growth_[form][pass].Add(seconds / static_cast<double>(length));
      }
    }
  }

  void AddSpreads() {
    for (size_t form : {0, 1}) {
      for (size_t pass : {0, 1}) {
        nlohmann::ordered_json with = {{"N", longest_}, {"from_N", options_.min_n}};
        with.update(identity_);
        records_.push_back({.name = NameOf(form, pass) + "/spread",
                            .label = "time per token, largest / smallest",
                            .value = growth_[form][pass].most / growth_[form][pass].least,
                            .unit = "x",
                            .limit = 1,
                            .identity = with});
      }
    }
  }

  void PrintRatiosToBare() const {
    std::cout << "\n";
    for (const Record& record : records_) {
      if (!record.identity.contains("to_bare")) continue;
      std::cout << record.name << "  " << record.label << ": "
                << FormatCount(record.identity["to_bare"].get<double>())
                << " times the bare product\n";
    }
  }

  static std::string NameOf(size_t form, size_t pass) {
    return StrCat("causal-linear/", kForms[form].name, "/", kPasses[pass]);
  }

  const CausalLinearBench& options_;
  ThreadPool pool_;
  const nlohmann::ordered_json identity_;
  std::vector<Record> records_;
  Growth growth_[2][2];  // [form][pass]
  size_t longest_ = 0;   // last length measured; 0: none yet
};

}  // namespace

void CheckCausalLinear(const CausalLinearShape& shape, const CausalLinearForm& form, bool bf16,
                       const std::vector<CausalLinearHead>& heads) {
  // The reference's gradients cost O(N) per row, so only some rows are compared.
  const size_t length = shape.length;
  const std::set<size_t> rows = {0, 1, 33, length / 3, length / 2, length - 2, length - 1};
  RelativeError out, grad_q, grad_k, grad_v;
  const auto compare = [](RelativeError& error, const std::vector<double>& x, size_t row,
                          const std::vector<double>& expected) {
    for (size_t c = 0; c < expected.size(); ++c)
      error.Add(x[row * expected.size() + c], expected[c]);
  };
  for (const CausalLinearHead& head : heads) {
    const CausalLinearRef twin(length, shape.dim, shape.value_dim, form.options, head.q, head.k,
                               head.v, length);
    for (size_t row = 0; row < length; ++row) compare(out, head.out, row, twin.Out(row));
    for (size_t row : rows) {
      compare(grad_q, head.grad_q, row, twin.GradQ(row, head.grad_out));
      compare(grad_k, head.grad_k, row, twin.GradK(row, head.grad_out));
      compare(grad_v, head.grad_v, row, twin.GradV(row, head.grad_out));
    }
  }
  // The tolerance is larger in bf16: the results are rounded, and the backward pass also reads a
  // rounded output.
  const double tolerance = bf16 ? 2e-2 : 1e-4;
  double worst = 0;
  for (const double error : {out.value(), grad_q.value(), grad_k.value(), grad_v.value()}) {
    worst = LargerError(worst, error);
  }
  if (!(worst <= tolerance)) {
    throw RuntimeError("bench causal-linear: at N = ", length, " the ", form.name,
                       " kernel differs from its reference by ", worst, " (allowed: ", tolerance,
                       "); not timed");
  }
}

void AddCausalLinear(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "causal-linear", "Time the kernel of causal linear attention",
      R"(Times the forward pass, and forward + backward, for N = 512, 1024, ... 65536. Two
operations are timed: the bare product (phi(x) = x, no normalizer), and the product fused with
feature map and normalizer. The limit is the larger of two times: the multiply-adds at the machine's
peak, and reading and writing the tensors once. Results named .../spread are the longest time per
token divided by the shortest, over all N.)",
      "  linnet bench causal-linear\n"
      "  linnet bench causal-linear --dim 64 --precision bf16 --layout row\n"
      "  linnet bench causal-linear --max-n 4096 --threads 1 --json\n"
      "  linnet bench causal-linear --device cuda --precision bf16\n");
  auto options = std::make_shared<CausalLinearBench>();
  const auto add = [&](const char* name, size_t& value, const char* help, double low, double high) {
    return cli::AddOption(verb, name, value, "N", help, cli::Between(low, high));
  };
  add("--min-n", options->min_n, "Length of the shortest sequence", kLeastLength, kMostLength);
  add("--max-n", options->max_n, "Length of the longest sequence", kLeastLength, kMostLength);
  add("--heads", options->heads, "Number of heads", 1, 64);
  cli::AddOption(verb, "--dim", options->dim, "D", "Dimensions of queries and keys: 32, 64 or 128",
                 CLI::IsMember({32, 64, 128}).description(""));
  add("--value-dim", options->value_dim, "Dimensions of values (default: --dim)", 1, 256);
  cli::AddOption(verb, "--layout", options->layout, "NAME",
                 "Order of the tensors in memory: head (H, N, D) or row (N, H, D)",
                 CLI::IsMember({"head", "row"}).description(""));
  cli::AddOption(verb, "--precision", options->precision, "P",
                 "Precision of the tensors: f32 or bf16",
                 CLI::IsMember({"f32", "bf16"}).description(""));
  cli::AddOption(verb, "--device", options->device, "NAME",
                 "cpu, or cuda (an NVIDIA GPU; the limit is then the GPU's memory bandwidth)",
                 CLI::IsMember({"cpu", "cuda"}).description(""));
  add("--batch", options->batch, "With --device cuda: number of sequences (default: 16)", 1, 65536);
  add("--segments", options->segments,
      "With --device cuda: concurrent parts of a sequence (default: automatic)", 1, 1024);
  AddBenchOptions(verb, *options);
  verb->callback([options] {
    if ((options->batch != 0 || options->segments != 0) && options->device == "cpu") {
      throw InputError("--batch and --segments need --device cuda");
    }
    if (options->value_dim == 0) options->value_dim = options->dim;
    if (options->min_n > options->max_n) {
      throw InputError("--min-n ", options->min_n, " is longer than --max-n ", options->max_n);
    }
    if (options->device == "cuda") return RunCausalLinearOnGpu(*options);
    if (options->precision == "bf16") return Measurement<BFloat16>(*options).Run();
    Measurement<float>(*options).Run();
  });
}

}  // namespace linnet::bench
