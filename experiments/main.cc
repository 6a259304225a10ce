// linnet-reproduce: measures and draws the paper's figures and tables. `linnet reproduce` runs it.
#include <CLI/CLI.hpp>

#include "experiments/experiment.h"
#include "linnet/program/program.h"

namespace linnet::experiments {
namespace {

constexpr Experiment kExperiments[] = {
    {"figure1", MeasureRecords, DeriveFigure1},
    {"figure2", MeasureTrainings, DeriveFigure2},
    {"figure3", MeasureSamples, DeriveSamples},
    {"figure4", MeasureSamples, DeriveSamples},
    {"figure5", MeasureFigure5, DeriveFigure5},
    {"figure6", MeasureSamples, DeriveSamples},
    {"figure7", MeasureSamples, DeriveSamples},
    {"figure8", MeasureSamples, DeriveSamples},
    {"figure9", MeasureSamples, DeriveSamples},
    {"table1", MeasureImageTable, DeriveImageTable},
    {"table2", MeasureImageTable, DeriveImageTable},
    {"table3", MeasureTable3, DeriveTable3},
    {"table4", MeasureRecords, DeriveTable4},
    {"table5", MeasureRecords, DeriveTable5},
    {"batch", MeasureRecords, DeriveBatch},
    {"polynomial", MeasureRecords, DerivePolynomial},
    {"recall", MeasureTrainings, nullptr},
    {"couplet", MeasureCouplet, nullptr},
};

}  // namespace
}  // namespace linnet::experiments

int main(int argc, char** argv) {
  using namespace linnet::experiments;
  CLI::App app("Measure the paper's tables and figures, and write a page for each",
               "linnet reproduce");
  linnet::cli::SetUp(app);
  AddAll(app);
  for (const Experiment& experiment : kExperiments) AddExperiment(app, experiment);
  return linnet::cli::RunProgram(app, argc, argv);
}
