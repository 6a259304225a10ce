// state.safetensors: everything that a run needs to continue bit for bit.
#ifndef LINNET_TRAIN_RUN_STATE_H_
#define LINNET_TRAIN_RUN_STATE_H_

#include <torch/types.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "linnet/nn/network.h"
#include "linnet/nn/optimizer.h"

namespace linnet::train {

// The state of --lr-patience, which lowers the learning rate after validations without an
// improvement.
struct Patience {
  double best = std::numeric_limits<double>::infinity();
  int worse = 0;     // validations since the best one, or since the last reduction
  double scale = 1;  // factor of the learning rate
};

struct RunProgress {
  int64_t step = 0;    // updates made
  double seconds = 0;  // time spent on updates, without validations and checkpoints
  double epochs = 0;   // passes over the data
  Patience patience;
};

inline constexpr int64_t kMaxSteps = 1'000'000'000'000;

// The tensors that an update reads or changes.
struct RunTensors {
  nn::Network& model;
  nn::Optimizer& optimizer;
  const std::vector<torch::Tensor>& parameters;  // of the model
  std::vector<torch::Tensor>& averages;          // their moving averages, or empty
  torch::Device device;
};

// Replaces the file atomically.
void SaveRunState(const std::string& path, const RunTensors& tensors, const RunProgress& progress);

// Loads the tensors and the random state; returns the progress. Throws InputError if the file is
// damaged, or was saved by a run with another network. If the weights of that run, in the file
// model_path, also fit this network, the message suggests `--init model_path`. If the file lacks
// the number of epochs, computes it from steps_per_epoch (0: the data has no epochs).
RunProgress LoadRunState(const std::string& path, const std::string& model_path,
                         int64_t steps_per_epoch, const RunTensors& tensors);

}  // namespace linnet::train

#endif  // LINNET_TRAIN_RUN_STATE_H_
