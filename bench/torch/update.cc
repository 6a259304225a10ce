// linnet bench train: times a training step of the paper's MNIST model. The limit is the time of
// the step's matrix products alone.
#include <ATen/Parallel.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "bench/bench.h"
#include "bench/torch/benchmarks.h"
#include "linnet/base/larger_error.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/kernels/matmul.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/optimizer.h"
#include "linnet/nn/sequence_model.h"
#include "linnet/ops/causal_linear.h"
#include "linnet/ops/plain.h"
#include "linnet/program/program.h"

namespace linnet::bench {
namespace {

using nn::SequenceModel;
using torch::Tensor;

struct UpdateBenchOptions : BenchOptions {
  int batch = 10, layers = 8, d_model = 256;
  std::vector<std::string> precisions = {"fp32", "bf16"};
};

Tensor Loss(SequenceModel& model, const Tensor& tokens) {
  const int64_t length = tokens.size(1) - 1;
  const Tensor logits = model->forward(tokens.narrow(1, 0, length));
  return nn::MixtureOfLogisticsNats(logits, tokens.narrow(1, 1, length)).mean();
}

// Compares the loss and all gradients of fused operations with those of unfused libtorch
// operations. The problem is small, since unfused operations keep all intermediates in memory.
void Check(SequenceModel& model, const std::string& precision) {
  const Tensor tokens = torch::randint(256, {3, 200}, torch::kInt64);
  std::vector<Tensor> gradients[2];
  double loss[2];
  for (const int plain : {0, 1}) {
    std::optional<ops::PlainGuard> guard;
    if (plain != 0) guard.emplace();
    const Tensor value = Loss(model, tokens);
    value.backward();
    loss[plain] = value.item<double>();
    for (Tensor& parameter : model->parameters()) {
      gradients[plain].push_back(parameter.grad().clone());
      parameter.mutable_grad().reset();
    }
  }
  // Errors of gradients are relative to a gradient's norm, since single elements may be near zero.
  const double tolerance = precision == "bf16" ? 0.05 : 1e-3;
  double worst = std::abs(loss[0] - loss[1]);
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    const double size = gradients[1][i].norm().item<double>();
    const double off = (gradients[0][i] - gradients[1][i]).norm().item<double>();
    const double relative = size > 0 ? off / size : off;
    worst = LargerError(worst, relative);
  }
  if (!(worst <= tolerance)) {
    throw RuntimeError(
        "bench train: in ", precision, " loss or gradients of the fused step differ from ",
        "those of unfused operations by ", worst, " (allowed: ", tolerance, "); not timed");
  }
}

// Runs the matrix products of a training step alone: six per layer in the forward pass, and twelve
// per layer in the backward pass.
class Products {
 public:
  Products(const ModelSpec& spec, int64_t rows, kernels::MatType type) : spec_(spec), type_(type) {
    const int64_t widest = std::max(spec.stack.d_ff, spec.stack.d_model);
    const auto stride_of = [&](int n) {
      return static_cast<int64_t>(kernels::MatMulStride(static_cast<size_t>(n), type));
    };
    const int64_t stride = std::max(stride_of(spec.stack.d_ff), stride_of(spec.stack.d_model));
    const torch::Dtype dtype = type == kernels::MatType::kF32 ? torch::kFloat32 : torch::kBFloat16;
    rows_ = static_cast<size_t>(rows);
    x_ = torch::rand({rows, stride}).to(dtype);
    y_ = torch::rand({rows, stride}).to(dtype);
    weight_ = torch::rand({widest, widest}).to(dtype);
    out_ = torch::empty({std::max(rows, widest), widest});
  }

  void Run() {
    const size_t d = static_cast<size_t>(spec_.stack.d_model),
                 wide = static_cast<size_t>(spec_.stack.d_ff);
    for (int layer = 0; layer < spec_.stack.layers(); ++layer) {
      for (int i = 0; i < 4; ++i) One(d, d);
      One(d, wide);
      One(wide, d);
    }
  }

  double Flops() const {
    const double d = spec_.stack.d_model, wide = spec_.stack.d_ff;
    return 6.0 * static_cast<double>(rows_) * spec_.stack.layers() * (4 * d * d + 2 * d * wide);
  }

