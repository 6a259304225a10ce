// The paper's experiments, each as one command that runs it, draws it and writes a page about it.
//
// An experiment NAME is a file NAME.cc with a class and a row, a template pages/NAME.md, and a line in main.cc.
// It measures by running other verbs of linnet (lab.h), so that nothing here needs libtorch; all that its page
// says of a result it takes from that result.
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
      nlohmann::json::object();  // of the page's template, before the record's own fields
  std::vector<std::pair<std::string, plot::Figure>> figures = {};  // by the names of Pictures()
  std::vector<std::pair<std::string, Image>> images = {};          // by those of Images()
};

class Experiment {
 public:
  virtual ~Experiment() = default;

  virtual void AddOptions(CLI::App& verb) = 0;
  // Throws InputError for options that cannot be; called before anything runs.
  virtual void Check() const {}
  // Whose template it fills, and the lab's folder unless --work names another; "": there is no --work, and
  // the lab's folder is --out.
  virtual std::string Page(const std::string& name) const { return name; }
  virtual std::string Work(const std::string& name) const { return "runs/" + name; }
  // The names of all that Draw may give: plots, which become NAME.png, .svg and their dark forms, and PNGs.
  virtual std::vector<std::string> Pictures() const = 0;
  virtual std::vector<std::string> Images() const { return {}; }
  // Whether NAME.json has all that Draw needs, so that there is --from.
  virtual bool DrawsFromRecord() const { return true; }

  virtual nlohmann::json Measure(const Lab& lab) = 0;
  // An option of its own that goes with --from, and changes the record.
  virtual std::string AmendOption() const { return ""; }
  virtual void Amend(nlohmann::json&) const {}
  // Throws InputError or what nlohmann throws where the record is none of this experiment's.
  virtual Drawing Draw(const nlohmann::json& record) const = 0;
};

struct Row {
  const char* name;      // "figure1"
  const char* summary;   // one line
  const char* notes;     // what else there is to say
  const char* examples;  // lines, each indented
  std::shared_ptr<Experiment> (*make)();
};
template <class E>
std::shared_ptr<Experiment> Make() {
  return std::make_shared<E>();
}

// Makes the verb of an experiment, with --from, --work, --out and --json beside its own options.
void AddExperiment(CLI::App& app, const Row& row);
// The options of its own that the user gave, but for some: " --seed 3 --data an4". Of paths the last part.
std::string GivenOptions(const CLI::App& verb, const std::vector<std::string>& but = {});

// A field of a record that is a number above zero; throws InputError, or what nlohmann throws.
double Positive(const nlohmann::json& record, const char* field);
// The first record whose field `key` has that value, or null.
const nlohmann::json* FindRecord(const nlohmann::json& records, const char* key,
                                 const nlohmann::json& value);

// NAME.md, NAME.json and the pictures in a folder.
class Results {
 public:
  // Throws where one of them could not be written.
  Results(const std::string& name, const std::string& folder,
          const std::vector<std::string>& pictures, const std::vector<std::string>& images);
  // All of them or none; makes the folder where it is missing. Returns what was written.
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
