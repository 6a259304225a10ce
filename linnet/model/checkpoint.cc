#include "linnet/model/checkpoint.h"

#include "linnet/base/error.h"

namespace linnet {
Checkpoint Checkpoint::Open(const std::string& path) {
  return Checkpoint(SafetensorsFile::Open(path));
}

Checkpoint Checkpoint::FromMemory(std::span<const std::byte> bytes, const std::string& label) {
  return Checkpoint(SafetensorsFile::FromMemory(bytes, label));
}

Checkpoint::Checkpoint(SafetensorsFile file) : file_(std::move(file)) {
  const auto spec = file_.metadata().find("linnet");
  if (spec == file_.metadata().end()) {
    throw InputError(path(), ": not a linnet model (its metadata has no 'linnet' entry)");
  }
  spec_ = FromJson(spec->second, path());
  const auto training = file_.metadata().find("training");
  if (training != file_.metadata().end()) training_ = training->second;
  for (const TensorInfo& info : TensorTable(spec_)) {
    const linnet::Tensor* tensor = file_.Find(info.name);
    if (tensor == nullptr) {
      throw InputError(path(), ": its description needs the tensor '", info.name,
                       "', which the file lacks");
    }
    if (tensor->shape != info.shape || tensor->dtype != DType::kF32) {
      throw InputError(path(), ": tensor '", info.name, "' is ", DTypeName(tensor->dtype), " ",
                       FormatShape(tensor->shape), ", but its description needs F32 ",
                       FormatShape(info.shape));
    }
  }
}

void WriteCheckpoint(const std::string& path, const ModelSpec& spec, const std::string& training,
                     FunctionRef<std::span<const float>(const TensorInfo&)> tensor) {
  Validate(spec);
  SafetensorsWriter writer;
  writer.SetMetadata("linnet", ToJson(spec));
  if (!training.empty()) writer.SetMetadata("training", training);
  for (const TensorInfo& info : TensorTable(spec)) {
    const std::span<const float> data = tensor(info);
    int64_t size = 1;
    for (int64_t n : info.shape) size *= n;
    if (static_cast<int64_t>(data.size()) != size) {
      throw InputError(path, ": tensor '", info.name, "' has ", data.size(), " values, not ", size);
    }
    writer.Add(info.name, DType::kF32, info.shape, data.data());
  }
  writer.Write(path);
}

}  // namespace linnet
