#include "bench/torch/device.h"

#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "linnet/base/larger_error.h"
#include "linnet/error.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/mixer.h"
#include "linnet/nn/optimizer.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/ops/lsh_attention.h"
#include "linnet/ops/plain.h"

#if TORCH_VERSION_MAJOR >= 2 && __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && \
    __has_include(<cuda_runtime_api.h>)
#define LINNET_CUDA_HEADERS 1
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#endif

namespace linnet::bench::on_device {
namespace {

using nlohmann::ordered_json;
using torch::Tensor;

constexpr int64_t kHeads = 8, kDim = 32, kBuckets = 64, kChunk = 32;
constexpr uint64_t kSeed = 1;

void RequireDevice() {
  if (!torch::cuda::is_available()) {
    throw InputError("--device cuda: this libtorch finds no CUDA device; docs/gpu.md says how to ",
                     "build with a libtorch for CUDA");
  }
}

// Peak() returns the peak memory of tensors on the device since ResetPeak(), in bytes, or 0 in a
// build without CUDA's headers.
#ifdef LINNET_CUDA_HEADERS
void ResetPeak() {
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
}
int64_t Peak() {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].peak;
}
#else
void ResetPeak() {}
int64_t Peak() { return 0; }
#endif

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double SecondsOf(const std::function<void()>& body, int calls) {
  torch::cuda::synchronize();
  const double began = Now();
  for (int i = 0; i < calls; ++i) body();
  torch::cuda::synchronize();
  return (Now() - began) / calls;
}

// The median seconds per call over five turns of consecutive calls, after a warm-up. If one call
// takes longer than `seconds`, there is only one turn, of one call.
double Time(const std::function<void()>& body, double seconds) {
  SecondsOf(body, 2);
  const double once = SecondsOf(body, 1);
  const int calls = static_cast<int>(std::clamp(seconds / 5 / once, 1.0, 1000.0));
  std::vector<double> turns;
  for (int i = 0; i < (once > seconds ? 1 : 5); ++i) turns.push_back(SecondsOf(body, calls));
  std::sort(turns.begin(), turns.end());
  return turns[turns.size() / 2];
}

// Memory bandwidth of a copy within the device: bytes read and written per second.
double Bandwidth() {
  const Tensor from = torch::ones({1 << 26}, torch::TensorOptions(torch::kCUDA));
  Tensor to = torch::empty_like(from);
  return 2 * 4.0 * static_cast<double>(from.numel()) / Time([&] { to.copy_(from); }, 0.2);
}

ordered_json Record(const std::string& name, double value, const std::string& unit, double limit,
                    bool checked, const ordered_json& identity) {
  ordered_json record = {{"name", name},   {"value", value},         {"unit", unit},
                         {"limit", limit}, {"ratio", value / limit}, {"checked", checked}};
  record.update(identity);
  record["device"] = "cuda";
  return record;
}

// Reports on stderr that a measurement is left out.
void LeaveOut(const std::string& measurement, const std::exception& failure) {
  const std::string what = failure.what();
  std::cerr << "left out " << measurement << ": " << what.substr(0, what.find('\n')) << "\n";
}

void SetTf32(bool on) {
  at::globalContext().setAllowTF32CuBLAS(on);
  at::globalContext().setAllowTF32CuDNN(on);
}

// ------------------------------------------------------------------------------------------
// Attention.

struct Method {
  const char* name;
  int rounds;             // of hashing (LSH); 0 for other methods
  bool quadratic, plain;  // quadratic: work grows with N^2; plain: in unfused libtorch operations
};
constexpr Method kMethods[] = {{"linear", 0, false, false}, {"linear-plain", 0, false, true},
                               {"softmax", 0, true, false}, {"softmax-plain", 0, true, true},
                               {"lsh-1", 1, false, false},  {"lsh-4", 4, false, false}};

class Attention {
 public:
  Attention(const Method& method, bool causal)
      : method_(method),
        causal_(causal),
        mixer_(method.rounds > 0 ? nullptr
                                 : nn::MakeMixer({.kind = method.quadratic ? "full"
                                                          : causal         ? "causal-linear"
                                                                           : "linear"},
                                                 {kHeads, kDim, kDim})) {
    torch::manual_seed(kSeed);
    planes_ = torch::randn({std::max(method.rounds, 1), kDim, kBuckets / 2});
  }

