#include "linnet/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr size_t kLengthBytes = 8;               // a file begins with its header's length
constexpr uint64_t kMaxHeaderBytes = 100000000;  // the format's own limit
constexpr int kMaxDepth = 3;                     // nesting: header, tensor, shape
constexpr size_t kMaxRank = 64;                  // PyTorch's limit
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kFetchAgain = "; copy or download it again";

struct DTypeInfo {
  DType dtype;
  const char* name;
  size_t size;
};
constexpr DTypeInfo kDTypes[] = {
    {DType::kF32, "F32", 4},   {DType::kF16, "F16", 2}, {DType::kBF16, "BF16", 2},
    {DType::kF64, "F64", 8},   {DType::kI8, "I8", 1},   {DType::kU8, "U8", 1},
    {DType::kI16, "I16", 2},   {DType::kI32, "I32", 4}, {DType::kI64, "I64", 8},
    {DType::kBool, "BOOL", 1},
};

const DTypeInfo& Info(DType dtype) {
  return *std::find_if(std::begin(kDTypes), std::end(kDTypes),
                       [&](const DTypeInfo& info) { return info.dtype == dtype; });
}

template <typename T>
constexpr DType kDTypeOf = DType::kF32;
template <>
constexpr DType kDTypeOf<double> = DType::kF64;
template <>
constexpr DType kDTypeOf<int8_t> = DType::kI8;
template <>
constexpr DType kDTypeOf<uint8_t> = DType::kU8;
template <>
constexpr DType kDTypeOf<int16_t> = DType::kI16;
template <>
constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
constexpr DType kDTypeOf<int64_t> = DType::kI64;

std::string Bytes(uint64_t n) { return FormatBytes(static_cast<double>(n)); }

// The size of a tensor in bytes, or nothing if a dimension is negative or the product overflows.
std::optional<uint64_t> TensorBytes(std::span<const int64_t> shape, DType dtype) {
  int64_t bytes = static_cast<int64_t>(DTypeSize(dtype));
  for (int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

json ParseHeader(const std::string& path, std::string_view text) {
  std::string fault;
  json header = ParseJson(text, kMaxDepth, fault);
  if (!fault.empty()) {
    throw InputError(path, ": damaged, or not a safetensors file: its header ", fault, kFetchAgain);
  }
  if (!header.is_object()) {
    throw InputError(path, ": not a safetensors file: its header is not a JSON object");
  }
  return header;
}

// A tensor as described by the header, without its data.
struct Entry {
  Tensor tensor;
  uint64_t begin = 0, end = 0;  // of its data, relative to the end of the header
};

Entry ParseEntry(const std::string& path, const std::string& name, const json& value) {
  const auto malformed = [&](const auto&... what) {
    return InputError(path, ": malformed: tensor ", Quote(name), " ", what..., kFetchAgain);
  };
  // A missing field reads as null, which fails the type check.
  const auto field = [&](const char* key) {
    return value.is_object() && value.contains(key) ? value[key] : json();
  };
  Entry entry;
  Tensor& tensor = entry.tensor;
  tensor.name = name;
  tensor.file = path;

  const json dtype = field("dtype");
  if (!dtype.is_string()) throw malformed("has no dtype");
  const auto& dtype_name = dtype.get_ref<const std::string&>();
  const auto* info = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                  [&](const DTypeInfo& i) { return dtype_name == i.name; });
  if (info == std::end(kDTypes)) {
    throw InputError(path, ": tensor ", Quote(name), " has the dtype ", Quote(dtype_name),
                     ", which linnet does not know; convert it to F32 first");
  }
  tensor.dtype = info->dtype;

  const json shape = field("shape");
  if (!shape.is_array()) throw malformed("has no shape");
  if (shape.size() > kMaxRank) throw malformed("has ", shape.size(), " dimensions");
  for (const json& dimension : shape) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > INT64_MAX) {
      throw malformed("has a shape whose dimensions are not whole numbers");
    }
    tensor.shape.push_back(dimension.get<int64_t>());
  }

  const json offsets = field("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    throw malformed("has no data_offsets [begin, end]");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  const std::optional<uint64_t> bytes = TensorBytes(tensor.shape, tensor.dtype);
  if (!bytes || entry.end < entry.begin || *bytes != entry.end - entry.begin) {
    throw malformed("has a shape and data_offsets that disagree");
  }
  return entry;
}

