// What the experiments share (reproduce.h): verbs that are run for their results, trainings that go on where
// they were, and results that are written whole or not at all.
//
//   const Results results("figure2", options.out, {"figure2"});       // can all be written: tried first
//   Lab lab("figure2", options.work);
//   const double each = lab.SecondsAnUpdate("linear", "linear", flags);
//   const json run = lab.Train("linear, seed 1", "linear-1", flags, 60 * 8 / each);
//   results.Write(all, Page(all, command), {Draw(all)});
#ifndef LINNET_CLI_EXPERIMENT_H_
#define LINNET_CLI_EXPERIMENT_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/io/png.h"
#include "linnet/plot/plot.h"

namespace linnet::cli {

// What `linnet ...` prints. Throws where it fails, saying that nothing of the experiment is written;
// Interrupted after Ctrl-C.
std::string RunVerb(const std::string& experiment, const std::vector<std::string>& arguments);
nlohmann::json RunVerbJson(const std::string& experiment,
                           const std::vector<std::string>& arguments);

// Throws InputError, beginning with `where`, on what is no JSON.
nlohmann::json ParseRecord(const std::string& text, const std::string& where);

// The records of a run's metrics.jsonl.
std::vector<nlohmann::json> MetricsOf(const std::filesystem::path& run);

// What `use` (a page, a picture) needs of an experiment's record is there, or InputError: give the NAME.json
// that 'linnet reproduce NAME' wrote.
nlohmann::json ReadRecord(const std::string& experiment, const std::string& text,
                          const std::string& where, FunctionRef<void(const nlohmann::json&)> use);

// A field of a record that is a number above zero; throws InputError, or what nlohmann throws.
double Positive(const nlohmann::json& record, const char* field);

// The options that experiments share.
struct ExperimentOptions {
  std::string out = ".", from;
  bool json = false;
};
void AddExperimentOptions(CLI::App& verb, const std::string& name, ExperimentOptions& options);
// Throws InputError where --from is given, which measures nothing, and an option of measuring too, but for
// those that are named.
void CheckFrom(const CLI::App& verb, const std::vector<std::string>& allowed = {});

// The record of --from, or what `measure` gives, with the command that made it as its "command" where it has
// none.
nlohmann::json Obtain(const std::string& experiment, const ExperimentOptions& options,
                      const std::string& command, FunctionRef<nlohmann::json()> measure,
                      FunctionRef<void(const nlohmann::json&)> use);
// For pages: that command, or one that says that an earlier run's record has none.
std::string CommandOf(const std::string& experiment, const nlohmann::json& record);

// Trainings in a folder of the experiment's: stopped, they go on where they were.
class Lab {
 public:
  Lab(std::string experiment, std::filesystem::path folder);

  // Seconds of an update of `linnet train FLAGS...`, the median of three tens behind the first ten; kept in the
  // folder, so that an experiment that goes on plans as it did. `name` is a file's, `label` for people.
  double SecondsAnUpdate(const std::string& label, const std::string& name,
                         const std::vector<std::string>& flags);

  // Trains so many updates, or what of them is left, and gives {"run", "steps", "seconds", "before", "metrics",
  // "info"}: the folder, the time of the updates, whether all of it was there before, the records of
  // metrics.jsonl, and what `linnet info` says of the model.
  nlohmann::json Train(const std::string& label, const std::string& name,
                       const std::vector<std::string>& flags, int64_t steps);

 private:
  std::string experiment_;
  std::filesystem::path folder_;
};

// NAME.md, NAME.json and the pictures in a folder, which Write makes where it is missing.
class Results {
 public:
  // Throws where one of them could not be written. `images` are PNGs that are no plots.
  Results(const std::string& name, const std::string& folder,
          const std::vector<std::string>& pictures, const std::vector<std::string>& images = {});

  // A figure for each of the pictures, in both themes, as PNG and SVG; or for the first ones.
  void Write(const std::string& records, const std::string& page,
             const std::vector<plot::Figure>& figures, const std::vector<Image>& images = {});
  // Names what was written: a line a file, or JSON.
  void Print(bool json) const;

 private:
  std::string folder_, page_, records_;
  std::vector<std::string> pictures_, images_, written_;
};

}  // namespace linnet::cli

#endif  // LINNET_CLI_EXPERIMENT_H_