  // Returns the output and the gradients of q, k and v. With LSH there is no gradient of k, since
  // the queries are also the keys.
  std::vector<Tensor> operator()(const std::vector<Tensor>& in) const {
    std::optional<ops::PlainGuard> guard;
    if (method_.plain) guard.emplace();
    if (method_.rounds > 0) {
      const Tensor out =
          ops::LshAttention(in[0], in[2], {}, planes_.to(in[0].device(), in[0].dtype()),
                            {.buckets = kBuckets, .chunk = kChunk, .causal = causal_});
      const auto grads = torch::autograd::grad({out}, {in[0], in[2]}, {in[3]});
      return {out.detach(), grads[0], grads[1]};
    }
    const Tensor out = mixer_->forward(in[0], in[1], in[2], nn::Mask{.causal = causal_});
    const auto grads = torch::autograd::grad({out}, {in[0], in[1], in[2]}, {in[3]});
    return {out.detach(), grads[0], grads[1], grads[2]};
  }

 private:
  const Method& method_;
  bool causal_;
  nn::Mixer mixer_;
  Tensor planes_;
};

// q, k, v and the gradient of the output.
std::vector<Tensor> Inputs(int64_t batch, int64_t length, torch::TensorOptions options) {
  std::vector<Tensor> inputs;
  for (int i = 0; i < 4; ++i) {
    inputs.push_back(torch::randn({batch, length, kHeads, kDim}, options));
    if (i < 3) inputs.back().requires_grad_();
  }
  return inputs;
}

// Compares output and gradients with those of unfused operations in double precision on the CPU.
// Returns the worst tensor's error: its largest difference (LSH: its median difference, since
// rounding may change buckets) relative to its largest magnitude.
double Error(const Attention& attention, const Method& method, torch::Dtype dtype) {
  torch::manual_seed(kSeed);
  constexpr int64_t kLength = 300;
  std::vector<Tensor> there, here;  // inputs on the GPU, and on the CPU in double precision
  for (const Tensor& x : Inputs(2, kLength, {})) {
    const Tensor rounded = x.detach().to(dtype);
    there.push_back(rounded.to(torch::kCUDA).requires_grad_(x.requires_grad()));
    here.push_back(rounded.to(torch::kDouble).requires_grad_(x.requires_grad()));
  }
  const auto got = attention(there), want = attention(here);
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const Tensor off = (got[i].to(torch::kCPU, torch::kDouble) - want[i]).abs();
    const Tensor one = method.rounds > 0 ? off.median() : off.max();
    worst = LargerError(worst, one.item<double>() / want[i].abs().max().item<double>());
  }
  return worst;
}

