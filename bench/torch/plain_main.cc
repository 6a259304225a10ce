// linnet-bench-torch in a build with LINNET_PLAIN (docs/gpu.md). It has only the GPU benchmarks.
#include <CLI/CLI.hpp>

#include "bench/torch/device.h"
#include "linnet/cli/torch/process.h"
#include "linnet/model/mixer.h"
#include "linnet/program/program.h"

namespace linnet::bench {
namespace {

void AddDevice(CLI::App* verb) {
  verb->add_option_function<std::string>(
          "--device", [](const std::string&) {}, "cuda, the only device of this build")
      ->check(CLI::IsMember({"cuda"}));
}

void AddAttention(CLI::App& app, on_device::AttentionOptions& options) {
  CLI::App* verb =
      app.add_subcommand("attention", "Measure time and memory of attention against the length");
  AddDevice(verb);
  cli::AddOption(verb, "--min-n", options.min_n, "N", "Length of the shortest sequence");
  cli::AddOption(verb, "--max-n", options.max_n, "N", "Length of the longest sequence");
  cli::AddOption(verb, "--tokens", options.tokens, "N", "Positions per batch");
  cli::AddOption(verb, "--seconds", options.seconds, "S",
                 "Time to measure each length, in seconds");
  cli::AddListOption(verb, "--methods", options.methods, "NAMES", "Methods (default: all)");
  cli::AddListOption(verb, "--precision", options.precisions, "NAMES",
                     "fp32, bf16 or both (default: fp32)");
  verb->add_flag_callback(
      "--all-positions", [&] { options.causal = false; },
      "No causal mask: every position attends to all");
  verb->add_flag("--json", options.json, "Print a list of records");
  verb->callback([&] { on_device::BenchAttention(options); });
}

void AddTrain(CLI::App& app, on_device::TrainOptions& options) {
  CLI::App* verb = app.add_subcommand("train", "Time an update of the paper's image models");
  AddDevice(verb);
  cli::AddOption(verb, "--dataset", options.dataset, "NAME", "mnist or cifar10",
                 CLI::IsMember({"mnist", "cifar10"}));
  cli::AddOption(verb, "--layers", options.layers, "N", "Number of layers; 0: the paper's");
  cli::AddOption(verb, "--seconds", options.seconds, "S", "Time to measure each model, in seconds");
  cli::AddListOption(verb, "--attention", options.attentions, "NAMES",
                     "Mixers (default: causal-linear)");
  cli::AddListOption(verb, "--precision", options.precisions, "NAMES",
                     "fp32, bf16 or both (default: both)");
  cli::AddListOption(verb, "--batch", options.batches, "N",
                     "Sequences per update (default: the paper's)");
  verb->add_flag("--graph", options.graph, "Also time the update as a CUDA graph");
  verb->add_flag("--profile", options.profile, "Also list the kernels of an update");
  verb->add_flag("--json", options.json, "Print a list of records");
  verb->callback([&] { on_device::BenchTrain(options); });
}

}  // namespace
}  // namespace linnet::bench

int main(int argc, char** argv) {
  linnet::PrepareProcess();
  CLI::App app("Time training on a GPU", "linnet-bench");
  linnet::cli::SetUp(app);
  linnet::bench::on_device::AttentionOptions attention;
  linnet::bench::on_device::TrainOptions train;
  linnet::bench::AddAttention(app, attention);
  linnet::bench::AddTrain(app, train);
  return linnet::cli::RunProgram(app, argc, argv);
}
