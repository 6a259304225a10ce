// linnet bench attention: measures time and memory per sample of a forward and a backward pass
// against the sequence length, for the attention kinds of the paper's figure 1 (section 4.1.2).
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <sys/resource.h>
#include <torch/autograd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench.h"
#include "bench/torch/attention_check.h"
#include "bench/torch/benchmarks.h"
#include "bench/torch/device.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/progress.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/machine_peak.h"
#include "linnet/nn/mixer.h"
#include "linnet/ops/parallel.h"
#include "linnet/ops/plain.h"
#include "linnet/program/child.h"
#include "linnet/program/machine.h"
#include "linnet/program/program.h"

namespace linnet::bench {
namespace {

using nlohmann::ordered_json;
using torch::Tensor;

constexpr int64_t kHeads = 8, kBuckets = 64, kChunk = 32;
constexpr int64_t kLeastLength = 64, kMostLength = 1 << 20;
constexpr double kTolerance = 2e-4;
constexpr uint64_t kSeed = 1;
constexpr double kSlack = 1.2;  // a case may exceed the memory budget by this factor

struct Method {
  const char* name;
  int rounds = 0;             // of hashing (LSH); 0 for other methods
  bool quadratic = false;     // work grows with N^2
  bool plain = false;         // in unfused libtorch operations
  std::string_view map = {};  // the feature map of linear attention; "": not linear
};
constexpr Method kMethods[] = {{.name = "linear", .map = "elu"},
                               {.name = "polynomial2", .map = "polynomial2"},
                               {.name = "softmax", .quadratic = true},
                               {.name = "softmax-plain", .quadratic = true, .plain = true},
                               {.name = "lsh-1", .rounds = 1},
                               {.name = "lsh-4", .rounds = 4},
                               {.name = "lsh-8", .rounds = 8}};

struct Options : BenchOptions {
  int64_t min_n = 512, max_n = 65536, tokens = 65536, dim = 32;
  double memory = 0;  // in bytes; 0: 60% of the free memory
  bool causal = true;
  std::vector<std::string> methods;
  std::string device = "cpu";
  std::string one;  // in the child process: METHOD:N:BATCH
};

const Method& FindMethod(const std::string& name) {
  for (const Method& method : kMethods) {
    if (name == method.name) return method;
  }
  std::string known;
  for (const Method& method : kMethods)
    known += (known.empty() ? "" : ", ") + std::string(method.name);
  throw InputError("no method '", name, "'; choose one of ", known);
}

// ------------------------------------------------------------------------------------------
// Code of the child process: measures one method at one length.

MixerSpec SpecOf(const Method& method, bool causal) {
  if (method.quadratic) return {.kind = "full"};
  if (!method.map.empty()) {
    return {.kind = causal ? "causal-linear" : "linear", .feature_map = std::string(method.map)};
  }
  return {.kind = "reformer",
          .lsh_rounds = method.rounds,
          .lsh_buckets = kBuckets,
          .lsh_chunk = kChunk};
}

// A forward and a backward pass of one method: pass(inputs) returns the output and the gradients.
struct Pass {
  Pass(const Method& method, const Options& options)
      : method(method),
        dim(options.dim),
        mask{.causal = options.causal},
        attention(nn::MakeMixer(SpecOf(method, options.causal), {kHeads, dim, dim})) {}

  // Random inputs. q, k and v are separate tensors, as in training; with LSH, k is q.
  AttentionProblem Inputs(int64_t batch, int64_t length) const {
    const auto input = [&] { return torch::randn({batch, length, kHeads, dim}); };
    AttentionProblem problem;
    problem.causal = mask.causal;
    problem.q = input().requires_grad_();
    // Small keys for the polynomial, whose similarity (q . k / sqrt(D) + 1)^2 may else be nearly 0
    // in the first rows; dividing by it would magnify rounding errors.
    const double size = method.map == "polynomial2" ? 0.1 : 1;
    problem.k = method.rounds > 0 ? problem.q : (size * input()).requires_grad_();
    problem.v = input().requires_grad_();
    problem.grad_out = input();
    return problem;
  }