 private:
  void One(size_t in, size_t out) {
    const auto dense = [&](const Tensor& x, bool transposed) -> kernels::MatOperand {
      return {x.data_ptr(), type_, transposed};
    };
    const auto apart = [&](const Tensor& x, bool transposed, size_t n) -> kernels::MatOperand {
      return {x.data_ptr(), type_, transposed, kernels::MatMulStride(n, type_)};
    };
    const auto multiply = [&](size_t m, size_t n, size_t k, const kernels::MatOperand& a,
                              const kernels::MatOperand& b) {
      kernels::MatMul({m, n, k}, a, b, nullptr, {out_.data_ptr(), kernels::MatType::kF32});
    };
    multiply(rows_, out, in, dense(x_, false), dense(weight_, true));      // y = x W^T
    multiply(rows_, in, out, dense(y_, false), dense(weight_, false));     // grad x = grad y W
    multiply(out, in, rows_, apart(y_, true, out), apart(x_, false, in));  // grad W = grad y^T x
  }

  ModelSpec spec_;
  kernels::MatType type_;
  size_t rows_;
  Tensor x_, y_, weight_, out_;
};

Record Measure(const std::string& precision, const UpdateBenchOptions& options) {
  torch::manual_seed(1);
  ModelSpec spec;  // the paper's MNIST model
  spec.stack.repeat = options.layers;
  spec.stack.d_model = options.d_model, spec.stack.d_ff = 4 * options.d_model;
  spec.stack.mixer().heads = options.d_model / spec.stack.mixer().query_dim;
  spec.input.value_embedding = options.d_model / 2;
  SequenceModel model(spec, nn::TrainingOptions{.precision = precision});
  Check(model, precision);

  nn::Optimizer optimizer({}, model->parameters());
  const int64_t length = spec.input.max_length, rows = options.batch * length;
  const Tensor tokens = torch::randint(256, {options.batch, length + 1}, torch::kInt64);
  std::vector<double> forward, backward, update;
  const auto step = [&] {
    const Stopwatch watch;
    const Tensor loss = Loss(model, tokens);
    const double after_forward = watch.Seconds();
    loss.backward();
    const double after_backward = watch.Seconds();
    optimizer.Step(1e-4);
    forward.push_back(after_forward);
    backward.push_back(after_backward - after_forward);
    update.push_back(watch.Seconds() - after_backward);
  };

  // The parts of a layer are timed separately, forward and backward.
  const ops::Precision p = ops::PrecisionNamed(precision);
  const int64_t heads = spec.stack.mixer().heads, dim = spec.stack.mixer().query_dim;
  const int64_t d = spec.stack.d_model, wide = spec.stack.d_ff;
  const auto leaf = [](at::IntArrayRef shape) {
    const Tensor x = torch::randn(shape) * 0.1;
    return x.requires_grad_();
  };
  const Tensor q = leaf({options.batch, length, heads, dim});
  const Tensor k = leaf({options.batch, length, heads, dim});
  const Tensor v = leaf({options.batch, length, heads, dim});
  const Tensor x = leaf({options.batch, length, d}), a = leaf({options.batch, length, d});
  const Tensor square = leaf({d, d}), bias = leaf({d}), up = leaf({wide, d}),
               down = leaf({d, wide});
  const Tensor wide_bias = leaf({wide}), norm_weight = leaf({d}), norm_bias = leaf({d});
  const Tensor grad = torch::randn({options.batch, length, d});
  const ops::Norm norm{norm_weight, norm_bias};
  const auto both = [](const Tensor& y, const Tensor& g, const std::vector<Tensor>& inputs) {
    torch::autograd::grad({y}, inputs, {g});
  };
  const auto attention = [&] {
    both(ops::CausalLinearAttention(q, k, v), grad.view({options.batch, length, heads, dim}),
         {q, k, v});
  };
  const auto projections = [&] {
    const auto y = ops::Linears(x, {square, square, square}, {bias, bias, bias}, p);
    torch::autograd::grad({y[0], y[1], y[2]}, {x, square, bias}, {grad, grad, grad});
    both(ops::Project(a, square, bias, x, norm, p), grad, {a, square, bias, x, norm_weight});
  };
  const auto feed_forward = [&] {
    both(ops::FeedForward(x, up, wide_bias, down, bias, {.norm_after = norm, .precision = p}), grad,
         {x, up, wide_bias, down, bias});
  };
  Products products(spec, rows,
                    p == ops::Precision::kBf16 ? kernels::MatType::kBf16 : kernels::MatType::kF32);
  const auto multiply = [&] { products.Run(); };

  const std::vector<double> median =
      MedianSeconds({step, multiply, attention, projections, feed_forward}, options.seconds);
  const double seconds = median[0], limit = median[1];
  const double layers = spec.stack.layers();
  const double in_layers = layers * (median[2] + median[3] + median[4]);
  const auto milliseconds = [](double s) { return std::round(s * 1e5) / 1e2; };
  return {.name = "train",
          .label = precision,
          .value = 1e3 * seconds,
          .unit = "ms",
          .limit = 1e3 * limit,
          .identity = {{"layers", spec.stack.layers()},
                       {"d_model", spec.stack.d_model},
                       {"N", length},
                       {"batch", options.batch},
                       {"threads", at::get_num_threads()},
                       {"precision", precision},
                       {"isa", kernels::ActiveIsa()},
                       {"tokens_per_second", std::round(static_cast<double>(rows) / seconds)},
                       {"gflops", std::round(products.Flops() / seconds / 1e9)},
                       {"gemm_gflops", std::round(products.Flops() / limit / 1e9)},
                       {"share_of_gemm_rate", limit / seconds},
                       {"forward_ms", milliseconds(Median(forward))},
                       {"backward_ms", milliseconds(Median(backward))},
                       {"optimizer_ms", milliseconds(Median(update))},
                       {"optimizer_share", Median(update) / seconds},
                       {"projections_ms", milliseconds(layers * median[3])},
                       {"attention_ms", milliseconds(layers * median[2])},
                       {"feed_forward_ms", milliseconds(layers * median[4])},
                       {"rest_ms", milliseconds(seconds - in_layers - Median(update))}}};
}

void PrintSplit(const std::vector<Record>& records) {
  for (const Record& record : records) {
    const auto& at = record.identity;
    const auto number = [&](const char* name) { return at.at(name).get<double>(); };
    std::printf(
        "\n%s: %.0f tokens/s, %.0f GFLOP/s in matrix products (timed alone: %.0f GFLOP/s)\n"
        "  forward %.0f ms, backward %.0f ms, optimizer %.1f ms (%.1f%%)\n"
        "  projections %.0f ms, attention %.0f ms, feed-forward %.0f ms, the rest %.0f ms\n",
        record.label.c_str(), number("tokens_per_second"), number("gflops"), number("gemm_gflops"),
        number("forward_ms"), number("backward_ms"), number("optimizer_ms"),
        100 * number("optimizer_share"), number("projections_ms"), number("attention_ms"),
        number("feed_forward_ms"), number("rest_ms"));
  }
}

void Run(const UpdateBenchOptions& options) {
  if (options.d_model % 32 != 0) {
    throw InputError("--d-model ", options.d_model,
                     " is not a multiple of 32, the width of a head");
  }
  at::set_num_threads(options.threads > 0 ? options.threads : ThreadPool::AvailableProcessors());
  std::vector<Record> records;
  for (const std::string& precision : options.precisions) {
    records.push_back(Measure(precision, options));
  }
  PrintRecords(records, options.json);
  if (!options.json) PrintSplit(records);
}

}  // namespace

