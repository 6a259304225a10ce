// Runs verbs of linnet (train, eval, ...) for an experiment. A folder keeps the results until the
// page is written, so that an interrupted experiment can resume. Trainings stay in the folder.
//
//   Lab lab("figure2", "runs/figure2");
//   const double each = lab.SecondsAnUpdate("linear", "linear", flags);
//   const json run = lab.Train("linear, seed 1", "linear-1", flags, 60 * 8 / each, {"loss"});
//   const json eval = lab.Measure("eval-linear-1", {"eval", model, "--json"});
#ifndef EXPERIMENTS_LAB_H_
#define EXPERIMENTS_LAB_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/error.h"
#include "linnet/program/child.h"

namespace linnet::experiments {

// Appends arguments of a command: a string as it is, a list by elements, another value as JSON.
void Append(std::vector<std::string>& arguments, const nlohmann::json& value);

bool Exists(const std::filesystem::path& path);

// The folder of data sets: $LINNET_DATA, or "data" if that is not set.
std::string DataRoot();

// Runs `linnet ARGUMENTS...`. Throws Interrupted after Ctrl-C, with the message `stopped`.
cli::ChildResult RunLinnet(const std::vector<std::string>& arguments, const std::string& stopped);

class Lab {
 public:
  // `folder` is created when the first result is saved.
  Lab(std::string experiment, std::filesystem::path folder)
      : experiment_(std::move(experiment)), folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }

  // Runs `linnet ARGUMENTS...` and parses its JSON output. Throws Interrupted after Ctrl-C, and
  // InputError or RuntimeError if the command fails; the command has then printed the reason.
  nlohmann::json Run(const std::vector<std::string>& arguments) const;
  // As Run(), but saves the result under `name`. Returns the saved result if an interrupted call of
  // the experiment has run the same arguments on this machine.
  nlohmann::json Measure(const std::string& name, const std::vector<std::string>& arguments) const;

  // Seconds per update of `linnet train FLAGS...`: the median over three blocks of five updates,
  // after five for warm-up. The folder keeps the result, so that a resumed experiment has the same
  // plan. `name` is for file names, `label` for messages.
  double SecondsAnUpdate(const std::string& label, const std::string& name,
                         const std::vector<std::string>& flags) const;

  // Trains in the subfolder `name`, or resumes its run, up to `steps` updates. Returns {"steps",
  // "training_seconds", "epochs", "parameters", "peak_memory", "curve": see CurveOf() in record.h}.
  nlohmann::json Train(const std::string& label, const std::string& name,
                       const std::vector<std::string>& flags, int64_t steps,
                       const std::vector<std::string>& curve) const;
  std::string ModelOf(const std::string& name) const {
    return folder_ / name / "model.safetensors";
  }

  // A cache of one result: `file` (relative to the folder) stores a question and its answer. If the
  // stored question equals `question`, returns the stored answer; otherwise calls measure(), and
  // stores and returns its result.
  nlohmann::json Kept(const std::filesystem::path& file, const nlohmann::json& question,
                      FunctionRef<nlohmann::json()> measure) const;

  // Deletes the results of Measure. Trainings and other kept answers stay.
  void Finish() const;

 private:
  double TimeUpdates(const std::string& label, const std::filesystem::path& run,
                     const std::vector<std::string>& flags) const;
  std::string RunVerb(const std::vector<std::string>& arguments) const;

  const std::string experiment_;
  const std::filesystem::path folder_;
  mutable std::vector<std::filesystem::path> kept_;  // files saved by Measure()
};

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_LAB_H_
