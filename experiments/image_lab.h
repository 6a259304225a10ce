// Trains the four methods of the paper's image experiments (§4.2) in one folder. Tables and figures
// share it: the first experiment trains, the others reuse the models.
//
//   ImageLab images(call);                      // call.about is like pages/image_lab.json
//   const json runs = images.Train();           // as Trained() in measure.h, with "bits_per_dim"
//   call.lab.ModelOf("linear")                  // the linear method's model file
#ifndef EXPERIMENTS_IMAGE_LAB_H_
#define EXPERIMENTS_IMAGE_LAB_H_

#include <nlohmann/json.hpp>
#include <string>

#include "experiments/experiment.h"
#include "linnet/base/progress.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet::experiments {

class ImageLab {
 public:
  // Finds the data, and the folder's plan if there is one: the options of the call that began it.
  // Throws InputError if the options or the data differ from the plan.
  explicit ImageLab(const Call& call);

  // Trains the methods that are not trained yet, and measures bits/dim. The curves are of the first
  // test images.
  nlohmann::json Train();

  const ImageSet& test() const { return test_; }
  // Fields of a record for Trainings(): {"scale", "equal_time", "pixel_above", "seed", "precision",
  // "training_threads", "validation_images", "test_images"}.
  const nlohmann::json& settings() const { return settings_; }
  // " --scale small ...": the options of the plan, whichever experiment made it.
  std::string CommandOptions() const;
  // Seconds left of the budget, over all calls; 1e9 without a budget.
  double SecondsLeft() const;

 private:
  nlohmann::json NewPlan() const;
  void CheckPlan() const;
  nlohmann::json Settings() const;

  const Call& call_;
  const std::string data_, plan_file_;
  const ImageSet test_;
  Stopwatch watch_;
  nlohmann::json plan_, settings_;
};

// Sentences for pages that describe networks and trainings of a record.
std::string Trainings(const nlohmann::json& about, const nlohmann::json& record);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_IMAGE_LAB_H_
