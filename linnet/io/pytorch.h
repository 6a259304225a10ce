// Reading and writing PyTorch's own files: what torch.save(model.state_dict(), FILE) has written
// since PyTorch 1.6, a zip archive with a pickle and a record for each storage. No Python runs, and
// nothing that a pickle names is executed (pickle.h).
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
  // Reads the state_dict: the one dict of the file that holds tensors and nothing else under names,
  // at the top or within other dicts ({"model_state": {...}, "epoch": 3}). Where there are several,
  // `key` says which: its keys from the outside in, joined by dots. Throws InputError, naming the
  // path, when the file is missing, damaged, of another format, or asks for more than tensors.
  static PyTorchFile Open(const std::string& path, const std::string& key = "");
  // Reads bytes in memory, which may go afterwards; `label` stands for the path in messages.
  static PyTorchFile FromMemory(std::span<const std::byte> bytes, std::string label,
                                const std::string& key = "");

  PyTorchFile(PyTorchFile&&) = default;
  PyTorchFile& operator=(PyTorchFile&&) = default;

  // nullptr when there is none of that name.
  const Tensor* Find(std::string_view name) const;
  // Throws InputError when there is none of that name.
  const Tensor& Get(std::string_view name) const;

  // Row-major, in the state_dict's order. Tensors that share a storage may share their data.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }
  // Where the state_dict was found: "" at the top.
  const std::string& key() const { return key_; }

 private:
  PyTorchFile() = default;
  void Parse(std::span<const std::byte> bytes, const std::string& key);

  std::string path_, key_;
  std::vector<AlignedBuffer<std::byte>> data_;  // storages, and copies where strides leave holes
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> position in tensors_
};

class PyTorchWriter {
 public:
  // Borrows `data`, numel(shape) elements, until Write(). Throws InputError for a name given twice.
  void Add(const std::string& name, DType dtype, std::span<const int64_t> shape, const void* data);
  void Add(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
           const void* data) {
    Add(name, dtype, std::span(shape.begin(), shape.size()), data);
  }

  // Replaces `path` in one step (see AtomicFile, also for its errors), by way of a copy in memory.
  // The same tensors make the same bytes. Records are stored uncompressed, each beginning at a
  // multiple of 64 bytes, as torch.load(mmap=True) likes them.
  void Write(const std::string& path) const;

 private:
  std::vector<Tensor> tensors_;
  std::set<std::string> names_;
};

}  // namespace linnet

#endif  // LINNET_IO_PYTORCH_H_
