// linnet bench: one sub-verb for each benchmark (bench.h).
#include "linnet/cli/bench.h"
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

void AddBench(CLI::App& app) {
  CLI::App* verb =
      AddVerb(app, "bench", "Time this machine against its own limits",
              "Results are checked before they are timed, and every time stands beside\n"
              "what the machine itself allows, measured in the same run.",
              "  linnet bench step\n"
              "  linnet bench generate --random mnist --batch 64 --precision int8\n"
              "  linnet bench train --json\n"
              "  linnet bench causal-linear --max-n 4096 --json\n");
  verb->require_subcommand(1);
  AddBenchStep(*verb);
  AddBenchGenerate(*verb);
  AddBenchPrefix(*verb);
  AddBenchStream(*verb);
  AddBenchCausalLinear(*verb);
  AddTrainerVerb(*verb, "train", "Time a training step of the paper's MNIST model", "linnet-bench",
                 "train");
  AddTrainerVerb(*verb, "memory", "Measure the memory of training causal linear attention",
                 "linnet-bench", "memory");
  AddTrainerVerb(*verb, "features",
                 "Measure how near random feature maps come to what they estimate", "linnet-bench",
                 "features");
  AddTrainerVerb(*verb, "attention",
                 "Time and memory of attention against the length (the paper's figure 1)",
                 "linnet-bench", "attention");
  AddTrainerVerb(*verb, "speech", "Time training on speech, against the length of utterances",
                 "linnet-bench", "speech");
  Sibling serve = ServeSibling("bench");
  serve.arguments = {"serve"};
  AddSiblingVerb(*verb, "serve", "Time the server, with many clients at once", serve);
}

}  // namespace linnet::cli
