// What is trained: a task gives the network's shape, the loss of each update, and a validation.
//
//   std::unique_ptr<Task> task = kImagesTask.make(config);
//   std::shared_ptr<nn::Network> model = nn::MakeNetwork(task->Spec());
//   StepLoss loss = task->Loss(*model, step, {});    // loss.value.backward()
//
// The data of an update is a function of (seed, step) alone, so a run can be continued anywhere: draw random
// numbers from Philox(seed) at a place that follows from the step, and from other streams for validation.
//
// A new task is a new file NAME.cc that defines `const TaskInfo kNameTask`, beside its row in tasks/ and the line
// in tasks/list.h that both share.
#ifndef LINNET_TRAIN_TASK_H_
#define LINNET_TRAIN_TASK_H_

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linnet/nn/network.h"
#include "linnet/train/config.h"

namespace linnet::train {

// Named figures, in the order in which they are shown.
using Metrics = std::vector<std::pair<std::string, double>>;

// A share of an update's batch: losses and metrics of its parts add up to those of the whole.
struct Part {
  int index = 0, count = 1;

  // The rows of a batch that are this part's.
  int64_t Begin(int64_t batch) const { return batch * index / count; }
  int64_t End(int64_t batch) const { return batch * (index + 1) / count; }
};

struct StepLoss {
  torch::Tensor value;  // scalar, to be minimised
  Metrics metrics;      // the first one goes on the progress line
  int64_t tokens = 0;   // symbols read
};

class Task {
 public:
  virtual ~Task() = default;
  // BaseSpec(config) with the task's part, vocabulary or inputs, head and max_length. A task with nothing of its
  // own in the spec leaves `part` as it is.
  virtual ModelSpec Spec() const = 0;
  // Updates in a pass over the data; 0 where the data has no end.
  virtual int64_t StepsPerEpoch() const { return 0; }
  // Symbols that an update reads.
  virtual int64_t TokensPerStep() const = 0;
  // What the weights do not learn but the model file holds.
  virtual void Prepare(nn::Network&) const {}
  virtual StepLoss Loss(nn::Network& model, int64_t step, const Part& part) = 0;
  // The first figure is the one that --lr-patience watches (less is better). "accuracy" is shown in percent.
  virtual Metrics Validate(nn::Network& model) = 0;
  // What it is trained on, in a few words.
  virtual std::string Data() const = 0;
  // What is to be said of the data before training begins: a line each.
  virtual std::vector<std::string> Remarks() const { return {}; }
};

struct Preset {
  const char* name;
  const char* description;
  const char* json;  // for ApplyJson
};

struct TaskInfo {
  const char* name;
  const char* description;
  const char* example;          // a command line
  std::vector<Preset> presets;  // the first is the default
  std::unique_ptr<Task> (*make)(const TrainConfig&);
};

const std::vector<const TaskInfo*>& Tasks();

#define LINNET_TASK(Name) extern const TaskInfo k##Name##Task;  // NAME.cc
#include "linnet/tasks/list.h"

}  // namespace linnet::train

#endif  // LINNET_TRAIN_TASK_H_
