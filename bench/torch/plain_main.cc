// linnet-bench of a plain-only build (docs/gpu.md): the benchmarks on a GPU alone.
#include <CLI/CLI.hpp>

#include "bench/torch/device.h"
#include "linnet/cli/program.h"
#include "linnet/cli/torch/memory.h"

namespace linnet::bench {
namespace {

void AddList(CLI::App* verb, const std::string& name, std::vector<std::string>& value,
             const std::string& help) {
  verb->add_option(name, value, help)
      ->delimiter(',')
      ->type_name("NAMES")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddDevice(CLI::App* verb) {
  verb->add_option_function<std::string>(
          "--device", [](const std::string&) {}, "cuda, the only one in this build")
      ->check(CLI::IsMember({"cuda"}));
}

void AddAttention(CLI::App& app, DeviceAttentionOptions& options) {
  CLI::App* verb = app.add_subcommand("attention", "Time and memory of attention by length");
  AddDevice(verb);
  cli::AddOption(verb, "--min-n", options.min_n, "N", "The shortest sequence");
  cli::AddOption(verb, "--max-n", options.max_n, "N", "The longest sequence");
  cli::AddOption(verb, "--tokens", options.tokens, "N", "Positions in a batch");
  cli::AddOption(verb, "--seconds", options.seconds, "S",
                 "Time to measure each length, in seconds");
  AddList(verb, "--methods", options.methods, "Methods (default: all)");
  AddList(verb, "--precision", options.precisions, "fp32, bf16 or both (default: fp32)");
  verb->add_flag_callback(
      "--all-positions", [&] { options.causal = false; }, "Not causal");
  verb->add_flag("--json", options.json, "Print a list of records");
  verb->callback([&] { BenchAttentionOnDevice(options); });
}

void AddTrain(CLI::App& app, DeviceTrainOptions& options) {
  CLI::App* verb = app.add_subcommand("train", "Time of an update of the paper's image models");
  AddDevice(verb);
  cli::AddOption(verb, "--dataset", options.dataset, "NAME", "mnist or cifar10",
                 CLI::IsMember({"mnist", "cifar10"}));
  cli::AddOption(verb, "--layers", options.layers, "N", "Layers; 0: the paper's");
  cli::AddOption(verb, "--seconds", options.seconds, "S", "Time to measure each model, in seconds");
  AddList(verb, "--attention", options.attentions, "Mixers (default: causal-linear)");
  AddList(verb, "--precision", options.precisions, "fp32, bf16 or both (default: both)");
  verb->add_option("--batch", options.batches, "Sequences per update (default: the paper's)")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb->add_flag("--graph", options.graph, "Time the update as a CUDA graph, too");
  verb->add_flag("--profile", options.profile, "List the kernels of an update");
  verb->add_flag("--json", options.json, "Print a list of records");
  verb->callback([&] { BenchTrainOnDevice(options); });
}

}  // namespace
}  // namespace linnet::bench

int main(int argc, char** argv) {
  linnet::KeepFreedMemory();
  CLI::App app("Times training on a GPU", "linnet-bench");
  linnet::cli::SetUp(app);
  linnet::cli::DeviceAttentionOptions attention;
  linnet::cli::DeviceTrainOptions train;
  linnet::cli::AddAttention(app, attention);
  linnet::cli::AddTrain(app, train);
  return linnet::cli::RunProgram(app, argc, argv);
}