  AttentionResult operator()(const AttentionProblem& in) {
    std::optional<ops::PlainGuard> guard;
    if (method.plain) guard.emplace();
    if (method.rounds > 0) torch::manual_seed(kSeed);  // the same hashes in every pass
    AttentionResult result;
    result.out = attention->forward(in.q, in.k, in.v, mask);
    if (method.rounds > 0) {
      const auto grads = torch::autograd::grad({result.out}, {in.q, in.v}, {in.grad_out});
      result.grad_q = grads[0], result.grad_v = grads[1];
    } else {
      const auto grads = torch::autograd::grad({result.out}, {in.q, in.k, in.v}, {in.grad_out});
      result.grad_q = grads[0], result.grad_k = grads[1], result.grad_v = grads[2];
    }
    return result;
  }

  double Error(const AttentionProblem& problem, const AttentionResult& result) const {
    if (method.quadratic) return SoftmaxError(problem, result);
    if (method.map == "elu") return LinearError(problem, result);
    if (method.map == "polynomial2") return Polynomial2Error(problem, result);
    return LshError(problem, result, Rounds());
  }

  LshRounds Rounds() const {
    // The planes of operator(): the mixer draws them first after the same seed.
    torch::manual_seed(kSeed);
    return {torch::randn({method.rounds, dim, kBuckets / 2}), kBuckets, kChunk};
  }

  const Method& method;
  int64_t dim;
  nn::Mask mask;
  nn::Mixer attention;
};

// Reads every input once and writes every output once, with all threads.
void Stream(const std::vector<Tensor>& in, const std::vector<Tensor>& out, bool past_caches) {
  for (const Tensor& x : in) {
    ops::AtParallelFor(static_cast<size_t>(x.numel()), [&](size_t begin, size_t end) {
      kernels::ReadFloats(x.data_ptr<float>() + begin, end - begin);
    });
  }
  for (const Tensor& x : out) {
    ops::AtParallelFor(static_cast<size_t>(x.numel()), [&](size_t begin, size_t end) {
      kernels::WriteFloats(x.data_ptr<float>() + begin, end - begin, past_caches);
    });
  }
}

// During its lifetime, limits this process to its current memory plus `bytes`, so that an
// allocation fails before the machine's memory is exhausted.
class MemoryLimit {
 public:
  explicit MemoryLimit(double bytes) {
    std::ifstream status("/proc/self/status");
    double held = 0;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmData:")) held = 1024 * std::stod(line.substr(7));
    }
    if (bytes <= 0 || held <= 0 || getrlimit(RLIMIT_DATA, &before_) != 0) return;
    rlimit limit = before_;
    limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(held + bytes));
    set_ = setrlimit(RLIMIT_DATA, &limit) == 0;
  }
  ~MemoryLimit() {
    if (set_) setrlimit(RLIMIT_DATA, &before_);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_ = {};
  bool set_ = false;
};

template <class Body>
void AddTime(std::vector<double>& times, const Body& body) {
  const Stopwatch watch;
  body();
  times.push_back(watch.Seconds());
}

// The machine's limits for a pass: the rate of multiply-adds, and the time to read all inputs and
// write all outputs. Each Measure() measures both once; the results are medians.
class Limits {
 public:
  Limits(const AttentionProblem& problem, bool separate_keys) {
    in_ = {problem.q.detach(), problem.v.detach(), problem.grad_out};
    if (separate_keys) in_.push_back(problem.k.detach());
    for (int i = 0; i < (separate_keys ? 4 : 3); ++i) out_.push_back(torch::empty_like(in_[0]));
  }

  void Measure() {
    AddTime(spin_, [&] {
      ops::AtParallelFor(threads(), [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) kernels::SpinFma(kRounds);
      });
    });
    AddTime(stream_, [&] { Stream(in_, out_, false); });
    AddTime(past_, [&] { Stream(in_, out_, true); });
  }
  void Clear() { spin_.clear(), stream_.clear(), past_.clear(); }

  static size_t threads() { return static_cast<size_t>(at::get_num_threads()); }
  double Flops() const {
    return static_cast<double>(threads()) * kernels::FmaFlops(kRounds) / Median(spin_);
  }
  double StreamSeconds() const { return std::min(Median(stream_), Median(past_)); }

 private:
  static constexpr size_t kRounds = 100'000;
  std::vector<Tensor> in_, out_;
  std::vector<double> spin_, stream_, past_;
};

