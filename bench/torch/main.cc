// linnet-bench-torch: benchmarks of training, which need libtorch. `linnet bench train` and similar
// verbs run it.
#include <CLI/CLI.hpp>

#include "bench/torch/benchmarks.h"
#include "linnet/cli/program.h"
#include "linnet/cli/torch/memory.h"

int main(int argc, char** argv) {
  using namespace linnet::bench;
  linnet::KeepFreedMemory();
  CLI::App app("Times training against the machine's own limits", "linnet bench");
  linnet::cli::SetUp(app);
  AddTrain(app);
  AddMemory(app);
  AddFeatures(app);
  AddAttention(app);
  AddSpeech(app);
  return linnet::cli::RunProgram(app, argc, argv);
}