std::map<std::string, std::string> ParseMetadata(const std::string& path, const json& value) {
  std::map<std::string, std::string> metadata;
  bool strings_only = value.is_object();
  if (strings_only) {
    for (const auto& [key, text] : value.items()) {
      strings_only = strings_only && text.is_string();
      if (strings_only) metadata[key] = text.get<std::string>();
    }
  }
  if (!strings_only) {
    throw InputError(path, ": malformed: its ", kMetadataKey, " is not a map of strings",
                     kFetchAgain);
  }
  return metadata;
}

}  // namespace

size_t DTypeSize(DType dtype) { return Info(dtype).size; }

const char* DTypeName(DType dtype) { return Info(dtype).name; }

std::string FormatShape(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < std::min(shape.size(), kMaxRank); ++i) {
    text += StrCat(i > 0 ? ", " : "", shape[i]);
  }
  return text + (shape.size() > kMaxRank ? StrCat(", ... ", shape.size(), " dimensions]") : "]");
}

int64_t Tensor::numel() const { return static_cast<int64_t>(data.size() / DTypeSize(dtype)); }

template <typename T>
std::span<const T> Tensor::values() const {
  if (dtype != kDTypeOf<T>) {
    throw InputError(file, ": tensor ", Quote(name), " is ", DTypeName(dtype), " where ",
                     DTypeName(kDTypeOf<T>), " is needed; convert it first");
  }
  return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
}
template std::span<const float> Tensor::values() const;
template std::span<const double> Tensor::values() const;
template std::span<const int8_t> Tensor::values() const;
template std::span<const uint8_t> Tensor::values() const;
template std::span<const int16_t> Tensor::values() const;
template std::span<const int32_t> Tensor::values() const;
template std::span<const int64_t> Tensor::values() const;

SafetensorsFile SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.file_ = MappedFile(path);
  file.Parse(file.file_.bytes());
  return file;
}

SafetensorsFile SafetensorsFile::FromMemory(std::span<const std::byte> bytes, std::string label) {
  SafetensorsFile file;
  file.path_ = std::move(label);
  file.Parse(bytes);
  return file;
}

void SafetensorsFile::Parse(std::span<const std::byte> bytes) {
  uint64_t header_bytes = 0;
  if (bytes.size() < kLengthBytes) {
    throw InputError(path_, ": truncated, or not a safetensors file: it holds only ",
                     Bytes(bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) throw InputError(path_, ": not a safetensors file");
  if (header_bytes > bytes.size() - kLengthBytes) {
    throw InputError(path_, ": truncated, or not a safetensors file: it promises a header of ",
                     Bytes(header_bytes), " but holds ", Bytes(bytes.size()), kFetchAgain);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              header_bytes);
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);

  std::vector<Entry> entries;
  const json header = ParseHeader(path_, text);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      metadata_ = ParseMetadata(path_, value);
    } else {
      entries.push_back(ParseEntry(path_, name, value));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  // The format requires that tensors follow one another without overlap or holes.
  uint64_t promised = 0;  // end of the data of the tensors so far
  for (const Entry& entry : entries) {
    if (entry.begin != promised) {
      throw InputError(path_, ": malformed: the data of tensor ", Quote(entry.tensor.name),
                       entry.begin < promised ? " overlaps another tensor's"
                                              : " does not follow the tensor before it",
                       kFetchAgain);
    }
    promised = entry.end;
  }
  if (promised > data.size()) {
    throw InputError(path_, ": truncated: its header promises ", Bytes(promised),
                     " of tensors but the file holds ", Bytes(data.size()), kFetchAgain);
  }
  if (promised < data.size()) {
    throw InputError(path_, ": damaged: ", Bytes(data.size() - promised), " follow the last tensor",
                     kFetchAgain);
  }

  for (Entry& entry : entries) {
    Tensor& tensor = entry.tensor;
    tensor.data = data.subspan(entry.begin, entry.end - entry.begin);
    if (reinterpret_cast<uintptr_t>(tensor.data.data()) % DTypeSize(tensor.dtype) != 0) {
      AlignedBuffer<std::byte>& copy = realigned_.emplace_back(tensor.data.size());
      std::copy(tensor.data.begin(), tensor.data.end(), copy.begin());
      tensor.data = {copy.data(), copy.size()};
    }
    index_[tensor.name] = tensors_.size();
    tensors_.push_back(std::move(tensor));
  }
}

const Tensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const Tensor& SafetensorsFile::Get(std::string_view name) const {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) {
    throw InputError(path_, ": no tensor ", Quote(name), " among its ", tensors_.size(),
                     " tensors; is this a file of another kind?");
  }
  return *tensor;
}

