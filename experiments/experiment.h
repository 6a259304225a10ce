// The paper's experiments: each is one command that measures, draws its figures and writes a page.
//
// Experiment NAME consists of
//   pages/NAME.json  its description: help, options, the paper's numbers, rules for valid records,
//                    figures (figures.h). All of it is in scope on the page.
//   pages/NAME.md    the template of its page (page.h)
//   NAME.cc          two functions, declared below and listed in main.cc: one measures by running
//                    other verbs of linnet (lab.h), one adds values that the page derives
// Every result on a page is computed from the record, NAME.json in the folder of results.
//
// Fields of a description:
//   "like"      descriptions whose fields hold where this one has none; their options come first
//   "summary", "notes", "examples"   texts of --help
//   "page"      the description's template, if not its own
//   "work"      the default of --work, if not "runs/NAME"; "": no such option, the folder is --out
//   "options"   [{"name", "type", "help", "default", "range": [a, b], "real": true, "choices",
//               "many": true, "flag": true, "excludes": "--other", "missing": an error message if
//               it is not given, "amends": true if its file is a field of the record, also with --from}]
//   "record"    {path: rule}, see CheckRecord
//   "figures"   see figures.h; "training", "measure": see measure.h
//   "pictures", "images"   names of plots (default: its own) and other PNGs that it may write
//   others      numbers and texts for its functions, its page and its figures
#ifndef EXPERIMENTS_EXPERIMENT_H_
#define EXPERIMENTS_EXPERIMENT_H_

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "experiments/figures.h"
#include "experiments/lab.h"
#include "experiments/record.h"
#include "linnet/io/png.h"

namespace linnet::experiments {

using Images = std::vector<std::pair<std::string, Image>>;

// One call of an experiment's verb.
struct Call {
  const nlohmann::json& about;    // the description
  const nlohmann::json& options;  // by name: {"steps": 100}; null if not given, without a default
  const CLI::App& verb;
  const Lab& lab;
  Images* images;  // images that Measure makes

  // An option's value; `otherwise` if it was not given.
  template <class T>
  T Get(const char* option, const T& otherwise) const {
    const nlohmann::json& value = options.at(option);
    return value.is_null() ? otherwise : value.get<T>();
  }
  int Threads() const;  // of --threads, where 0 is every processor
};

struct Experiment {
  const char* name;
  // Adds its measurements to the record, which holds the fields that options amend.
  void (*measure)(const Call& call, nlohmann::json& record);
  // Adds values for page and figures to those of a record; or null. Throws InputError or a nlohmann
  // exception if the record is not of this experiment.
  void (*derive)(const nlohmann::json& about, nlohmann::json& values);
};

// Reads pages/NAME.json.
nlohmann::json Describe(const std::string& name);
// Adds a verb with the described help and options, whose values go to `options`.
CLI::App* AddDescribedVerb(CLI::App& app, const std::string& name, const nlohmann::json& about,
                           nlohmann::json& options);
// Adds the verb of an experiment; all have --from, --work, --out and --json too.
void AddExperiment(CLI::App& app, const Experiment& experiment);
// `linnet reproduce all`.
void AddAll(CLI::App& app);

// The experiment's own options that the user gave, except those in `but`: " --seed 3 --data an4".
// Paths are reduced to their last component.
std::string GivenOptions(const CLI::App& verb, const std::vector<std::string>& but = {});

// The result files: NAME.md, NAME.json and the pictures in a folder.
class Results {
 public:
  // Fails early: throws if a file could not be written.
  Results(const std::string& name, const std::string& folder,
          const std::vector<std::string>& pictures, const std::vector<std::string>& images);
  // Writes all files or none; creates the folder if necessary. Returns the paths written.
  std::vector<std::string> Write(const std::string& record, const std::string& page,
                                 const std::vector<NamedFigure>& figures,
                                 const Images& images) const;

 private:
  std::string folder_, page_, record_;
};

// The functions of the experiments. Figures 3, 4 and 6 to 9 show samples.
void MeasureCouplet(const Call& call, nlohmann::json& record);
void MeasureFigure1(const Call& call, nlohmann::json& record);
void MeasureFigure2(const Call& call, nlohmann::json& record);
void MeasureFigure5(const Call& call, nlohmann::json& record);
void MeasureImageTable(const Call& call, nlohmann::json& record);
void MeasureSamples(const Call& call, nlohmann::json& record);
void MeasureTable3(const Call& call, nlohmann::json& record);
void MeasureGenerateTable(const Call& call, nlohmann::json& record);
void DeriveFigure1(const nlohmann::json& about, nlohmann::json& values);
void DeriveFigure2(const nlohmann::json& about, nlohmann::json& values);
void DeriveFigure5(const nlohmann::json& about, nlohmann::json& values);
void DeriveImageTable(const nlohmann::json& about, nlohmann::json& values);
void DeriveSamples(const nlohmann::json& about, nlohmann::json& values);
void DeriveTable3(const nlohmann::json& about, nlohmann::json& values);
void DeriveTable4(const nlohmann::json& about, nlohmann::json& values);
void DeriveTable5(const nlohmann::json& about, nlohmann::json& values);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_EXPERIMENT_H_
