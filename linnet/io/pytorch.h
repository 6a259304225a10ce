// Reads and writes files in the format of torch.save(model.state_dict(), FILE) since PyTorch 1.6:
// a zip archive with a pickle and one record for each storage. No Python runs, and nothing that a
// pickle names is executed (pickle.h).
//
//   PyTorchFile file = PyTorchFile::Open("model.pth");
//   std::span<const float> w = file.Get("predictor.weight").f32();
//
//   PyTorchWriter writer;
//   writer.Add("predictor.weight", DType::kF32, {30, 256}, weights);
//   writer.Write("model.pth");                 // torch.load("model.pth", weights_only=True)
#ifndef LINNET_IO_PYTORCH_H_
#define LINNET_IO_PYTORCH_H_

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
#include "linnet/io/safetensors.h"

namespace linnet {

class PyTorchFile {
 public:
  // Reads the file's state_dict: a dict whose keys are all strings and whose values are all
  // tensors. It may be the file's outermost dict or lie within other dicts
  // ({"model_state": {...}, "epoch": 3}). If the file has several such dicts, `key` selects one: it
  // consists of the keys that lead to the dict, outermost first, joined by dots. Throws InputError,
  // naming the path, if the file is missing, damaged or in another format, if it has no state_dict,
  // if it has several and `key` is empty, or if it holds objects of classes that a state_dict does
  // not need.
  static PyTorchFile Open(const std::string& path, const std::string& key = "");
  // Reads bytes, which need not outlive the call; `label` replaces the path in messages.
  static PyTorchFile FromMemory(std::span<const std::byte> bytes, std::string label,
                                const std::string& key = "");

  PyTorchFile(PyTorchFile&&) = default;
  PyTorchFile& operator=(PyTorchFile&&) = default;

  // nullptr if there is no tensor of that name.
  const Tensor* Find(std::string_view name) const;
  // Throws InputError if there is no tensor of that name.
  const Tensor& Get(std::string_view name) const;

  // Row-major, in the state_dict's order. Tensors that share a storage may share their data.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }
  // Key at which the state_dict was found; "" for the outermost dict.
  const std::string& key() const { return key_; }

 private:
  PyTorchFile() = default;
  void Parse(std::span<const std::byte> bytes, const std::string& key);

  std::string path_, key_;
  std::vector<AlignedBuffer<std::byte>> data_;  // storages, and copies of non-contiguous tensors
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> index in tensors_
};

class PyTorchWriter {
 public:
  // Borrows `data` (numel(shape) elements) until Write(). Throws InputError for a repeated name or
  // an invalid shape.
  void Add(const std::string& name, DType dtype, std::span<const int64_t> shape, const void* data);
  void Add(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
           const void* data) {
    Add(name, dtype, std::span(shape.begin(), shape.size()), data);
  }

  // Builds the file in memory, then replaces `path` atomically. AtomicFile describes the errors.
  // The same tensors give the same file. Records are uncompressed and aligned to 64 bytes, as
  // torch.load(mmap=True) prefers.
  void Write(const std::string& path) const;

 private:
  std::vector<Tensor> tensors_;
  std::set<std::string> names_;
};

}  // namespace linnet

#endif  // LINNET_IO_PYTORCH_H_