void AddTrain(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "train", "Time a training update of the paper's MNIST model",
      R"(An update is a forward pass, a backward pass and an optimizer step on a batch of sequences
of 783 bytes. Gradients are first checked against those of unfused operations. The limit is the time
of the matrix products alone.)",
      "  linnet bench train\n"
      "  linnet bench train --precision bf16 --threads 1 --json\n");
  auto options = std::make_shared<UpdateBenchOptions>();
  options->seconds = 20;
  cli::AddOption(verb, "--batch", options->batch, "N", "Sequences per batch",
                 cli::Between(1, 1000));
  const CLI::Option* precision = cli::AddListOption(verb, "--precision", options->precisions, "P",
                                                    "Precisions: fp32, bf16 or both",
                                                    CLI::IsMember({"fp32", "bf16"}).description(""))
                                     ->default_str("fp32,bf16");
  cli::AddOption(verb, "--layers", options->layers, "N", "Number of layers", cli::Between(1, 100));
  cli::AddOption(verb, "--d-model", options->d_model, "N",
                 "Width of the model, a multiple of 32 (the width of a head)",
                 cli::Between(32, 4096));
  AddBenchOptions(verb, *options);
  verb->callback([options, precision] {
    for (const std::string& name : std::vector<std::string>(options->precisions)) {
      try {  // fails before anything is measured
        ops::PrecisionNamed(name);
      } catch (const Error& error) {
        if (precision->count() > 0) throw;
        std::cerr << "linnet bench train: left out " << name << ": " << error.what() << "\n";
        std::erase(options->precisions, name);
      }
    }
    Run(*options);
  });
}

}  // namespace linnet::bench