ordered_json MeasureOne(const Method& method, int64_t length, int64_t batch,
                        const Options& options) {
  torch::manual_seed(kSeed);
  Pass pass(method, options);
  pass(pass.Inputs(1, 64));  // warm-up: loads code, starts threads

  AttentionProblem problem;
  AttentionResult result;
  int64_t bytes = 0;
  {
    const MemoryLimit limit(kSlack * options.memory);
    ResetPeakMemory();
    const int64_t before = PeakMemory();
    problem = pass.Inputs(batch, length);
    if (method.rounds > 0) SeparateBuckets(problem, pass.Rounds());
    result = pass(problem);
    bytes = PeakMemory() - before;
  }

  const double error = pass.Error(problem, result);
  if (!(error <= kTolerance)) {
    throw RuntimeError("bench attention: at N = ", length, " ", method.name,
                       " differs from the double-precision reference by ", error,
                       " (allowed: ", kTolerance, "); not timed");
  }

  Limits limits(problem, /*separate_keys=*/method.rounds == 0);
  result = {};
  std::vector<double> seconds;
  const auto run = [&] { pass(problem); };
  AddTime(seconds, run);  // reuses the memory that the first pass allocated
  const double once = seconds[0];
  // Long passes vary little, so one measurement is enough.
  const int repeats =
      once > 10 ? 1 : static_cast<int>(std::clamp(options.seconds / once, 3.0, 100.0));
  limits.Measure();  // a warm-up, like the first of several passes
  if (repeats > 1) seconds.clear();
  limits.Clear();
  for (int i = 0; i < std::max(repeats, 3); ++i) {
    if (repeats > 1) AddTime(seconds, run);
    limits.Measure();
  }
  return {{"seconds", Median(seconds)},
          {"repeats", repeats},
          {"bytes", bytes},
          {"flops", limits.Flops()},
          {"stream_seconds", limits.StreamSeconds()},
          {"error", error},
          {"threads", Limits::threads()},
          {"isa", kernels::ActiveIsa()}};
}

// Measures the case that --one names and prints one line of JSON: the measurement, or "no_memory",
// or "wrong" with a message if the result is wrong.
void RunOne(const Options& options) {
  char method[32] = "";
  long length = 0, batch = 0;
  if (std::sscanf(options.one.c_str(), "%31[^:]:%ld:%ld", method, &length, &batch) != 3) {
    throw InputError("--one takes METHOD:N:BATCH");
  }
  at::set_num_threads(options.threads > 0 ? options.threads : ThreadPool::AvailableProcessors());
  ordered_json line;
  try {
    line = MeasureOne(FindMethod(method), length, batch, options);
  } catch (const std::bad_alloc&) {
    line["no_memory"] = true;
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    if (what.find("DefaultCPUAllocator") == std::string::npos) throw RuntimeError(what);
    line["no_memory"] = true;
  } catch (const Error& error) {
    line["wrong"] = error.what();
  }
  std::cout << line.dump() << "\n";
}

// ------------------------------------------------------------------------------------------
// Code of the parent process: measures all methods and lengths.

struct Point {
  int64_t length = 0, batch = 0;
  double seconds = 0, bytes = 0;  // per sample
  double limit_seconds = 0, limit_bytes = 0;
  ordered_json measured;
};

// Operations per sample in the products that every implementation of the method needs; a
// multiply-add counts as two.
double Flops(const Method& method, int64_t length, const Options& options) {
  const auto n = static_cast<double>(length), d = static_cast<double>(options.dim);
  const double both = kHeads * 6 * (d + d);  // per query-key pair: 2 products forward, 4 backward
  const double pairs = both * (options.causal ? n * (n + 1) / 2 : n * n);
  if (method.quadratic) return pairs;
  if (!method.map.empty()) {
    const bool elu = method.map == "elu";
    const double features = elu ? d : 1 + d + d * (d + 1) / 2;
    const double linear = kHeads * n * (options.causal ? 14 : 12) * features * d;
    return elu ? linear : std::min(linear, pairs);
  }
  return method.rounds * n * (both * 2 * kChunk + kHeads * d * kBuckets);
}

// Bytes per sample of q, k, v (LSH: q, v), the output, and the gradients of all these tensors.
double InAndOut(const Method& method, int64_t length, int64_t dim) {
  return 4.0 * static_cast<double>(length * kHeads * dim) * (method.rounds > 0 ? 6 : 8);
}

