// Reads the subset of Python's pickle format that torch.save uses for a state_dict, as plain data.
// Never executes Python code: the reader knows only the classes and functions that build a
// state_dict's tensors and dicts, and refuses a pickle that names any other class or function.
//
//   Pickle pickle(text, "model.pth");
//   if (const std::vector<PickleRef>* list = pickle.DictOf(pickle.root())) ...  // key, value, ...
//
// A pickle is limited to 4 MiB. Reading takes at most about 100 bytes of memory per byte of the
// pickle. Values refer to each other by number, so reading needs no recursion. The references in a
// hostile pickle may be circular: a caller that follows them must stop at some depth.
#ifndef LINNET_IO_PICKLE_H_
#define LINNET_IO_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linnet/io/safetensors.h"

namespace linnet {

using PickleRef = uint32_t;  // the number of a value

struct PickledStorage {
  DType dtype = DType::kF32;
  std::string_view key;  // names the record of the .pth archive that holds the elements
  int64_t numel = 0;
};

// A strided part of a storage. The reader has checked that all elements lie within the storage.
struct PickledTensor {
  uint32_t storage = 0;  // index in Pickle::storages()
  int64_t offset = 0;    // in elements, like the strides
  std::vector<int64_t> shape, stride;
};

class Pickle {
 public:
  // Reads `text`, which must outlive the Pickle. Throws InputError, with a message that begins with
  // `where`, if `text` is malformed, too large or outside of the subset.
  Pickle(std::string_view text, const std::string& where);

  PickleRef root() const { return root_; }
  // DictOf() returns a dict's keys and values in turn, StringOf() a string, TensorOf() a tensor's
  // index in tensors(). They return nullptr if the value is of another kind.
  const std::vector<PickleRef>* DictOf(PickleRef value) const;
  const std::string_view* StringOf(PickleRef value) const;
  const uint32_t* TensorOf(PickleRef value) const;
  // "a dict", "a tensor", for messages.
  const char* KindOf(PickleRef value) const;

  const std::vector<PickledStorage>& storages() const { return storages_; }
  const std::vector<PickledTensor>& tensors() const { return tensors_; }

 private:
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kTuple,
    kList,
    kDict,
    kGlobal,
    kStorageType,
    kStorage,
    kTensor,
  };
  struct Value {
    Kind kind = Kind::kNone;
    // The index of a list or dict in containers_, of a string, storage or tensor in its array, or
    // of a tuple's first element in pool_.
    uint32_t index = 0;
    int64_t integer = 0;  // an int, a bool, a tuple's length, a Global or a DType
  };
  // The classes and functions, other than storage types, that a pickle may name.
  enum class Global : uint8_t { kOrderedDict, kRebuildTensor, kRebuildParameter };
  class Machine;

  std::vector<Value> values_;
  std::vector<std::string_view> strings_;
  std::vector<std::vector<PickleRef>> containers_;  // elements of lists and dicts
  std::vector<PickleRef> pool_;                     // elements of tuples
  std::vector<PickledStorage> storages_;
  std::vector<PickledTensor> tensors_;
  PickleRef root_ = 0;
};

}  // namespace linnet

#endif  // LINNET_IO_PICKLE_H_
