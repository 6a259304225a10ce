// Trains the four methods of the paper's image experiments (§4.2) in one folder. Tables and figures
// share it: the first experiment trains, the others reuse the models.
//
//   ImageOptions options;
//   options.Add(verb, MnistSetup());
//   ...
//   ImageLab images(lab, MnistSetup(), options);
//   const json runs = images.Train();           // [{"method", "steps", "bits_per_dim", "curve", ...}]
//   images.ModelOf(kImageMethods[3])            // the linear method's model file
#ifndef EXPERIMENTS_IMAGE_LAB_H_
#define EXPERIMENTS_IMAGE_LAB_H_

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/lab.h"
#include "linnet/base/progress.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet::experiments {

struct ImageMethod {
  const char *name, *label, *attention;
  int rounds;  // of hashing
};
inline constexpr std::array<ImageMethod, 4> kImageMethods = {{
    {"softmax", "softmax", "full", 4},
    {"lsh-1", "LSH-1", "reformer", 1},
    {"lsh-4", "LSH-4", "reformer", 4},
    {"linear", "linear", "causal-linear", 4},
}};
inline constexpr const ImageMethod &kSoftmaxImages = kImageMethods[0],
                                   &kLinearImages = kImageMethods[3];

// The experiment on one data set, with the paper's measurements by method.
struct ImageSetup {
  const char *dataset, *title;  // linnet's name and the display name
  const char* table;            // its table, which names the shared folder
  int layers;                   // of the paper's network
  int batch;                    // of these trainings
  int chunk, chunks;            // of hashing: 27 chunks of 29
  bool equal_time;              // methods train for equal time; else for equal updates
  double small;                 // per method at the small scale: minutes, or updates
  int64_t test_images;          // for bits/dim, if time is unlimited
  double train_images;
  std::array<double, kImageMethods.size()> paper_bits, paper_images;
};
const ImageSetup& MnistSetup();
const ImageSetup& CifarSetup();

struct ImageOptions {
  std::string data, scale, budget, precision;  // "": not given
  int64_t steps = 0;
  int seed = 0, threads = 0;
  std::optional<bool> pixel_above = {};
  const CLI::App* verb = nullptr;

  void Add(CLI::App& to, const ImageSetup& setup);
};

class ImageLab {
 public:
  // Finds the data, and the folder's plan if there is one. Throws InputError if the options or the
  // data differ from the plan.
  ImageLab(const Lab& lab, const ImageSetup& setup, const ImageOptions& options);

  // Plans, trains the methods that are not trained yet, and measures bits/dim. Returns per method
  // {"method", "steps", "seconds_an_update", "training_seconds", "epochs", "parameters", "curve":
  // [[step, bits/dim of the first test images]], "bits_per_dim"}.
  nlohmann::json Train();

  std::string ModelOf(const ImageMethod& method) const;
  const ImageSet& test() const { return test_; }
  // Fields of a record for DescribeTrainings: {"scale", "equal_time", "pixel_above", "seed",
  // "precision", "training_threads", "validation_images", "test_images"}.
  nlohmann::json Settings() const;
  // " --scale small ...": the options of the plan, whichever experiment made it.
  std::string CommandOptions() const;
  // Seconds left of the budget, over all calls; 1e9 without a budget.
  double SecondsLeft() const;

 private:
  nlohmann::json NewPlan() const;
  void CheckPlan() const;
  std::filesystem::path PlanFile() const { return lab_.folder() / "plan.json"; }
  std::vector<std::string> Flags(const ImageMethod& method) const;
  std::vector<std::string> Schedule(int64_t steps) const;
  void Plan();
  double Budget() const;  // seconds, or 0
  double BitsPerDim(const ImageMethod& method, const nlohmann::json& training) const;
  void KeepPlan() const;

  const Lab& lab_;
  const ImageSetup& setup_;
  const ImageOptions& options_;
  const std::string data_;
  const ImageSet test_;
  Stopwatch watch_;
  nlohmann::json plan_;  // with "steps" and "seconds" of each method once it is made
};

// Sentences for pages that describe networks and trainings with these settings.
std::string DescribeTrainings(const ImageSetup& setup, const nlohmann::json& settings);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_IMAGE_LAB_H_