// An estimate of a sample's memory in bytes, used before anything is measured. A method that stores
// N x N matrices needs six of them per head: scores, weights, masked copies and gradients.
double FirstNeed(const Method& method, int64_t length, int64_t dim) {
  const auto n = static_cast<double>(length);
  return 2 * InAndOut(method, length, dim) + (method.plain ? 4.0 * kHeads * n * 6 * n : 0);
}

// Fits log y against log length by least squares and returns the slope. Uses the longer half of the
// points, but at least two, and sets *from to the shortest length used. For fewer than two points,
// returns 0 and leaves *from unchanged.
double Exponent(const std::vector<Point>& points, double Point::*y, int64_t* from) {
  const size_t count = std::max<size_t>((points.size() + 1) / 2, 2);
  if (points.size() < 2) return 0;
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t i = points.size() - count; i < points.size(); ++i) {
    const double a = std::log(static_cast<double>(points[i].length));
    const double b = std::log(std::max(points[i].*y, 1e-12));
    sx += a, sy += b, sxx += a * a, sxy += a * b;
  }
  *from = points[points.size() - count].length;
  const auto n = static_cast<double>(count);
  return (sxy - sx * sy / n) / (sxx - sx * sx / n);
}

struct Curve {
  std::vector<Point> points;
  ordered_json left_out = ordered_json::array();
};

// Measures a method at all lengths, each in a child process, in `budget` bytes of memory. Calls
// begins() before each measurement, and says() with a line of text if lengths are left out.
Curve MeasureMethod(const Method& method, const Options& options, double budget,
                    const std::function<void(int64_t length, int64_t batch)>& begins,
                    const std::function<void(const std::string&)>& says) {
  Curve curve;
  for (int64_t length = options.min_n; length <= options.max_n; length *= 2) {
    const auto leave_out = [&](const std::string& why) {
      for (int64_t n = length; n <= options.max_n; n *= 2) {
        curve.left_out.push_back(
            {{"N", n},
             {"why", n == length ? why : "longer than the first length that was left out"}});
      }
      says(StrCat("left out ", method.name, " from N = ", length, ": ", why));
    };
    // Extrapolates from the previous point, which has half the length. Memory grows no faster than
    // the work: by a factor of 4 for quadratic methods, 2 for the others.
    const double need = curve.points.empty()
                            ? FirstNeed(method, length, options.dim)
                            : std::max((method.quadratic ? 4 : 2) * curve.points.back().bytes,
                                       InAndOut(method, length, options.dim));
    if (need > budget) {
      leave_out(StrCat("a sample needs about ", FormatBytes(need), " of the ", FormatBytes(budget),
                       " allowed"));
      break;
    }
    const auto fit = static_cast<int64_t>(std::min(budget / need, 1e9));
    const int64_t batch =
        std::clamp<int64_t>(options.tokens / length, 1, std::max<int64_t>(fit, 1));
    begins(length, batch);
    std::vector<std::string> arguments = {"attention",
                                          "--one",
                                          StrCat(method.name, ":", length, ":", batch),
                                          "--dim",
                                          StrCat(options.dim),
                                          "--threads",
                                          StrCat(options.threads),
                                          "--seconds",
                                          StrCat(options.seconds),
                                          "--memory",
                                          StrCat(budget / 1e9)};
    if (!options.causal) arguments.push_back("--all-positions");
    const cli::ChildResult child = cli::RunChild("", arguments);
    if (child.signal == SIGKILL) {
      leave_out("the process was killed, probably for lack of memory");
      break;
    }
    const ordered_json line = ordered_json::parse(child.out, nullptr, /*allow_exceptions=*/false);
    if (child.exit_code == 130) throw cli::Interrupted();
    if (line.is_object() && line.contains("no_memory")) {
      leave_out(StrCat("it needs more than the ", FormatBytes(kSlack * budget), " allowed"));
      break;
    }
    if (line.is_object() && line.contains("wrong")) {
      throw RuntimeError(line["wrong"].get<std::string>());
    }
    if (child.exit_code != 0 || !line.is_object()) {
      throw RuntimeError("bench attention: measuring ", method.name, " at N = ", length, " failed",
                         child.signal != 0 ? StrCat(" (signal ", child.signal, ")") : "");
    }
    Point point{.length = length, .batch = batch, .measured = line};
    const auto samples = static_cast<double>(batch);
    point.seconds = line.at("seconds").get<double>() / samples;
    point.bytes = std::max(line.at("bytes").get<double>(), 1.0) / samples;
    point.limit_seconds = std::max(Flops(method, length, options) / line.at("flops").get<double>(),
                                   line.at("stream_seconds").get<double>() / samples);
    point.limit_bytes = InAndOut(method, length, options.dim);
    curve.points.push_back(point);
  }
  return curve;
}

