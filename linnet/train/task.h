// Training tasks: a task defines the network's spec, the loss of each update, and the validation.
//
//   std::unique_ptr<Task> task = kImagesTask.make(config);
//   std::shared_ptr<nn::Network> model = nn::MakeNetwork(task->Spec());
//   StepLoss loss = task->Loss(*model, step, {});    // loss.value.backward()
//
// The data of an update is a function of (seed, step) alone, so a run can be resumed at any step.
// Training draws its random numbers from Philox streams that depend on the seed and the step,
// validation from other streams.
//
// To add a task: write NAME.cc, which defines `const TaskInfo kNameTask`, and tasks/NAME/task.cc
// (tasks/task.h); then add a line to tasks/list.h.
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

// Named numbers, in the order of display.
using Metrics = std::vector<std::pair<std::string, double>>;

// Metrics as scalar tensors. They stay on the model's device, because reading a number from a GPU
// makes the host wait for all work queued before it.
using DeviceMetrics = std::vector<std::pair<std::string, torch::Tensor>>;

// Reads all numbers, waiting for the device once.
Metrics Read(const DeviceMetrics& metrics);

// `tensor`, copied from the host to `device` unless it is there. A copy to a GPU is asynchronous;
// the GPU's later work waits for it.
torch::Tensor ToDevice(const torch::Tensor& tensor, torch::Device device);

// A part of an update's batch, or of the batches of a validation. Losses, metrics and sums of the
// parts add up to those of the whole.
struct Part {
  int index = 0, count = 1;
  // With sequence parallelism (state_relay.h): the piece of each sequence.
  int piece = 0, pieces = 1;
  nn::PieceExchange* exchange = nullptr;

  // The range of this part's rows in a batch of `batch` rows.
  int64_t Begin(int64_t batch) const { return batch * index / count; }
  int64_t End(int64_t batch) const { return batch * (index + 1) / count; }
  // Whether batch i of a validation is in this part.
  bool Has(size_t i) const { return i % static_cast<size_t>(count) == static_cast<size_t>(index); }
};

struct StepLoss {
  torch::Tensor value;    // scalar, to be minimized
  DeviceMetrics metrics;  // to log and display; the first one is the loss, in any unit
  int64_t tokens = 0;     // number of tokens read
};

class Task {
 public:
  virtual ~Task() = default;
  // BaseSpec(config) with the task's fields: ModelSpec::part, vocabulary or inputs, head and
  // max_length. ModelSpec::part is the task's own spec, such as ImageSpec; a task without its own
  // spec leaves it unchanged.
  virtual ModelSpec Spec() const = 0;
  // Number of updates in a pass over the data; 0 if the data is infinite.
  virtual int64_t StepsPerEpoch() const { return 0; }
  // Tokens read per update.
  virtual int64_t TokensPerStep() const = 0;
  // Sets the model's buffers that are computed from the data instead of learned.
  virtual void Prepare(nn::Network&) const {}
  virtual StepLoss Loss(nn::Network& model, int64_t step, const Part& part) = 0;
  // Whether Loss() and ValidationSums() take parts that are pieces of sequences.
  virtual bool TakesPieces() const { return false; }
  // Loss() in two halves, for --cuda-graph. BatchTensors() returns the whole batch as tensors on
  // the host, of the same shapes at every step. LossOf() computes the loss from copies of these
  // tensors on the model's device, by operations that do not depend on the tensors' values. The
  // default, no tensors, means that the task does not support --cuda-graph.
  virtual std::vector<torch::Tensor> BatchTensors(int64_t) { return {}; }
  virtual StepLoss LossOf(nn::Network&, const std::vector<torch::Tensor>&) { return {}; }
  // Validates the model, in two halves: the sums over a part of the validation set's batches, and
  // the metrics of the parts' total. Each part has the same number of sums. Lower values of the
  // first metric must be better: --lr-patience uses it.
  virtual std::vector<double> ValidationSums(nn::Network& model, const Part& part) = 0;
  virtual Metrics MetricsOf(const std::vector<double>& sums) const = 0;
  // A short description of the training data.
  virtual std::string Data() const = 0;
  // Remarks on the data, printed before training; one line each.
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
