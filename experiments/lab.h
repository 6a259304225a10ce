// Verbs of linnet that an experiment runs for their results. What they gave is kept in a folder until the
// experiment has written its page, so that one that was stopped goes on where it was.
//
//   Lab lab("figure2", "runs/figure2");
//   const double each = lab.SecondsAnUpdate("linear", "linear", flags);
//   const json run = lab.Train("linear, seed 1", "linear-1", flags, 60 * 8 / each);
//   const json eval = lab.Measure("eval-linear-1", {"eval", model, "--json"});
#ifndef EXPERIMENTS_LAB_H_
#define EXPERIMENTS_LAB_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/error.h"

namespace linnet::experiments {

// Arguments of a command: whatever StrCat takes, one each.
template <class... Values>
void Append(std::vector<std::string>& arguments, const Values&... values) {
  (arguments.push_back(StrCat(values)), ...);
}

// Throws InputError, beginning with `where`, on text that is no JSON.
nlohmann::json ParseRecord(const std::string& text, const std::string& where);
nlohmann::json ReadRecord(const std::filesystem::path& path);

// The records of a run's metrics.jsonl.
std::vector<nlohmann::json> MetricsOf(const std::filesystem::path& run);

class Lab {
 public:
  // Makes the folder when the first result comes.
  Lab(std::string experiment, std::filesystem::path folder)
      : experiment_(std::move(experiment)), folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }

  // Runs `linnet ARGUMENTS...`, which prints JSON. Throws where it fails, saying that nothing of the
  // experiment is written; Interrupted after Ctrl-C.
  nlohmann::json Run(const std::vector<std::string>& arguments) const;
  // The same, or what it gave before the experiment was stopped.
  nlohmann::json Measure(const std::string& name, const std::vector<std::string>& arguments) const;

  // Seconds of an update of `linnet train FLAGS...`, the median of three tens behind the first ten; kept in the
  // folder, so that an experiment that goes on plans as it did. `name` is a file's, `label` for people.
  double SecondsAnUpdate(const std::string& label, const std::string& name,
                         const std::vector<std::string>& flags) const;

  // Trains so many updates, or those that are left, and gives {"run", "steps", "seconds", "before", "metrics",
  // "info"}: the folder, the time of the updates, whether all of it was there before, the records of
  // metrics.jsonl, and the result of `linnet info` on the model.
  nlohmann::json Train(const std::string& label, const std::string& name,
                       const std::vector<std::string>& flags, int64_t steps) const;

  // Forgets what Measure kept. Trainings stay.
  void Finish() const;

 private:
  std::string RunVerb(const std::vector<std::string>& arguments) const;
  void MakeFolder(const std::filesystem::path& folder) const;

  const std::string experiment_;
  const std::filesystem::path folder_;
  mutable std::vector<std::filesystem::path> kept_;  // files of Measure
};

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_LAB_H_