// Measures one method at all lengths, in rising order. Stops at the first length that fails,
// usually for lack of memory.
void MeasureMethod(const Method& method, const std::string& precision,
                   const AttentionOptions& options, double bandwidth,
                   std::vector<ordered_json>& records) {
  const torch::Dtype dtype = precision == "bf16" ? torch::kBFloat16 : torch::kFloat32;
  const Attention attention(method, options.causal);
  const double error = Error(attention, method, dtype);
  const double tolerance = precision == "bf16" ? 0.03 : 2e-4;
  if (!(error <= tolerance)) {
    throw RuntimeError("bench attention: ", method.name, " in ", precision,
                       " differs from unfused operations in double precision by ", error,
                       " (allowed: ", tolerance, "); not timed");
  }
  for (int64_t length = options.min_n; length <= options.max_n; length *= 2) {
    const int64_t batch = std::max<int64_t>(options.tokens / length, 1);
    const auto samples = static_cast<double>(batch);
    ordered_json identity = {
        {"N", length},   {"batch", batch},    {"method", method.name},    {"heads", kHeads},
        {"dim", kDim},   {"value_dim", kDim}, {"causal", options.causal}, {"precision", precision},
        {"error", error}};
    double seconds = 0, bytes = 0;
    try {
      ResetPeak();
      const int64_t before = Peak();
      const auto inputs = Inputs(batch, length, torch::TensorOptions(torch::kCUDA).dtype(dtype));
      attention(inputs);
      torch::cuda::synchronize();
      bytes = static_cast<double>(Peak() - before);
      seconds = Time([&] { attention(inputs); }, options.seconds);
    } catch (const c10::Error& failure) {
      LeaveOut(StrCat(method.name, " in ", precision, " from N = ", length), failure);
      break;
    }
    // q, k, v, the output and the gradients of all four; with LSH, no k.
    const double tensors = method.rounds > 0 ? 6 : 8;
    const double in_and_out = (dtype == torch::kFloat32 ? 4.0 : 2.0) * tensors *
                              static_cast<double>(length * kHeads * kDim);
    const std::string name = StrCat("attention/", method.name);
    records.push_back(Record(name + "/time", 1e3 * seconds / samples, "ms/sample",
                             1e3 * in_and_out / bandwidth, true, identity));
    records.push_back(Record(name + "/memory", bytes / samples / 1e6, "MB/sample", in_and_out / 1e6,
                             true, identity));
    if (!options.json) {
      std::printf("%-14s %-5s %8ld %6ld %12.4f %10.2f %10.3f %9.1e\n", method.name,
                  precision.c_str(), static_cast<long>(length), static_cast<long>(batch),
                  1e3 * seconds / samples, 1e9 * seconds / samples / static_cast<double>(length),
                  bytes / samples / 1e6, error);
      std::fflush(stdout);
    }
  }
}

// ------------------------------------------------------------------------------------------
// Training.

// Operations per second of a large square matrix product.
double ProductRate(const std::string& precision) {
  static std::map<std::string, double> rates;
  double& rate = rates[precision];
  if (rate == 0) {
    constexpr int64_t kSize = 4096;
    const auto type = precision == "bf16" ? torch::kBFloat16 : torch::kFloat32;
    const Tensor a = torch::randn({kSize, kSize}, torch::TensorOptions(torch::kCUDA).dtype(type));
    const Tensor b = torch::randn_like(a);
    Tensor c = torch::empty_like(a);
    const double size = static_cast<double>(kSize);
    rate = 2 * size * size * size / Time([&] { at::mm_out(c, a, b); }, 0.2);
  }
  return rate;
}

ModelSpec SpecOf(const TrainOptions& options, const std::string& attention) {
  ModelSpec spec;  // the paper's MNIST model
  if (options.dataset == "cifar10") {
    spec.part = ImageSpec{.width = 32, .height = 32, .channels = 3};
    spec.input.max_length = 32 * 32 * 3 - 1;
    spec.stack.repeat = 16;
  }
  if (options.layers > 0) spec.stack.repeat = options.layers;
  spec.stack.mixer().kind = attention;
  return spec;
}

#ifdef LINNET_CUDA_HEADERS
// Returns the kernels that one call of `body` runs, sorted by total time, longest first.
ordered_json Profile(const std::function<void()>& body) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const std::set<ActivityType> activities = {ActivityType::CPU, ActivityType::CUDA};
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  body();
  torch::cuda::synchronize();
  const auto result = profiler::disableProfiler();
  struct Sum {
    int64_t calls = 0;
    double us = 0;
  };
  std::map<std::string, Sum> kernels;
  Sum all;
  for (const auto& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    const double us = 1e-3 * static_cast<double>(event.durationNs());
    Sum& sum = kernels[event.name()];
    ++sum.calls, sum.us += us;
    ++all.calls, all.us += us;
  }
  std::vector<std::pair<std::string, Sum>> sorted(kernels.begin(), kernels.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  ordered_json list = ordered_json::array();
  list.push_back({{"kernel", "all"}, {"calls", all.calls}, {"us", all.us}});
  for (const auto& [name, sum] : sorted) {
    list.push_back({{"kernel", name}, {"calls", sum.calls}, {"us", sum.us}});
  }
  return list;
}

