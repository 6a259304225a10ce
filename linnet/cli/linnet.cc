// linnet: runs linear-attention transformers as RNNs. Free of libtorch, libcurl and Cairo: verbs
// that need them live in separate programs, which replace this one (sibling.h).
#include <CLI/CLI.hpp>

#include "linnet/base/version.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"

int main(int argc, char** argv) {
  namespace cli = linnet::cli;
  CLI::App app("Linear-attention transformers: train them like transformers, run them like RNNs.",
               "linnet");
  app.set_version_flag("--version", "linnet " LINNET_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const auto add_verb :
       {cli::AddData, cli::AddTrain, cli::AddPlot, cli::AddEval, cli::AddSample, cli::AddComplete,
        cli::AddTranscribe, cli::AddGenerate, cli::AddCouplet, cli::AddServe, cli::AddBench,
        cli::AddReproduce, cli::AddInfo, cli::AddImport, cli::AddExport}) {
    add_verb(app);
  }
  app.footer("\n'linnet VERB --help' shows a verb's options and examples.");
  return cli::RunProgram(app, argc, argv);
}
