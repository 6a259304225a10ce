// Reads and writes .safetensors files, a common format for exchanging weights between frameworks: a
// JSON header, followed by the data of named tensors.
//
//   SafetensorsFile file = SafetensorsFile::Open("models/digits.safetensors");
//   std::span<const float> w = file.Get("predictor.weight").f32();
//
//   SafetensorsWriter writer;
//   writer.SetMetadata("linnet", spec_json);
//   writer.Add("predictor.weight", DType::kF32, {30, 256}, weights);
//   writer.Write("models/digits.safetensors");
//
// Opening validates the whole file, so a Tensor's shape, size and alignment can be trusted.
#ifndef LINNET_IO_SAFETENSORS_H_
#define LINNET_IO_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linnet/base/aligned.h"
#include "linnet/base/function_ref.h"
#include "linnet/io/file.h"

namespace linnet {

enum class DType { kF32, kF16, kBF16, kF64, kI8, kU8, kI16, kI32, kI64, kBool };

// Bytes per element.
size_t DTypeSize(DType dtype);

// The format's own name: "F32", "BF16", "BOOL".
const char* DTypeName(DType dtype);

// "[60, 3]", for messages; truncated if there are many dimensions.
std::string FormatShape(std::span<const int64_t> shape);

// One tensor. It does not own `data`, which is valid as long as its SafetensorsFile or PyTorchFile.
struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;       // row-major; empty for a scalar
  std::span<const std::byte> data;  // numel() elements, aligned to their size
  std::string file;                 // path or label, for messages

  int64_t numel() const;

  // The elements as float, double, int8_t, uint8_t, int16_t, int32_t or int64_t. Throws InputError
  // unless T matches the dtype exactly: nothing is converted.
  template <typename T>
  std::span<const T> values() const;
  std::span<const float> f32() const { return values<float>(); }
  std::span<const int64_t> i64() const { return values<int64_t>(); }
};

class SafetensorsFile {
 public:
  // Maps the file. Throws InputError, naming the path, if it is missing, truncated or malformed.
  static SafetensorsFile Open(const std::string& path);
  // Reads bytes that the caller keeps alive and unchanged; `label` replaces the path in messages.
  static SafetensorsFile FromMemory(std::span<const std::byte> bytes, std::string label);

  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  // nullptr if there is no tensor of that name.
  const Tensor* Find(std::string_view name) const;
  // Throws InputError if there is no tensor of that name.
  const Tensor& Get(std::string_view name) const;

  // In the order of their data in the file.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  SafetensorsFile() = default;
  void Parse(std::span<const std::byte> bytes);

  std::string path_;
  MappedFile file_;
  std::map<std::string, std::string> metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> index in tensors_
  std::vector<AlignedBuffer<std::byte>> realigned_;   // copies of misaligned data
};

class SafetensorsWriter {
 public:
  void SetMetadata(const std::string& key, const std::string& value);

  // Borrows `data` (numel(shape) elements) until Write(). Throws InputError for a repeated name or
  // an invalid shape.
  void Add(const std::string& name, DType dtype, std::span<const int64_t> shape, const void* data);
  void Add(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
           const void* data) {
    Add(name, dtype, std::span(shape.begin(), shape.size()), data);
  }

  // Replaces `path` atomically. AtomicFile describes the errors. The data begins at a multiple of
  // 64 bytes and has no holes. Tensors with larger elements come first, so that each tensor is
  // aligned to its element size; tensors with equal element sizes keep the order of Add().
  void Write(const std::string& path) const;
  // Passes the same bytes to `write`, piece by piece; `label` names the file in errors.
  void Write(const std::string& label, FunctionRef<void(std::span<const std::byte>)> write) const;

 private:
  std::map<std::string, std::string> metadata_;
  std::vector<Tensor> tensors_;
  std::set<std::string> names_;
};

}  // namespace linnet

#endif  // LINNET_IO_SAFETENSORS_H_
