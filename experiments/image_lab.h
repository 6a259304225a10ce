// Trains the four methods of the paper's image experiments (section 4.2) in one folder. Tables and
// figures share the folder: the first experiment trains, the others reuse its models.
//
//   ImageLab images(call);                      // call.about extends pages/image_lab.json
//   const json runs = images.Train();           // Trained() in measure.h, plus "bits_per_dim"
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
  // Finds the data, and the folder's plan if there is one: the options of the call that started the
  // trainings. Throws InputError if the options given or the data differ from the plan.
  explicit ImageLab(const Call& call);

  // Trains the methods that are not trained yet, and measures bits/dim over the first "test_images"
  // of settings(). The validation curves use the first "validation_images" test images.
  nlohmann::json Train();

  const ImageSet& test() const { return test_; }
  // The plan's settings as fields of a record, used by Trainings(): {"scale", "equal_time",
  // "pixel_above", "seed", "precision", "training_threads", "validation_images", "test_images"}.
  const nlohmann::json& settings() const { return settings_; }
  // The options given in the call that made the plan, and --work if not the default:
  // " --scale small ...".
  std::string CommandOptions() const;
  // Seconds of the budget that no call has used yet; 1e9 without a budget.
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

// The sentences of a page that describe the networks and trainings of a record.
std::string Trainings(const nlohmann::json& about, const nlohmann::json& record);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_IMAGE_LAB_H_