// Captures `body` in a CUDA graph and returns the seconds to replay it.
double GraphTime(const std::function<void()>& body, double seconds) {
  const auto stream = at::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  torch::cuda::synchronize();
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    for (int i = 0; i < 3; ++i) body();
    torch::cuda::synchronize();
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    body();
    graph.capture_end();
  }
  torch::cuda::synchronize();
  return Time([&] { graph.replay(); }, seconds);
}
#endif

void PrintTraining(const ordered_json& record) {
  const auto number = [&](const char* field) { return record[field].get<double>(); };
  const auto text = [&](const char* field) { return record[field].get<std::string>(); };
  std::printf("%-8s %-14s %-5s batch %5ld: %9.3f ms per update, %9.0f images/s, %6.1f TFLOP/s",
              text("dataset").c_str(), text("attention").c_str(), text("precision").c_str(),
              record["batch"].get<long>(), number("value"), number("images_per_second"),
              number("product_tflops"));
  std::printf("  (forward %.2f, backward %.2f, optimizer %.2f)  %.2f GB", number("forward_ms"),
              number("backward_ms"), number("optimizer_ms"), number("peak_bytes") / 1e9);
  if (record.contains("graph_ms")) std::printf("  graph %.3f ms", number("graph_ms"));
  if (record.contains("graph_failure")) {
    std::printf("  no graph: %s", text("graph_failure").c_str());
  }
  std::printf("\n");
  constexpr size_t kShown = 25;
  const ordered_json kernels = record.value("kernels", ordered_json::array());
  for (size_t i = 0; i < std::min(kShown, kernels.size()); ++i) {
    std::printf("    %9.1f us %6ld x  %.110s\n", kernels[i]["us"].get<double>(),
                kernels[i]["calls"].get<long>(), kernels[i]["kernel"].get<std::string>().c_str());
  }
  std::fflush(stdout);
}

void MeasureTraining(const TrainOptions& options, const std::string& attention,
                     const std::string& precision, int batch, std::vector<ordered_json>& records) {
  torch::manual_seed(kSeed);
  SetTf32(precision == "bf16");
  const ModelSpec spec = SpecOf(options, attention);
  ResetPeak();
  nn::SequenceModel model(
      spec, nn::TrainingOptions{.precision = precision, .device = torch::Device(torch::kCUDA)});
  nn::Optimizer optimizer({}, model->parameters());
  const int64_t length = spec.input.max_length;
  const Tensor tokens = torch::randint(256, {batch, length + 1},
                                       torch::TensorOptions(torch::kCUDA).dtype(torch::kInt64));
  Tensor value;
  const auto forward = [&] {
    const Tensor logits = model->forward(tokens.narrow(1, 0, length));
    value = nn::MixtureOfLogisticsNats(logits, tokens.narrow(1, 1, length)).mean();
  };
  const auto step = [&] {
    forward();
    value.backward();
    optimizer.Step(1e-4);
    value.reset();
  };
  step();
  const double seconds = Time(step, options.seconds);
  const int64_t bytes = Peak();
  // Times the parts of an update. Each part ends with a wait for the GPU, so together they take
  // longer than an update.
  std::map<std::string, std::vector<double>> parts;
  for (int i = 0; i < 5; ++i) {
    parts["forward"].push_back(SecondsOf(forward, 1));
    parts["backward"].push_back(SecondsOf([&] { value.backward(); }, 1));
    parts["optimizer"].push_back(SecondsOf([&] { optimizer.Step(1e-4); }, 1));
  }
  const auto median = [&](const char* part) {
    std::vector<double>& values = parts[part];
    std::sort(values.begin(), values.end());
    return 1e3 * values[values.size() / 2];
  };
  optimizer.Check();
  const double d = spec.stack.d_model, wide = spec.stack.d_ff;
  const double rows = static_cast<double>(batch) * static_cast<double>(length);
  // The layers' products with weights: 2 operations per weight and row forward, 4 backward.
  const double flops = 6 * rows * spec.stack.layers() * (4 * d * d + 2 * d * wide);
  ordered_json identity = {{"dataset", options.dataset},
                           {"attention", attention},
                           {"precision", precision},
                           {"batch", batch},
                           {"layers", spec.stack.layers()},
                           {"N", length},
                           {"images_per_second", batch / seconds},
                           {"tokens_per_second", rows / seconds},
                           {"product_tflops", flops / seconds / 1e12},
                           {"forward_ms", median("forward")},
                           {"backward_ms", median("backward")},
                           {"optimizer_ms", median("optimizer")},
                           {"peak_bytes", bytes}};
#ifdef LINNET_CUDA_HEADERS
  if (options.profile) identity["kernels"] = Profile(step);
  if (options.graph) {
    try {
      // Optimizer::Step() is Begin() and Finish(). A graph cannot capture Begin(), which copies the
      // step's size and decay from the host. So Begin() runs once before the capture.
      const auto repeated = [&] {
        forward();
        value.backward();
        optimizer.Finish();
        value.reset();
      };
      optimizer.Begin(1e-4);
      identity["graph_ms"] = 1e3 * GraphTime(repeated, options.seconds);
      optimizer.Check();
    } catch (const std::exception& failure) {
      const std::string what = failure.what();
      identity["graph_failure"] = what.substr(0, what.find('\n'));
    }
  }
#endif
  const double limit = flops / ProductRate(precision);
  // "checked" is false: this function checks only that gradients are finite (optimizer.Check()).
  // linnet/ops/ops_gpu_test.cc compares results.
  records.push_back(Record("train", 1e3 * seconds, "ms", 1e3 * limit, false, identity));
  if (!options.json) PrintTraining(records.back());
}

}  // namespace