void AddRecords(const Method& method, const Curve& curve, const Options& options,
                std::vector<Record>& records) {
  const ordered_json sizes = {{"method", method.name},
                              {"heads", kHeads},
                              {"dim", options.dim},
                              {"value_dim", options.dim},
                              {"causal", options.causal}};
  for (const bool time : {true, false}) {
    for (const Point& point : curve.points) {
      ordered_json identity = {{"N", point.length}, {"batch", point.batch}};
      identity.update(sizes);
      identity.update({{"threads", point.measured.at("threads")},
                       {"isa", point.measured.at("isa")},
                       {"precision", "f32"},
                       {"error", point.measured.at("error")}});
      if (time) {
        identity.update({{"repeats", point.measured.at("repeats")},
                         {"peak_gflops", point.measured.at("flops").get<double>() / 1e9},
                         {"stream_ms", 1e3 * point.measured.at("stream_seconds").get<double>() /
                                           static_cast<double>(point.batch)}});
      }
      records.push_back({.name = StrCat("attention/", method.name, time ? "/time" : "/memory"),
                         .label = StrCat("N=", point.length),
                         .value = time ? 1e3 * point.seconds : point.bytes / 1e6,
                         .unit = time ? "ms/sample" : "MB/sample",
                         .limit = time ? 1e3 * point.limit_seconds : point.limit_bytes / 1e6,
                         .identity = identity});
    }
  }
  const auto summary = [&](const char* what, const char* unit, double value, double limit,
                           int64_t from) {
    ordered_json identity = {{"N", curve.points.empty() ? 0 : curve.points.back().length},
                             {"from_N", from}};
    identity.update(sizes);
    identity.update(
        {{"batch", curve.points.empty() ? 0 : curve.points.back().batch},
         {"tokens", options.tokens},
         {"threads", options.threads > 0 ? options.threads : ThreadPool::AvailableProcessors()},
         {"isa", kernels::ActiveIsa()},
         {"precision", "f32"},
         {"machine", cli::MachineName()},
         {"date", cli::Today()},
         {"left_out", curve.left_out}});
    records.push_back({.name = StrCat("attention/", method.name, "/", what),
                       .label = "",
                       .value = value,
                       .unit = unit,
                       .limit = limit,
                       .identity = identity});
  };
  const double power = method.quadratic ? 2 : 1;
  if (curve.points.size() >= 2) {
    int64_t from = 0;
    const double time = Exponent(curve.points, &Point::seconds, &from);
    summary("time-exponent", "of N", time, power, from);
    const double memory = Exponent(curve.points, &Point::bytes, &from);
    summary("memory-exponent", "of N", memory, 1, from);
  }
  summary("longest", "of N",
          curve.points.empty() ? 0 : static_cast<double>(curve.points.back().length),
          static_cast<double>(options.max_n), options.min_n);
}

void Run(const Options& options) {
  std::vector<const Method*> methods;
  for (const std::string& name : options.methods) methods.push_back(&FindMethod(name));
  if (methods.empty()) {
    for (const Method& method : kMethods) methods.push_back(&method);
  }
  const double available = static_cast<double>(AvailableMemory());
  // By default, leaves memory for other processes and for errors of the estimates.
  const double budget = options.memory > 0 ? options.memory : available > 0 ? 0.6 * available : 4e9;

  size_t lengths = 0;
  for (int64_t n = options.min_n; n <= options.max_n; n *= 2) ++lengths;
  std::vector<Record> records;
  {
    const bool terminal = isatty(STDERR_FILENO) == 1;
    ProgressLine progress(std::cerr, terminal);
    const Stopwatch watch;
    for (size_t m = 0; m < methods.size(); ++m) {
      size_t done = m * lengths;
      const auto begins = [&](int64_t length, int64_t batch) {
        ++done;
        if (!terminal && watch.Seconds() < 1) return;
        progress.Update(StrCat("bench attention ", done, "/", methods.size() * lengths, ": ",
                               methods[m]->name, ", N = ", length, ", batch ", batch, ", ",
                               FormatSeconds(watch.Seconds()), " so far"));
      };
      const auto says = [&](const std::string& line) {
        progress.Finish("linnet bench attention: " + line);
      };
      const Curve curve = MeasureMethod(*methods[m], options, budget, begins, says);
      AddRecords(*methods[m], curve, options, records);
    }
  }
  PrintRecords(records, options.json);
}

}  // namespace

