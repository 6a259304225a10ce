#include "linnet/model/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "linnet/error.h"
#include "linnet/io/json.h"
#include "linnet/model/reference.h"

namespace linnet {

namespace fs = std::filesystem;

namespace {

constexpr const char* kRunModel = "model.safetensors";  // the name that linnet train gives

constexpr const char* kImport = "; convert it with 'linnet import'";

// Whether the file is a zip archive, as torch.save writes, or a pickle, as it wrote before PyTorch
// 1.6.
bool IsPyTorchs(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.starts_with("PK\3\4") || text.starts_with("\x80\x02\x8a\x0a");
}

// A BF16 tensor or an I8 matrix, converted to floats. An I8 matrix needs a scale for each row, and
// may have a factor for each column (precision.h). Scales and factors are F32 tensors of the file.
AlignedBuffer<float> Widened(const linnet::Tensor& tensor, const SafetensorsFile& file) {
  AlignedBuffer<float> wide(static_cast<size_t>(tensor.numel()));
  if (tensor.dtype == DType::kBF16) {
    for (size_t i = 0; i < wide.size(); ++i) {
      uint16_t upper;
      std::memcpy(&upper, tensor.data.data() + i * sizeof(upper), sizeof(upper));
      wide[i] = std::bit_cast<float>(uint32_t{upper} << 16);
    }
    return wide;
  }
  // The values of tensor `name` [size], which holds scales or factors; empty if the file lacks it.
  const auto beside = [&](const std::string& name, int64_t size) {
    const linnet::Tensor* found = file.Find(name);
    if (found == nullptr) return std::span<const float>();
    if (found->dtype == DType::kF32 && found->shape == std::vector{size}) return found->f32();
    throw InputError(file.path(), ": tensor ", Quote(name), " is ", DTypeName(found->dtype), " ",
                     FormatShape(found->shape), ", but ", Quote(tensor.name), " needs F32 [", size,
                     "]");
  };
  const std::span<const int8_t> values = tensor.values<int8_t>();
  const auto scale = beside(ScaleName(tensor.name), tensor.shape[0]);
  const auto factor = beside(FactorName(tensor.name), tensor.shape[1]);
  if (scale.empty()) {
    throw InputError(file.path(), ": tensor ", Quote(tensor.name), " is I8, but its scales, ",
                     Quote(ScaleName(tensor.name)), ", are missing");
  }
  const size_t columns = static_cast<size_t>(tensor.shape[1]);
  for (size_t i = 0; i < wide.size(); ++i) {
    wide[i] = static_cast<float>(values[i]) * scale[i / columns];
    if (!factor.empty()) wide[i] *= factor[i % columns];
  }
  return wide;
}

}  // namespace

std::string ModelFile(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  const fs::path file = fs::path(path) / kRunModel;
  if (!fs::exists(file, error)) {
    throw InputError(path, ": a folder without ", kRunModel,
                     "; name a model file, or the folder of a training run");
  }
  return file;
}

Checkpoint Checkpoint::Open(const std::string& given) {
  const std::string path = ModelFile(given);
  if (IsPyTorchs(MappedFile(path).bytes())) {
    throw InputError(path, ": a PyTorch file, not a linnet model", kImport);
  }
  return Checkpoint(SafetensorsFile::Open(path));
}

std::string ModelName(const std::string& path) {
  const fs::path whole = fs::path(path).lexically_normal();
  if (whole.filename() == kRunModel && whole.has_parent_path()) {
    return whole.parent_path().filename();
  }
  const bool folder = !whole.has_filename() || !whole.has_extension();
  return folder ? (whole.has_filename() ? whole : whole.parent_path()).filename() : whole.stem();
}

Checkpoint Checkpoint::FromMemory(std::span<const std::byte> bytes, const std::string& label) {
  return Checkpoint(SafetensorsFile::FromMemory(bytes, label));
}

bool HasComputedPositions(const ModelSpec& spec, const std::string& tensor_name) {
  constexpr int64_t kMost = int64_t{1} << 26;  // so that a small file cannot demand all memory
  return tensor_name == "pos_embedding.pe" &&
         int64_t{spec.input.max_length} * spec.PositionDims() <= kMost;
}

Checkpoint::Checkpoint(SafetensorsFile file) : file_(std::move(file)) {
  const auto spec = file_.metadata().find("linnet");
  if (spec == file_.metadata().end()) {
    // Whether the file holds a model of fast-transformers, which linnet import reads.
    const bool reference =
        std::any_of(file_.tensors().begin(), file_.tensors().end(), [](const linnet::Tensor& t) {
          return ReferenceName(t.name).starts_with("transformer.layers.0.");
        });
    throw InputError(path(), ": not a linnet model (its metadata has no 'linnet' entry)",
                     reference ? kImport : "");
  }
  spec_ = FromJson(spec->second, path());
  const auto training = file_.metadata().find("training");
  if (training != file_.metadata().end()) training_ = training->second;
  for (const TensorInfo& info : TensorTable(spec_)) {
    const linnet::Tensor* tensor = file_.Find(info.name);
    // A file may leave out its position table, which is computed from the spec.
    if (tensor == nullptr && HasComputedPositions(spec_, info.name)) {
      const std::vector<float> table = PositionTable(spec_);
      const auto at = widened_.emplace(info.name, AlignedBuffer<float>(table.size())).first;
      std::copy(table.begin(), table.end(), at->second.begin());
      continue;
    }
    if (tensor == nullptr) {
      throw InputError(path(), ": the model description needs the tensor '", info.name,
                       "', which the file lacks");
    }
    const bool known = tensor->dtype == DType::kF32 || tensor->dtype == DType::kBF16 ||
                       (tensor->dtype == DType::kI8 && IsMatrix(info.name));
    if (tensor->shape != info.shape || !known) {
      throw InputError(path(), ": tensor '", info.name, "' is ", DTypeName(tensor->dtype), " ",
                       FormatShape(tensor->shape), ", but the model description needs F32 ",
                       FormatShape(info.shape));
    }
    if (tensor->dtype == DType::kF32) continue;
    widened_.emplace(info.name, Widened(*tensor, file_));
    if (IsMatrix(info.name)) {
      precision_ =
          std::max(precision_, tensor->dtype == DType::kI8 ? Precision::kInt8 : Precision::kBf16);
    }
  }
}

bool Checkpoint::Has(const std::string& name) const { return file_.Find(name) != nullptr; }

std::span<const float> Checkpoint::Tensor(const std::string& name) const {
  const auto wide = widened_.find(name);
  if (wide == widened_.end()) return file_.Get(name).f32();
  return {wide->second.data(), wide->second.size()};
}

void CheckFinite(std::span<const float> values, const std::string& path,
                 const std::string& tensor_name) {
  if (std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) return;
  throw InputError(path, ": tensor ", Quote(tensor_name),
                   " holds NaN, infinity or values beyond the range of a float; the model's "
                   "training diverged, or the file is damaged");
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
