// linnet-bench: benchmarks of kernels, engine and server, without libtorch. `linnet bench` runs it.
#include <CLI/CLI.hpp>

#include "bench/benchmarks.h"
#include "linnet/program/program.h"

int main(int argc, char** argv) {
  using namespace linnet::bench;
  CLI::App app("Benchmark linnet against the limits of this machine", "linnet bench");
  linnet::cli::SetUp(app);
  AddStep(app);
  AddGenerate(app);
  AddPrefix(app);
  AddStream(app);
  AddCausalLinear(app);
  AddScan(app);
  AddServe(app);
  return linnet::cli::RunProgram(app, argc, argv);
}