void AddAttention(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "attention",
      "Measure time and memory of attention against the length (the paper's figure 1)",
      R"(Measures a forward and a backward pass over N = 512, 1024, ... 65536 positions, with 8
heads; batches shrink as N grows. Each case runs in a separate process and is
checked against sums in double precision. Results: time and peak memory per sample. Methods:
  linear               causal-linear (with --all-positions: linear), with the feature map elu
  polynomial2          the same with the exact features of (q . k / sqrt(D) + 1)^2
  softmax              mixer full with linnet's fused kernel
  softmax-plain        mixer full in libtorch operations, which store N x N scores, as in the paper
  lsh-1, lsh-4, lsh-8  reformer with 1, 4 or 8 rounds, 64 buckets and chunks of 32 positions
Cases that do not fit into memory are left out and listed. The limit of a time is the longer of two
times: the required multiply-adds at the machine's peak, and one pass over inputs and outputs. The
limit of memory is the size of inputs, outputs and gradients. Exponents of growth are fitted over
the longer half of the lengths.)",
      "  linnet bench attention --max-n 4096\n"
      "  linnet bench attention --methods linear,lsh-4 --json\n");
  auto options = std::make_shared<Options>();
  const auto positive = [](int64_t low, int64_t high) {
    return cli::Between(static_cast<double>(low), static_cast<double>(high));
  };
  cli::AddOption(verb, "--min-n", options->min_n, "N", "Length of the shortest sequence",
                 positive(kLeastLength, kMostLength));
  cli::AddOption(verb, "--max-n", options->max_n, "N", "Length of the longest sequence",
                 positive(kLeastLength, kMostLength));
  cli::AddListOption(verb, "--methods", options->methods, "NAMES",
                     "Methods, for example linear,softmax (default: all)");
  cli::AddOption(verb, "--tokens", options->tokens, "N",
                 "Batch size in positions: a batch holds N / length sequences, at least one",
                 positive(1, 1 << 24));
  cli::AddOption(verb, "--dim", options->dim, "D", "Dimensions of a head", positive(4, 128));
  verb->add_flag_callback(
      "--all-positions", [options] { options->causal = false; },
      "No causal mask: every position attends to all");
  verb->add_option_function<double>(
          "--memory", [options](double gigabytes) { options->memory = 1e9 * gigabytes; },
          "Memory limit of a pass (default: 60% of the free memory)")
      ->type_name("GB")
      ->check(cli::Between(0.001, 1e6));
  cli::AddOption(
      verb, "--device", options->device, "NAME",
      "cpu, or cuda if this libtorch supports it. On cuda, only one short problem is checked, "
      "and the limit is the time to read inputs and write outputs in the GPU's memory",
      CLI::IsMember({"cpu", "cuda"}).description(""));
  verb->add_option("--one", options->one)->group("");
  AddBenchOptions(verb, *options);
  verb->callback([options] {
    if (!options->one.empty()) return RunOne(*options);
    if (options->min_n > options->max_n) {
      throw InputError("--min-n ", options->min_n, " is longer than --max-n ", options->max_n);
    }
    if (options->device == "cuda") {
      if (options->dim != 32) throw InputError("--dim ", options->dim, ": --device cuda takes 32");
      return on_device::BenchAttention({.min_n = options->min_n,
                                        .max_n = options->max_n,
                                        .tokens = options->tokens,
                                        .causal = options->causal,
                                        .json = options->json,
                                        .methods = options->methods,
                                        .precisions = {},
                                        .seconds = options->seconds});
    }
    Run(*options);
  });
}

}  // namespace linnet::bench
