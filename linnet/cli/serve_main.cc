// linnet-serve: the verbs that use HTTP. `linnet serve` runs it.
#include "linnet/cli/serve.h"
#include "linnet/program/program.h"

int main(int argc, char** argv) {
  using namespace linnet::cli;
  // Messages begin with "linnet", the program that the user called.
  CLI::App app("Serve models over HTTP", "linnet");
  SetUp(app);
  AddServeVerb(app);
  return RunProgram(app, argc, argv);
}
