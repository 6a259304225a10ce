// linnet bench speech: measures training time per second of audio, against the length of
// utterances.
#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/torch/benchmarks.h"
#include "linnet/base/peak_memory.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/nn/losses.h"
#include "linnet/nn/optimizer.h"
#include "linnet/nn/speech_model.h"
#include "linnet/ops/plain.h"
#include "linnet/program/machine.h"
#include "linnet/program/program.h"

namespace linnet::bench {
namespace {

using torch::Tensor;

constexpr int64_t kPhonesASecond = 7;  // about the speaking rate in AN4, a data set of speech
constexpr double kFramesASecond = 100;

struct SpeechBenchOptions {
  std::vector<std::string> methods = {"linear", "full", "reformer", "lstm"};
  // In seconds: the shortest and the longest utterance, and the audio of a batch.
  double from = 8, to = 240, total = 240;
  std::string precision = "fp32";
  int threads = 0;
  bool json = false;
};

// The spec of the paper's transformer encoder with attention `method`, or of the paper's LSTM for
// "lstm", for utterances of up to `positions` positions.
ModelSpec SpecOf(const std::string& method, int64_t positions) {
  ModelSpec spec;
  spec.task = "speech", spec.head.kind = HeadKind::kCategorical;
  SpeechSpec speech;
  speech.phones = "A";
  for (int i = 1; i < 33; ++i) speech.phones += StrCat(" P", i);
  spec.part = speech;
  spec.head.classes = spec.input.vocabulary = 34;
  spec.input.max_length = static_cast<int>(positions);
  if (method == "lstm") {
    spec.network = NetworkKind::kLstm;
    spec.stack.repeat = 3, spec.stack.d_model = spec.input.value_embedding = 320;
  } else {
    spec.stack.pattern = {{.kind = method, .heads = 6}};
    spec.stack.repeat = 9, spec.stack.d_model = 192, spec.stack.d_ff = 768;
    spec.input.value_embedding = 144;
  }
  return spec;
}

// A batch of random utterances of equal length.
struct Problem {
  Tensor frames, lengths, phones, phone_lengths;
};
Problem Make(const ModelSpec& spec, int64_t batch, int64_t positions, int64_t phones) {
  return {torch::randn({batch, positions, spec.speech()->Inputs()}),
          torch::full({batch}, positions, torch::kInt64),
          torch::randint(1, spec.head.classes, {batch, phones}, torch::kInt64),
          torch::full({batch}, phones, torch::kInt64)};
}

// The mean CTC loss of an utterance, given the network's logits.
Tensor OfLogits(const Tensor& logits, const Problem& problem) {
  return nn::CtcNats(torch::log_softmax(logits, 2), problem.phones, problem.lengths,
                     problem.phone_lengths)
      .mean();
}

Tensor Loss(nn::SpeechModelImpl& model, const Problem& problem) {
  return OfLogits(model.forward(problem.frames, problem.lengths), problem);
}

// Compares loss and gradients of fused operations with those of unfused ones, on a short problem.
// Throws RuntimeError if they differ.
void Check(const std::string& method) {
  ModelSpec spec = SpecOf(method, 64);
  // Checks one layer only. After several layers, rounding may change a hash or switch a ReLU near
  // 0, and no tolerance could distinguish that from an error.
  spec.stack.repeat = 1;
  torch::manual_seed(1);
  nn::SpeechModel model(spec);
  model->eval();  // so that Reformer hashes with the same planes in both forms
  const Problem problem = Make(spec, 2, 64, 12);
  std::vector<Tensor> gradients[2];
  std::vector<std::string> names;
  for (const int plain : {0, 1}) {
    std::optional<ops::PlainGuard> guard;
    if (plain != 0) guard.emplace();
    const Tensor loss = Loss(*model, problem);
    loss.backward();
    gradients[plain].push_back(loss.detach());
    names = {"the loss"};
    for (auto& parameter : model->named_parameters()) {
      // Reformer does not use the key projection, which then has no gradient.
      const Tensor& gradient = parameter->grad();
      gradients[plain].push_back(gradient.defined() ? gradient.clone()
                                                    : torch::zeros_like(*parameter));
      names.push_back(StrCat("the gradient of ", parameter.key()));
      parameter->mutable_grad().reset();
    }
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    const double size = gradients[1][i].norm().item<double>();
    const double off = (gradients[0][i] - gradients[1][i]).norm().item<double>();
    if (!(off <= 1e-3 * std::max(size, 1e-3))) {
      throw RuntimeError("bench speech: ", method, ": ", names[i], " (of norm ", size,
                         ") differs from that of unfused operations by ", off, "; not timed");
    }
  }
}

// Multiply-adds per position that every implementation of the forward pass needs: products with
// weights, and the products of attention. The backward pass needs twice as many.
double MultiplyAdds(const ModelSpec& spec, double positions) {
  const double d = spec.stack.d_model, wide = spec.stack.d_ff, in = spec.speech()->Inputs();
  const double out = spec.head.classes;
  const int layers = spec.stack.layers();
  if (spec.lstm()) {
    double sum = 2 * d * out;
    for (int l = 0; l < layers; ++l) sum += 2 * 4 * d * ((l == 0 ? in : 2 * d) + d);
    return sum;
  }
  const MixerSpec& mixer = spec.stack.mixer();
  const double pair = mixer.heads * (mixer.query_dim + mixer.value_dim);  // per query-key pair
  double attention = 2.0 * mixer.heads * mixer.query_dim * mixer.value_dim;
  if (mixer.kind == "full") {
    attention = pair * positions;
  } else if (mixer.kind == "reformer") {  // a chunk and the previous one, per round
    attention = pair * 2 * mixer.lsh_chunk * mixer.lsh_rounds;
  }
  return in * spec.input.value_embedding + out * d +
         layers * (4 * d * d + 2 * d * wide + attention);
}

// Multiply-adds per second of a matrix product, [rows, 192] by [192, 768].
double ProductRate(int64_t rows) {
  const Tensor x = torch::randn({rows, 192}), w = torch::randn({192, 768});
  const auto multiply = [&] { torch::matmul(x, w); };
  return static_cast<double>(rows) * 192 * 768 / MedianSeconds({multiply}, 0.3)[0];
}

Record Measure(const std::string& method, double seconds, const SpeechBenchOptions& options) {
  torch::manual_seed(1);
  const auto batch = std::max<int64_t>(1, std::llround(options.total / seconds));
  const ModelSpec probe = SpecOf(method, 1);
  const auto positions =
      static_cast<int64_t>(std::ceil(seconds * kFramesASecond / probe.speech()->stride));
  const ModelSpec spec = SpecOf(method, positions);
  const bool lstm = spec.lstm();
  nn::SpeechModel model(spec, nn::TrainingOptions{.precision = lstm ? "fp32" : options.precision});
  nn::Optimizer optimizer({.name = lstm ? "adam" : "radam"}, model->parameters());
  const Problem problem =
      Make(spec, batch, positions, static_cast<int64_t>(seconds * kPhonesASecond));
  // The loss is timed separately from the network.
  struct Split {
    double network = 0, loss = 0;
  };
  const auto step = [&] {
    Split split;
    Stopwatch watch;
    const Tensor out = model->forward(problem.frames, problem.lengths);
    split.network += watch.Seconds();
    watch = Stopwatch();
    const Tensor leaf = out.detach().requires_grad_();
    OfLogits(leaf, problem).backward();
    split.loss += watch.Seconds();
    watch = Stopwatch();
    out.backward(leaf.grad());
    optimizer.Step(1e-4);
    split.network += watch.Seconds();
    return split;
  };
  step();
  std::vector<double> network, loss;
  const Stopwatch whole;
  while (network.size() < 3 || (whole.Seconds() < 2 && network.size() < 9)) {
    const Split split = step();
    network.push_back(split.network), loss.push_back(split.loss);
    if (whole.Seconds() > 60) break;
  }
  const double heard = seconds * static_cast<double>(batch);  // seconds of audio in the batch
  const double rows = static_cast<double>(batch * positions);
  const double needed = 3 * rows * MultiplyAdds(spec, static_cast<double>(positions));
  return {.name = "speech",
          .label = StrCat(method, "  ", seconds, " s"),
          .value = 1e3 * Median(network) / heard,
          .unit = "ms/s",
          .limit = 1e3 * needed / ProductRate(std::min<int64_t>(batch * positions, 8192)) / heard,
          .identity = {{"method", method},
                       {"seconds", seconds},
                       {"positions", positions},
                       {"batch", batch},
                       {"loss", 1e3 * Median(loss) / heard},
                       {"peak_memory", PeakMemory()},
                       {"threads", at::get_num_threads()},
                       {"precision", lstm ? "fp32" : options.precision},
                       {"isa", kernels::ActiveIsa()},
                       {"machine", cli::MachineName()},
                       {"date", cli::Today()}}};
}

void Run(const SpeechBenchOptions& options) {
  at::set_num_threads(options.threads > 0 ? options.threads : ThreadPool::AvailableProcessors());
  std::vector<Record> records;
  for (const std::string& method : options.methods) Check(method);
  cli::WithProgress("utterances", [&](const auto& report) {
    std::vector<double> lengths;
    for (double seconds = options.from; seconds < options.to; seconds *= 2) {
      lengths.push_back(seconds);
    }
    lengths.push_back(options.to);
    for (const std::string& method : options.methods) {
      for (const double seconds : lengths) {
        records.push_back(Measure(method, seconds, options));
        report(records.size(), options.methods.size() * lengths.size());
      }
    }
  });
  PrintRecords(records, options.json);
}

}  // namespace

void AddSpeech(CLI::App& bench) {
  CLI::App* verb = cli::AddVerb(
      bench, "speech", "Time training on speech against the length of utterances",
      R"(Times an update (forward, backward, optimizer) of the paper's transformer encoder and of
the paper's LSTM, per second of sound, over batches of 240 s in utterances of 8 s to 4 min. The time
of the loss is not included; it is the field 'loss' of --json. Inputs are random frames. Gradients
are first checked against those of unfused operations. The limit is the time of the required
multiply-adds at the measured rate of a large matrix product.)",
      "  linnet bench speech\n"
      "  linnet bench speech --method linear,full --to 60 --json\n");
  auto options = std::make_shared<SpeechBenchOptions>();
  cli::AddListOption(verb, "--method", options->methods, "NAMES",
                     "Methods: linear, full, reformer, lstm (default: all)",
                     CLI::IsMember({"linear", "full", "reformer", "lstm"}).description(""));
  cli::AddOption(verb, "--from", options->from, "S", "Length of the shortest utterance, in seconds",
                 cli::Between(1, 600));
  cli::AddOption(verb, "--to", options->to, "S", "Length of the longest utterance, in seconds",
                 cli::Between(1, 600));
  cli::AddOption(verb, "--total", options->total, "S", "Length of the sound in a batch, in seconds",
                 cli::Between(1, 3600));
  cli::AddOption(verb, "--precision", options->precision, "P",
                 "Precision of the transformers (the LSTM runs in fp32): fp32 or bf16",
                 CLI::IsMember({"fp32", "bf16"}).description(""));
  cli::AddThreadsOption(verb, options->threads);
  cli::AddJsonFlag(verb, options->json);
  verb->callback([options] {
    if (options->to < options->from) {
      throw InputError("--to ", options->to, " is less than --from ", options->from);
    }
    Run(*options);
  });
}

}  // namespace linnet::bench
