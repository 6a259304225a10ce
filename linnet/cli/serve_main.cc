// linnet-serve: the verbs that speak HTTP. `linnet serve` becomes it, and `linnet bench serve`.
#include "linnet/base/version.h"
#include "linnet/cli/program.h"
#include "linnet/cli/serve.h"

int main(int argc, char** argv) {
  using namespace linnet::cli;
  // Messages begin with the name of the program that people call.
  CLI::App app("Serves models over HTTP", "linnet");
  app.set_version_flag("--version", "linnet " LINNET_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  AddServeVerb(app);
  AddServeBench(app);
  return RunProgram(app, argc, argv);
}