void SafetensorsWriter::SetMetadata(const std::string& key, const std::string& value) {
  metadata_[key] = value;
}

void SafetensorsWriter::Add(const std::string& name, DType dtype, std::span<const int64_t> shape,
                            const void* data) {
  if (name == kMetadataKey) {
    throw InputError("a tensor cannot be named ", Quote(name), ": the format reserves this name");
  }
  if (!names_.insert(name).second) {
    throw InputError("a file cannot hold two tensors named ", Quote(name));
  }
  const std::optional<uint64_t> bytes = TensorBytes(shape, dtype);
  if (!bytes) {
    throw InputError("tensor ", Quote(name), " cannot have the shape ", FormatShape(shape));
  }
  tensors_.push_back({name,
                      dtype,
                      {shape.begin(), shape.end()},
                      {static_cast<const std::byte*>(data), static_cast<size_t>(*bytes)},
                      ""});
}

void SafetensorsWriter::Write(const std::string& path) const {
  std::optional<AtomicFile> file;  // opened at the first piece: the names are then valid
  Write(path, [&](std::span<const std::byte> piece) {
    if (!file) file.emplace(path);
    file->Write(piece.data(), piece.size());
  });
  file->Commit();
}

void SafetensorsWriter::Write(const std::string& label,
                              FunctionRef<void(std::span<const std::byte>)> write) const {
  std::vector<const Tensor*> order;
  for (const Tensor& tensor : tensors_) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    return DTypeSize(a->dtype) > DTypeSize(b->dtype);
  });

  // The header lists tensors in the order of their data, as other writers do. It is built as text,
  // because an ordered_json is slow for many names.
  std::string text;
  const auto append = [&](const std::string& name, const json& value) {
    text += (text.empty() ? "{" : ",") + json(name).dump() + ":" + value.dump();
  };
  try {
    if (!metadata_.empty()) append(kMetadataKey, metadata_);
    uint64_t begin = 0;
    for (const Tensor* tensor : order) {
      const uint64_t end = begin + tensor->data.size();
      append(tensor->name, {{"dtype", DTypeName(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {begin, end}}});
      begin = end;
    }
    text += text.empty() ? "{}" : "}";
  } catch (const json::exception&) {
    throw InputError(label, ": names and metadata of tensors must be UTF-8");
  }
  text.resize(RoundUp(kLengthBytes + text.size(), kCacheLine) - kLengthBytes, ' ');
  const uint64_t header_bytes = text.size();

  write(std::as_bytes(std::span(&header_bytes, 1)).first(kLengthBytes));
  write(std::as_bytes(std::span(text)));
  for (const Tensor* tensor : order) write(tensor->data);
}

}  // namespace linnet
