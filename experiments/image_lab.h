// Trains the four methods of the paper's image experiments (§4.2) in one folder. Tables and figures
// share it: the first experiment trains, the others reuse the models.
//
//   ImageLab images(call);                      // call.about is like pages/image_lab.json
//   const json runs = images.Train();           // [{"method", "steps", "bits_per_dim", "curve", ...}]
//   images.ModelOf("linear")                    // the linear method's model file
#ifndef EXPERIMENTS_IMAGE_LAB_H_
#define EXPERIMENTS_IMAGE_LAB_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/experiment.h"
#include "linnet/base/progress.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet::experiments {

class ImageLab {
 public:
  // Finds the data, and the folder's plan if there is one. Throws InputError if the options or the
  // data differ from the plan.
  explicit ImageLab(const Call& call);

  // Plans, trains the methods that are not trained yet, and measures bits/dim. Returns per method
  // {"method", "steps", "seconds_an_update", "training_seconds", "epochs", "parameters", "curve":
  // [[step, bits/dim of the first test images]], "bits_per_dim"}.
  nlohmann::json Train();

  std::string ModelOf(const std::string& method) const;
  const ImageSet& test() const { return test_; }
  // Fields of a record for Trainings(): {"scale", "equal_time", "pixel_above", "seed", "precision",
  // "training_threads", "validation_images", "test_images"}.
  nlohmann::json Settings() const;
  // " --scale small ...": the options of the plan, whichever experiment made it.
  std::string CommandOptions() const;
  // Seconds left of the budget, over all calls; 1e9 without a budget.
  double SecondsLeft() const;

 private:
  nlohmann::json NewPlan() const;
  void CheckPlan() const;
  void CheckOption(const char* option, const nlohmann::json& planned) const;
  std::filesystem::path PlanFile() const { return lab_.folder() / "plan.json"; }
  std::vector<std::string> Flags(const nlohmann::json& method) const;
  std::vector<std::string> Schedule(int64_t steps) const;
  void Plan();
  double Wanted(double seconds_an_update) const;
  double BitsPerDim(const std::string& method, const nlohmann::json& training) const;
  void KeepPlan() const;

  const Call& call_;
  const Lab& lab_;
  const nlohmann::json& about_;
  const std::string data_;
  const ImageSet test_;
  Stopwatch watch_;
  nlohmann::json plan_;  // with "steps" and "seconds" of each method once it is made
};

// Sentences for pages that describe networks and trainings of a record.
std::string Trainings(const nlohmann::json& about, const nlohmann::json& record);

// Runs 'linnet bench generate' on `source`, the name of a file or "--random DATASET", and returns
// its record with the method's name. `together`: images at once.
struct Generation {
  std::vector<std::string> source;
  nlohmann::json method;  // with "attention" and "rounds"
  std::string precision = "f32";
  int chunk = 0;  // of hashing
  int together = 1;
  bool stateless = false, whole = false;
};
nlohmann::json TimeGeneration(const Call& call, const std::string& name, const Generation& what);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_IMAGE_LAB_H_
