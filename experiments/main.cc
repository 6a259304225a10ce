// linnet-reproduce: measures and draws the paper's figures and tables. `linnet reproduce` runs it.
#include <CLI/CLI.hpp>

#include "experiments/experiment.h"
#include "linnet/base/version.h"
#include "linnet/cli/program.h"

int main(int argc, char** argv) {
  using namespace linnet::experiments;
  CLI::App app("Measures the paper's figures again, and writes a page about each.",
               "linnet reproduce");
  app.set_version_flag("--version", "linnet " LINNET_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  AddAll(app);
  for (const Row* row :
       {&kFigure1, &kFigure2, &kFigure3, &kFigure4, &kFigure5, &kFigure6, &kFigure7, &kFigure8,
        &kFigure9, &kTable1, &kTable2, &kTable3, &kTable4, &kTable5, &kCouplet}) {
    AddExperiment(app, *row);
  }
  return linnet::cli::RunProgram(app, argc, argv);
}
