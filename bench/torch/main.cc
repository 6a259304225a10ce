// linnet-bench-torch: the benchmarks that need libtorch. `linnet bench` runs it.
#include <CLI/CLI.hpp>

#include "bench/torch/benchmarks.h"
#include "linnet/cli/torch/process.h"
#include "linnet/program/program.h"

int main(int argc, char** argv) {
  using namespace linnet::bench;
  linnet::PrepareProcess();
  CLI::App app("Benchmark training against the limits of this machine", "linnet bench");
  linnet::cli::SetUp(app);
  AddTrain(app);
  AddMemory(app);
  AddScanTorch(app);
  AddFeatures(app);
  AddAttention(app);
  AddSpeech(app);
  AddStem(app);
  return linnet::cli::RunProgram(app, argc, argv);
}
