// linnet-reproduce: the paper's figures and tables, measured here. `linnet reproduce` runs it.
#include <CLI/CLI.hpp>

#include "linnet/base/version.h"
#include "linnet/cli/program.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"

int main(int argc, char** argv) {
  namespace cli = linnet::cli;
  CLI::App app("Measures the paper's figures again, and writes a page about each.",
               "linnet reproduce");
  app.set_version_flag("--version", "linnet " LINNET_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const cli::Experiment* experiment :
       {&cli::kAll, &cli::kFigure1, &cli::kFigure2, &cli::kFigure3, &cli::kFigure4, &cli::kFigure5,
        &cli::kFigure6, &cli::kFigure7, &cli::kFigure8, &cli::kFigure9, &cli::kTable1,
        &cli::kTable2, &cli::kTable3, &cli::kTable4, &cli::kTable5, &cli::kCouplet}) {
    experiment->add(*cli::AddVerb(app, experiment->name, experiment->description, experiment->notes,
                                  experiment->examples));
  }
  return cli::RunProgram(app, argc, argv);
}
