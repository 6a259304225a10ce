#include "linnet/train/run_state.h"

#include <ATen/Context.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>

#include "linnet/error.h"
#include "linnet/io/safetensors.h"
#include "linnet/model/spec.h"

namespace linnet::train {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double kMaxSeconds = 1e10;

// The state of a device's random generator.
torch::Tensor RandomState(torch::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}
void SetRandomState(torch::Device device, const torch::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// Calls visit(name, tensor) for all tensors except the random states.
void VisitTensors(const RunTensors& tensors,
                  const std::function<void(const std::string&, torch::Tensor)>& visit) {
  const nn::Network& model = tensors.model;
  for (const auto& item : model.named_parameters()) visit("model." + item.key(), item.value());
  for (const auto& item : model.named_buffers()) visit("model." + item.key(), item.value());
  nn::Optimizer& optimizer = tensors.optimizer;
  for (size_t i = 0; i < optimizer.first_moments().size(); ++i) {
    visit("optimizer.first." + std::to_string(i), optimizer.first_moments()[i]);
    visit("optimizer.second." + std::to_string(i), optimizer.second_moments()[i]);
  }
  for (size_t i = 0; i < tensors.averages.size(); ++i) {
    visit("average." + std::to_string(i), tensors.averages[i]);
  }
}

const std::string& Metadata(const SafetensorsFile& file, const std::string& path,
                            const char* name) {
  const auto found = file.metadata().find(name);
  if (found == file.metadata().end()) {
    throw InputError(path, ": not the state of a run (no '", name, "')");
  }
  return found->second;
}

void CheckModel(const ModelSpec& there, const ModelSpec& here, const std::string& path,
                const std::string& model_path) {
  const auto difference = FirstDifference(there, here);
  if (!difference) return;
  const bool takes = !nn::NetworkDifference(there, here);
  throw InputError(path, ": ", difference->field, " is ", difference->a, " in this run and ",
                   difference->b,
                   " in the settings; a resumed run cannot change its model: leave out that "
                   "setting, or start another run",
                   takes ? " with --init " + model_path : "");
}

RunProgress ParseProgress(const std::string& text, const std::string& path,
                          int64_t steps_per_epoch) {
  const json progress = json::parse(text, nullptr, false);
  const json step = progress.is_object() ? progress.value("step", json()) : json();
  const json seconds = progress.is_object() ? progress.value("seconds", json()) : json();
  if (!step.is_number_integer() || step < 0 || step > kMaxSteps || !seconds.is_number() ||
      seconds < 0 || seconds > kMaxSeconds) {
    throw InputError(path, ": not the state of a run (its 'progress' is malformed)");
  }
  RunProgress read;
  read.step = step;
  read.seconds = seconds;
  const json epochs = progress.value("epochs", json());
  if (epochs.is_number() && epochs >= 0) {
    read.epochs = epochs;
  } else if (steps_per_epoch > 0) {  // older state files have no epochs
    read.epochs = static_cast<double>(read.step) / static_cast<double>(steps_per_epoch);
  }
  const json patience = progress.value("patience", json());
  if (patience.is_array() && patience.size() == 3 && patience[0].is_number() &&
      patience[1].is_number_integer() && patience[2].is_number()) {
    read.patience = {patience[0], patience[1], patience[2]};
  }
  return read;
}

void LoadTensors(const SafetensorsFile& file, const std::string& path, const RunTensors& tensors) {
  const bool has_averages = file.Find("average.0") != nullptr;
  VisitTensors(tensors, [&](const std::string& name, torch::Tensor tensor) {
    if (!has_averages && name.starts_with("average.")) return;
    const linnet::Tensor& stored = file.Get(name);
    if (stored.shape != tensor.sizes().vec()) {
      throw InputError(path, ": '", name, "' is ", FormatShape(stored.shape), ", not ",
                       FormatShape(tensor.sizes().vec()));
    }
    tensor.copy_(
        torch::from_blob(const_cast<float*>(stored.f32().data()), tensor.sizes(), torch::kFloat32));
    if (!torch::isfinite(tensor).all().item<bool>()) {
      throw InputError(path, ": '", name, "' holds NaN or infinite values; the file is damaged");
    }
  });
  if (has_averages) return;
  for (size_t i = 0; i < tensors.averages.size(); ++i) {  // the averages begin as the weights
    tensors.averages[i].copy_(tensors.parameters[i]);
  }
}

void LoadRandomState(const SafetensorsFile& file, const std::string& path, const char* name,
                     torch::Device device) {
  const std::span<const uint8_t> stored = file.Get(name).values<uint8_t>();
  const int64_t size = static_cast<int64_t>(stored.size());
  if (size != RandomState(device).numel()) {
    throw InputError(
        path, ": its random state does not fit this libtorch; use the libtorch version of the run");
  }
  SetRandomState(
      device, torch::from_blob(const_cast<uint8_t*>(stored.data()), {size}, torch::kUInt8).clone());
}

}  // namespace

void SaveRunState(const std::string& path, const RunTensors& tensors, const RunProgress& progress) {
  torch::NoGradGuard no_grad;
  SafetensorsWriter writer;
  std::vector<torch::Tensor> kept;
  const auto add = [&](const std::string& name, DType dtype, const torch::Tensor& tensor) {
    kept.push_back(tensor.detach().to(torch::kCPU).contiguous());
    writer.Add(name, dtype, tensor.sizes().vec(), kept.back().data_ptr());
  };
  VisitTensors(tensors, [&](const std::string& name, torch::Tensor tensor) {
    add(name, DType::kF32, tensor);
  });
  add("rng", DType::kU8, RandomState(torch::kCPU));
  if (!tensors.device.is_cpu()) add("rng_device", DType::kU8, RandomState(tensors.device));
  ordered_json record = {
      {"step", progress.step}, {"seconds", progress.seconds}, {"epochs", progress.epochs}};
  const Patience& patience = progress.patience;
  if (std::isfinite(patience.best)) {
    record["patience"] = {patience.best, patience.worse, patience.scale};
  }
  writer.SetMetadata("progress", record.dump());
  writer.SetMetadata("model", linnet::ToJson(tensors.model.spec()));
  writer.Write(path);
}

RunProgress LoadRunState(const std::string& path, const std::string& model_path,
                         int64_t steps_per_epoch, const RunTensors& tensors) {
  torch::NoGradGuard no_grad;
  const SafetensorsFile file = SafetensorsFile::Open(path);
  CheckModel(FromJson(Metadata(file, path, "model"), path), tensors.model.spec(), path, model_path);
  const RunProgress progress =
      ParseProgress(Metadata(file, path, "progress"), path, steps_per_epoch);
  LoadTensors(file, path, tensors);
  tensors.optimizer.set_steps(progress.step);
  LoadRandomState(file, path, "rng", torch::kCPU);
  // The state file of a run on the CPU has no random state for this device.
  if (!tensors.device.is_cpu() && file.Find("rng_device") != nullptr) {
    LoadRandomState(file, path, "rng_device", tensors.device);
  }
  return progress;
}

}  // namespace linnet::train
