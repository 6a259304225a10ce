// The paper's experiments: each is one command that measures, draws its figures and writes a page.
//
// Experiment NAME consists of NAME.cc (a class and a Row), a template pages/NAME.md, and a line in
// main.cc. It measures by running other verbs of linnet (lab.h), so nothing here needs libtorch.
// Every result on its page is computed from the record.
//
//   class Table9 : public Experiment {
//     void AddOptions(CLI::App& verb) override;
//     json Measure(const Lab& lab) override;             // the record: NAME.json
//     Drawing Draw(const json& record) const override;   // the page's values, the figures
//   };
//   const Row kTable9 = {"table9", "summary", "notes", "  linnet reproduce table9\n", Make<Table9>};
#ifndef EXPERIMENTS_EXPERIMENT_H_
#define EXPERIMENTS_EXPERIMENT_H_

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "experiments/lab.h"
#include "linnet/io/png.h"
#include "linnet/plot/plot.h"

namespace linnet::experiments {

struct Drawing {
  nlohmann::json values =
      nlohmann::json::object();  // for the page's template; override the record's fields
  std::vector<std::pair<std::string, plot::Figure>> figures = {};  // named as in Pictures()
  std::vector<std::pair<std::string, Image>> images = {};          // named as in Images()
};

class Experiment {
 public:
  virtual ~Experiment() = default;

  virtual void AddOptions(CLI::App& verb) = 0;
  // Throws InputError for invalid options; called before anything runs.
  virtual void Check() const {}
  // Page: the experiment whose template this one fills. Work: the lab's folder unless --work names
  // another; "": no --work option, and the lab's folder is --out.
  virtual std::string Page(const std::string& name) const { return name; }
  virtual std::string Work(const std::string& name) const { return "runs/" + name; }
  // Names of all possible results of Draw: plots (NAME.png, NAME.svg and their dark forms) and
  // PNGs.
  virtual std::vector<std::string> Pictures() const = 0;
  virtual std::vector<std::string> Images() const { return {}; }
  // Whether NAME.json holds everything that Draw needs, which enables --from.
  virtual bool DrawsFromRecord() const { return true; }

  virtual nlohmann::json Measure(const Lab& lab) = 0;
  // The name of an experiment's own option that is allowed with --from and changes the record.
  virtual std::string AmendOption() const { return ""; }
  virtual void Amend(nlohmann::json&) const {}
  // Throws InputError or a nlohmann exception if the record is not of this experiment.
  virtual Drawing Draw(const nlohmann::json& record) const = 0;
};

struct Row {
  const char* name;      // "figure1"
  const char* summary;   // one line
  const char* notes;     // further explanation in --help
  const char* examples;  // indented lines
  std::shared_ptr<Experiment> (*make)();
};
template <class E>
std::shared_ptr<Experiment> Make() {
  return std::make_shared<E>();
}

// Adds the verb of an experiment, with --from, --work, --out, --json and its own options.
void AddExperiment(CLI::App& app, const Row& row);
// The experiment's own options that the user gave, except those in `but`: " --seed 3 --data an4".
// Paths are reduced to their last component.
std::string GivenOptions(const CLI::App& verb, const std::vector<std::string>& but = {});

// A positive number from a record. Throws InputError or a nlohmann exception otherwise.
double Positive(const nlohmann::json& record, const char* field);
// The first record whose field `key` has that value, or null.
const nlohmann::json* FindRecord(const nlohmann::json& records, const char* key,
                                 const nlohmann::json& value);

// The result files: NAME.md, NAME.json and the pictures in a folder.
class Results {
 public:
  // Fails early: throws if a file could not be written.
  Results(const std::string& name, const std::string& folder,
          const std::vector<std::string>& pictures, const std::vector<std::string>& images);
  // Writes all files or none; creates the folder if necessary. Returns the paths written.
  std::vector<std::string> Write(const std::string& record, const std::string& page,
                                 const Drawing& drawing) const;

 private:
  std::string folder_, page_, record_;
};

// `linnet reproduce all`.
void AddAll(CLI::App& app);

extern const Row kCouplet, kFigure1, kFigure2, kFigure3, kFigure4, kFigure5, kFigure6, kFigure7,
    kFigure8, kFigure9, kTable1, kTable2, kTable3, kTable4, kTable5;

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_EXPERIMENT_H_
