// linnet-bench: the benchmarks that need libtorch. `linnet bench train` and similar verbs run it.
#include <CLI/CLI.hpp>

#include "linnet/base/version.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/memory.h"
#include "linnet/cli/program.h"

int main(int argc, char** argv) {
  linnet::KeepFreedMemory();
  CLI::App app("Times training against the machine's own limits", "linnet bench");
  app.set_version_flag("--version", "linnet " LINNET_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  linnet::cli::AddBenchTrain(app);
  linnet::cli::AddBenchMemory(app);
  linnet::cli::AddBenchFeatures(app);
  linnet::cli::AddBenchAttention(app);
  linnet::cli::AddBenchSpeech(app);
  return linnet::cli::RunProgram(app, argc, argv);
}
