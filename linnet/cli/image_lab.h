// The four methods of the paper's image experiments (§4.2), trained in one folder that tables and figures
// share: who comes first trains, the others find the models there.
//
//   ImageLabOptions options;
//   AddImageLabOptions(verb, MnistSetup(), options);
//   ...
//   ImageLab lab("table1", MnistSetup(), options);
//   const json runs = lab.Train();              // [{"method", "steps", "bits_per_dim", "curve", ...}]
//   lab.ModelOf(kImageMethods[3])               // the linear one's file
#ifndef LINNET_CLI_IMAGE_LAB_H_
#define LINNET_CLI_IMAGE_LAB_H_

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "linnet/cli/experiment.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

struct ImageMethod {
  const char* name;
  const char* label;
  const char* attention;
  int rounds;  // of hashing
};
inline constexpr std::array<ImageMethod, 4> kImageMethods = {{
    {"softmax", "softmax", "full", 4},
    {"lsh-1", "LSH-1", "reformer", 1},
    {"lsh-4", "LSH-4", "reformer", 4},
    {"linear", "linear", "causal-linear", 4},
}};

// A data set's experiment, and what the paper measured: by method.
struct ImageSetup {
  const char* dataset;  // as linnet knows it
  const char* title;
  const char* table;    // its table, and the folder that is shared
  int layers;           // of the paper's network
  int batch;            // of our trainings
  int chunk, chunks;    // of hashing: 27 of 29
  bool equal_time;      // else equal updates
  double small;         // minutes of each method, or updates, of the small scale
  int64_t test_images;  // that bits/dim is measured on, where time is no matter
  double paper_bits[4], paper_images[4];
};
const ImageSetup& MnistSetup();
const ImageSetup& CifarSetup();

struct ImageLabOptions {
  std::string data, work, scale, budget, precision;  // "": not given
  int64_t steps = 0;
  int seed = 0, threads = 0;
  std::optional<bool> pixel_above;
};
void AddImageLabOptions(CLI::App& verb, const ImageSetup& setup, ImageLabOptions& options);
// As a command shows them.
std::string ToFlags(const ImageLabOptions& options);

class ImageLab {
 public:
  // Finds the data, and the folder's plan where there is one. Throws InputError where the options are of
  // another plan.
  ImageLab(std::string experiment, const ImageSetup& setup, const ImageLabOptions& options);

  // Plans, trains what is not trained yet, and measures bits/dim. Of each method {"method", "steps",
  // "seconds_an_update", "epochs", "parameters", "curve": [[step, bits/dim of the first test images]],
  // "bits_per_dim"}.
  nlohmann::json Train();

  std::string ModelOf(const ImageMethod& method) const;
  const std::string& data() const { return data_; }
  const std::string& scale() const { return scale_; }
  // {"scale", "pixel_above", "seed", "precision", "training_threads", "validation_images", "test_images"}.
  nlohmann::json Settings() const;
  // What of the budget is left; 1e9 without one.
  double SecondsLeft() const;

 private:
  std::vector<std::string> Flags(const ImageMethod& method) const;
  std::vector<std::string> Schedule(int64_t steps) const;
  void Plan();
  int ValidationImages() const;

  const std::string experiment_;
  const ImageSetup& setup_;
  ImageLabOptions options_;
  std::string data_, scale_;
  bool pixel_above_ = false;
  double budget_ = 0;  // seconds; 0: none
  Stopwatch watch_;
  Lab lab_;
  nlohmann::json plan_;  // null until there is one
};

// What `linnet ...` of a training says of these settings, for pages.
std::string DescribeScale(const ImageSetup& setup, const nlohmann::json& settings);

}  // namespace linnet::cli

#endif  // LINNET_CLI_IMAGE_LAB_H_
