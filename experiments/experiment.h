// The paper's experiments: each verb (subcommand) measures, draws its figures and writes a page.
//
// Experiment NAME consists of
//   pages/NAME.json  its description: help, options, the paper's numbers, rules for valid records,
//                    figures (figures.h). The page can use all its fields.
//   pages/NAME.md    the template of its page (page.h)
//   a source file    with two functions, declared below and listed in main.cc: one measures,
//                    mostly by running other verbs of linnet (lab.h); the other derives values for
//                    the page
// Several experiments may share a template or functions. Every measured number on a page comes from
// the record, NAME.json in the folder of results.
//
// Fields of a description:
//   "like"      names of descriptions whose fields this one inherits; their options come first
//   "summary", "notes", "examples"   texts for --help; the last is a list
//   "page"      name of the template, if not NAME
//   "work"      default of --work, if not "runs/NAME"; if it is "", --out replaces --work
//   "defaults"  {option: its default, instead of that in "options"}
//   "options"   a list of {"name", "type", "help", "default", "choices", "flag": true,
//               "excludes": "--other"}; further fields of an option:
//                 "range": [low, high]   for a whole number; with "real": true, for any number
//                 "many": true           may be repeated; "many": ",": a comma-separated list
//                 "missing": TEXT        the option is required; TEXT is the error without it
//                 "amends": true         the value names a JSON file; its content becomes a field
//                                        of the record, even of a record that --from reads
//   "record"    {path: rule}, see CheckRecord
//   "figures"   see figures.h; "training", "measure": see measure.h
//   "keep"      names of options that become fields of the record, see Begin() in measure.h
//   others      numbers and texts for the experiment's functions, page and figures
#ifndef EXPERIMENTS_EXPERIMENT_H_
#define EXPERIMENTS_EXPERIMENT_H_

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "experiments/lab.h"
#include "experiments/record.h"

namespace linnet::experiments {

// Names of files in the folder of results (--out), and their contents.
using Files = std::vector<std::pair<std::string, std::string>>;

// One call of an experiment's verb.
struct Call {
  const nlohmann::json& about;    // the description
  const nlohmann::json& options;  // by name: {"steps": 100}; null: not given and no default
  const CLI::App& verb;
  const Lab& lab;
  Files* pictures;  // receives the images that `measure` draws; plots are drawn later

  // An option's value; `otherwise` if it was not given.
  template <class T>
  T Get(const char* option, const T& otherwise) const {
    const nlohmann::json& value = options.at(option);
    return value.is_null() ? otherwise : value.get<T>();
  }
  int Threads() const;  // --threads; if 0, the number of available processors
};

struct Experiment {
  // Adds the measurements to `record`, which already holds the fields of "amends" options.
  using Measure = void(const Call& call, nlohmann::json& record);
  // Adds values for the page and the figures to `values`, a record's fields. `values` already has
  // "rows", the methods with their runs (MethodsRun), if the description has "methods" and the
  // record has "runs". Throws InputError or a nlohmann exception for another experiment's record.
  using Derive = void(const nlohmann::json& about, nlohmann::json& values);

  const char* name;
  Measure* measure;
  Derive* derive;  // may be null
};

// Parses pages/NAME.json, merges the descriptions in "like", and adds the name as "name".
nlohmann::json Describe(const std::string& name);
// Adds a verb with the described help and options. Parsing stores the values in `options`, which
// must outlive the app.
CLI::App* AddDescribedVerb(CLI::App& app, const std::string& name, const nlohmann::json& about,
                           nlohmann::json& options);
// Adds the verb of an experiment, with the common options --from, --work, --out and --json.
void AddExperiment(CLI::App& app, const Experiment& experiment);
// Adds `linnet reproduce all`.
void AddAll(CLI::App& app);

// Returns the options given on the command line, as in " --seed 3 --data an4". `only` selects
// options by name; if empty, all options of the description. Paths are cut to their last component.
std::string GivenOptions(const Call& call, const std::vector<std::string>& only = {});

// The functions of the experiments. MeasureRecords() serves figure 1, batch, polynomial, and tables
// 4 and 5, MeasureTrainings() figure 2 and recall, MeasureImageTable() tables 1 and 2,
// MeasureSamples() figures 3, 4 and 6 to 9.
Experiment::Measure MeasureCouplet, MeasureFigure5, MeasureImageTable, MeasureRecords,
    MeasureSamples, MeasureTable3, MeasureTrainings;
Experiment::Derive DeriveBatch, DeriveFigure1, DeriveFigure2, DeriveFigure5, DeriveImageTable,
    DerivePolynomial, DeriveSamples, DeriveTable3, DeriveTable4, DeriveTable5;

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_EXPERIMENT_H_
