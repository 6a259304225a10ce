// The four methods of the paper's image experiments (§4.2), trained in one folder that tables and figures
// share: who comes first trains, the others find the models there.
//
//   ImageOptions options;
//   options.Add(verb, MnistSetup());
//   ...
//   ImageLab images(lab, MnistSetup(), options);
//   const json runs = images.Train();           // [{"method", "steps", "bits_per_dim", "curve", ...}]
//   images.ModelOf(kImageMethods[3])            // the linear one's file
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

// A data set's experiment, and what the paper measured: by method.
struct ImageSetup {
  const char *dataset, *title;  // as linnet knows it, and as people do
  const char* table;            // its table, and the folder that is shared
  int layers;                   // of the paper's network
  int batch;                    // of our trainings
  int chunk, chunks;            // of hashing: 27 of 29
  bool equal_time;              // else equal updates
  double small;                 // minutes of each method, or updates, of the small scale
  int64_t test_images;          // that bits/dim is measured on, where time is no matter
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
  // Finds the data, and the folder's plan where there is one. Throws InputError where the options, or the
  // data, are of another plan.
  ImageLab(const Lab& lab, const ImageSetup& setup, const ImageOptions& options);

  // Plans, trains those that are not trained yet, and measures bits/dim. Of each method {"method", "steps",
  // "seconds_an_update", "training_seconds", "epochs", "parameters", "curve": [[step, bits/dim of the first
  // test images]], "bits_per_dim"}.
  nlohmann::json Train();

  std::string ModelOf(const ImageMethod& method) const;
  const ImageSet& test() const { return test_; }
  // Records' {"scale", "equal_time", "pixel_above", "seed", "precision", "training_threads",
  // "validation_images", "test_images"}, which DescribeTrainings reads.
  nlohmann::json Settings() const;
  // " --scale small ...": the options that the trainings were planned with, whoever planned them.
  std::string CommandOptions() const;
  // Of the budget, over all calls; 1e9 without one.
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

// Sentences for pages about the networks and trainings of such settings.
std::string DescribeTrainings(const ImageSetup& setup, const nlohmann::json& settings);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_IMAGE_LAB_H_