void BenchAttention(const AttentionOptions& options) {
  RequireDevice();
  SetTf32(false);
  std::vector<ordered_json> records;
  const double bandwidth = Bandwidth();
  if (!options.json) {
    std::printf("memory bandwidth, measured by a copy: %.0f GB/s\n", bandwidth / 1e9);
    std::printf("%-14s %-5s %8s %6s %12s %10s %10s %9s\n", "method", "type", "N", "batch",
                "ms/sample", "ns/token", "MB/sample", "error");
  }
  const auto asked = [&](const Method& method) {
    return options.methods.empty() || std::find(options.methods.begin(), options.methods.end(),
                                                method.name) != options.methods.end();
  };
  const std::vector<std::string> precisions =
      options.precisions.empty() ? std::vector<std::string>{"fp32"} : options.precisions;
  std::string wrong;  // the first message about a wrong result; the other methods are still timed
  for (const std::string& precision : precisions) {
    for (const Method& method : kMethods) {
      if (!asked(method)) continue;
      try {
        MeasureMethod(method, precision, options, bandwidth, records);
      } catch (const RuntimeError& failure) {
        if (wrong.empty()) wrong = failure.what();
        LeaveOut(StrCat(method.name, " in ", precision), failure);
      } catch (const std::exception& failure) {
        LeaveOut(StrCat(method.name, " in ", precision), failure);
      }
    }
  }
  if (options.json) std::cout << ordered_json(records).dump(1) << "\n";
  if (!wrong.empty()) throw RuntimeError(wrong);
}

void BenchTrain(const TrainOptions& options) {
  RequireDevice();
  const auto or_else = [](const auto& given, auto otherwise) {
    return given.empty() ? otherwise : given;
  };
  const bool cifar = options.dataset == "cifar10";
  std::vector<ordered_json> records;
  for (const std::string& attention :
       or_else(options.attentions, std::vector<std::string>{"causal-linear"})) {
    for (const std::string& precision :
         or_else(options.precisions, std::vector<std::string>{"fp32", "bf16"})) {
      for (const int batch : or_else(options.batches, std::vector<int>{cifar ? 4 : 10})) {
        try {
          MeasureTraining(options, attention, precision, batch, records);
        } catch (const std::exception& failure) {
          LeaveOut(StrCat(attention, " in ", precision, ", batch ", batch), failure);
        }
      }
    }
  }
  if (options.json) std::cout << ordered_json(records).dump(1) << "\n";
}

}  // namespace linnet::bench::on_device
