#include "linnet/train/task.h"

#include <torch/utils.h>

namespace linnet::train {

Metrics Read(const DeviceMetrics& metrics) {
  Metrics read;
  if (metrics.empty()) return read;
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> values;
  for (const auto& [name, value] : metrics) values.push_back(value.to(torch::kFloat64));
  const torch::Tensor there = torch::stack(values).to(torch::kCPU);
  for (size_t i = 0; i < metrics.size(); ++i) {
    read.emplace_back(metrics[i].first, there.data_ptr<double>()[i]);
  }
  return read;
}

torch::Tensor ToDevice(const torch::Tensor& tensor, torch::Device device) {
  if (tensor.device().type() == device.type()) return tensor;
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

const std::vector<const TaskInfo*>& Tasks() {
#define LINNET_TASK(Name) &k##Name##Task,
  static const std::vector<const TaskInfo*> tasks = {
#include "linnet/tasks/list.h"
  };
  return tasks;
}

}  // namespace linnet::train
