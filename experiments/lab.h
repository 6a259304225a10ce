// Runs verbs of linnet for an experiment. The results stay in a folder until the experiment has
// written its page, so that an interrupted experiment can resume.
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

#include "linnet/base/error.h"
#include "linnet/base/function_ref.h"

namespace linnet::experiments {

// Appends arguments of a command: texts, numbers, and JSON, of a list each element.
inline void AppendOne(std::vector<std::string>& arguments, const nlohmann::json& value) {
  if (value.is_array()) {
    for (const nlohmann::json& element : value) AppendOne(arguments, element);
  } else {
    arguments.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  }
}
template <class... Values>
void Append(std::vector<std::string>& arguments, const Values&... values) {
  (AppendOne(arguments, values), ...);
}

class Lab {
 public:
  // Creates the folder with the first result.
  Lab(std::string experiment, std::filesystem::path folder)
      : experiment_(std::move(experiment)), folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }

  // Runs `linnet ARGUMENTS...` and parses its JSON output. On failure throws an error that says
  // that no results of the experiment are written; after Ctrl-C throws Interrupted.
  nlohmann::json Run(const std::vector<std::string>& arguments) const;
  // As Run, but returns the saved result if an earlier call of the experiment measured it.
  nlohmann::json Measure(const std::string& name, const std::vector<std::string>& arguments) const;

  // Seconds per update of `linnet train FLAGS...`: the median over three blocks of ten updates,
  // after ten for warm-up. The folder keeps it, so that a resumed experiment has the same plan.
  // `name` is for file names, `label` for messages.
  double SecondsAnUpdate(const std::string& label, const std::string& name,
                         const std::vector<std::string>& flags) const;

  // Trains for `steps` updates in all, resuming an earlier run in the folder NAME. Returns {"steps",
  // "training_seconds", "epochs", "parameters", "peak_memory", "curve": see CurveOf}.
  nlohmann::json Train(const std::string& label, const std::string& name,
                       const std::vector<std::string>& flags, int64_t steps,
                       const std::vector<std::string>& curve) const;
  std::string ModelOf(const std::string& name) const {
    return folder_ / name / "model.safetensors";
  }

  // The answer that this file in the folder holds if it is that to the question, or measure().
  nlohmann::json Kept(const std::filesystem::path& file, const nlohmann::json& question,
                      FunctionRef<nlohmann::json()> measure) const;

  // Deletes the results of Measure. Trainings stay.
  void Finish() const;

 private:
  double TimeUpdates(const std::string& label, const std::filesystem::path& run,
                     const std::vector<std::string>& flags) const;
  std::string RunVerb(const std::vector<std::string>& arguments) const;
  void MakeFolder(const std::filesystem::path& folder) const;

  const std::string experiment_;
  const std::filesystem::path folder_;
  mutable std::vector<std::filesystem::path> kept_;  // result files of Measure
};

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_LAB_H_
