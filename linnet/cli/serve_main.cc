// linnet-serve: the verbs that use HTTP. `linnet serve` and `linnet bench serve` run it.
#include "linnet/base/version.h"
#include "linnet/cli/program.h"
#include "linnet/cli/serve.h"

int main(int argc, char** argv) {
  using namespace linnet::cli;
  // Messages name the program that the user called.
  CLI::App app("Serves models over HTTP", "linnet");
  app.set_version_flag("--version", "linnet " LINNET_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  AddServeVerb(app);
  AddServeBench(app);
  return RunProgram(app, argc, argv);
}
