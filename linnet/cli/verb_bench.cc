// linnet bench: one sub-verb for each benchmark. linnet-bench and linnet-bench-torch run them.
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

void AddBench(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "bench", "Benchmark linnet against the limits of this machine",
      "A benchmark first checks that the results are right. It then prints each result, its limit\n"
      "and their ratio. Most limits are the best that this machine allows, measured in the same "
      "run.",
      "  linnet bench step\n"
      "  linnet bench generate --random mnist --batch 64 --precision int8\n"
      "  linnet bench train --json\n"
      "  linnet bench causal-linear --max-n 4096 --json\n");
  verb->require_subcommand(1);
  const auto add = [&](const Sibling& program, const char* name, const char* summary) {
    AddSiblingVerb(*verb, name, summary, program);
  };
  add(kBenchProgram, "step", "Time one recurrent step at batch 1");
  add(kBenchProgram, "generate",
      "Time the generation of images, sampling included, by batch size and precision");
  add(kBenchProgram, "prefix", "Time a long prefix in one call and in single steps");
  add(kBenchProgram, "stream",
      "Measure the rounding errors of a recurrent state over a long stream");
  add(kBenchProgram, "causal-linear", "Time the kernel of causal linear attention");
  add(kBenchProgram, "scan", "Time the kernel of gated recurrences");
  add(kBenchProgram, "serve",
      "Time a model over HTTP: couplets under load, or the first token of text");
  add(kBenchTorchProgram, "train", "Time a training update of the paper's MNIST model");
  add(kBenchTorchProgram, "memory", "Measure the memory of training causal linear attention");
  add(kBenchTorchProgram, "scan-torch",
      "Time gated recurrences against their chunked form in libtorch");
  add(kBenchTorchProgram, "features", "Measure the error of random feature maps");
  add(kBenchTorchProgram, "attention",
      "Measure time and memory of attention against the length (the paper's figure 1)");
  add(kBenchTorchProgram, "speech", "Time training on speech against the length of utterances");
  add(kBenchTorchProgram, "stem", "Time the causal stem of images in training");
}

}  // namespace linnet::cli
