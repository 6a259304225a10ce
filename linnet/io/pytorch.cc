#include "linnet/io/pytorch.h"

#include <zip.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"
#include "linnet/io/pickle.h"

namespace linnet {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr const char* kFetchAgain = "; copy or download it again";

// Limits of the search for a state_dict: depth of nested dicts, length of keys, number of dicts.
constexpr size_t kMaxDepth = 4, kMaxKey = 200, kMaxDicts = 10000;

std::string Bytes(uint64_t n) { return FormatBytes(static_cast<double>(n)); }

struct ZipError {
  ZipError() { zip_error_init(&error); }
  ~ZipError() { zip_error_fini(&error); }
  std::string text() { return zip_error_strerror(&error); }
  zip_error_t error;
};

// ---- Reading

uint64_t LittleEndian(std::span<const std::byte> bytes, size_t at, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= std::to_integer<uint64_t>(bytes[at + i]) << (8 * i);
  }
  return value;
}

// Whether a zip64 end record claims more entries than the file has room for: libzip would allocate
// memory for all of them. Checks every place where libzip may find that record.
bool PromisesTooMuch(std::span<const std::byte> bytes) {
  // Bytes of the end record, its longest comment, the zip64 locator, the zip64 end record and a
  // directory entry.
  constexpr size_t kEnd = 22, kComment = 65535, kLocator = 20, kEnd64 = 56, kEntry = 46;
  const size_t size = bytes.size();
  if (size < kEnd64 + kLocator + kEnd) return false;
  const size_t first = size > kEnd + kComment + kLocator ? size - kEnd - kComment - kLocator : 0;
  for (size_t at = first; at + kLocator <= size; ++at) {
    if (std::memcmp(bytes.data() + at, "PK\6\7", 4) != 0) continue;
    const uint64_t end64 = LittleEndian(bytes, at + 8, 8);
    if (end64 > size - kEnd64) continue;  // libzip refuses such a record
    if (LittleEndian(bytes, end64 + 32, 8) > size / kEntry) return true;
  }
  return false;
}

class ZipReader {
 public:
  // The bytes must outlive the reader.
  ZipReader(std::span<const std::byte> bytes, const std::string& path)
      : path_(path), file_bytes_(bytes.size()) {
    ZipError error;
    if (PromisesTooMuch(bytes)) {
      throw InputError(path_, ": damaged: its directory is larger than the file", kFetchAgain);
    }
    zip_source_t* source =
        zip_source_buffer_create(bytes.data(), bytes.size(), /*freep=*/0, &error.error);
    if (source == nullptr) throw std::bad_alloc();
    zip_.reset(zip_open_from_source(source, ZIP_RDONLY, &error.error));
    if (zip_ == nullptr) {
      zip_source_free(source);
      if (zip_error_code_zip(&error.error) == ZIP_ER_MEMORY) throw std::bad_alloc();
      throw InputError(path_, ": truncated or damaged: no complete zip archive (", error.text(),
                       ")", kFetchAgain);
    }
    // PyTorch looks up all records in the folder of the first entry.
    const char* first = zip_get_name(zip_.get(), 0, ZIP_FL_ENC_RAW);
    const std::string name = first == nullptr ? "" : first;
    folder_ = name.substr(0, name.find('/') + 1);
  }

  bool Has(const std::string& name) const { return Locate(name) >= 0; }

  // Reads a whole record. Throws InputError if this record and all earlier ones are together larger
  // than the file: records then overlap, and a small file could take a lot of memory.
  AlignedBuffer<std::byte> Read(const std::string& name) {
    const zip_int64_t index = Locate(name);
    if (index < 0) {
      throw InputError(path_, ": damaged: it has no record ", Quote(name), kFetchAgain);
    }
    zip_stat_t info;
    constexpr zip_uint64_t kNeeded =
        ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(zip_.get(), static_cast<zip_uint64_t>(index), 0, &info) != 0 ||
        (info.valid & kNeeded) != kNeeded) {
      throw Damaged(name, "its entry is incomplete");
    }
    if (info.comp_method != ZIP_CM_STORE || info.encryption_method != ZIP_EM_NONE) {
      throw InputError(path_, ": record ", Quote(name),
                       " is compressed or encrypted, which torch.save never does; load the file "
                       "in Python and save it again");
    }
    if (info.size != info.comp_size || info.size > file_bytes_ - read_) {
      throw Damaged(name, "its size is wrong");
    }
    read_ += info.size;
    const std::unique_ptr<zip_file_t, int (*)(zip_file_t*)> file(
        zip_fopen_index(zip_.get(), static_cast<zip_uint64_t>(index), 0), zip_fclose);
    if (file == nullptr) throw Damaged(name, zip_strerror(zip_.get()));
    AlignedBuffer<std::byte> data(info.size);
    for (size_t done = 0; done < data.size();) {
      const zip_int64_t n = zip_fread(file.get(), data.data() + done, data.size() - done);
      if (n <= 0) throw Damaged(name, n < 0 ? zip_file_strerror(file.get()) : "it ends early");
      done += static_cast<size_t>(n);
    }
    // libzip verifies the checksum only when a read reaches the end of the record.
    char past = 0;
    if (zip_fread(file.get(), &past, 1) != 0) throw Damaged(name, zip_file_strerror(file.get()));
    return data;
  }

 private:
  zip_int64_t Locate(const std::string& name) const {
    // libzip would cut the name off at its first NUL byte and could find another record.
    if (name.find('\0') != std::string::npos) return -1;
    return zip_name_locate(zip_.get(), (folder_ + name).c_str(), ZIP_FL_ENC_RAW);
  }
  InputError Damaged(const std::string& name, const std::string& why) const {
    return InputError(path_, ": damaged: record ", Quote(name), " cannot be read (", why, ")",
                      kFetchAgain);
  }

  const std::string& path_;
  std::unique_ptr<zip_t, decltype(&zip_discard)> zip_{nullptr, zip_discard};
  std::string folder_;
  uint64_t file_bytes_, read_ = 0;  // read_: total size of the records read so far
};

// The error for a file that is not a zip archive.
InputError NoZip(std::span<const std::byte> bytes, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // torch.save's older formats: a pickle that begins with a magic number, and the still older tar.
  const bool legacy = text.substr(0, 14).find("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20") == 2 ||
                      (text.size() > 262 && text.substr(257, 5) == "ustar");
  if (legacy) {
    return InputError(path,
                      ": written in the format of PyTorch before 1.6; in Python, "
                      "torch.save(torch.load(FILE, map_location='cpu'), NEW) writes the current "
                      "format");
  }
  return InputError(path,
                    ": truncated, or not written by torch.save: no zip archive at the start of the "
                    "file, whose size is ",
                    Bytes(bytes.size()));
}

// Whether the tensor, which must not be empty, is row-major without holes, so that its data is one
// range of the storage.
bool IsContiguous(const PickledTensor& tensor) {
  int64_t expected = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] == 1) continue;
    if (tensor.stride[i] != expected) return false;
    expected *= tensor.shape[i];  // no overflow: CheckExtent() in pickle.cc has checked the product
  }
  return true;
}

// The number of elements. No overflow: CheckExtent() in pickle.cc has checked the product of every
// tensor that is not empty.
uint64_t NumElements(const PickledTensor& tensor) {
  uint64_t numel = 1;
  for (int64_t n : tensor.shape) {
    if (n == 0) return 0;
    numel *= static_cast<uint64_t>(n);
  }
  return numel;
}

// Copies the elements from a storage to `to` in row-major order. `element`: bytes of an element.
void CopyStrided(const PickledTensor& tensor, size_t element, const std::byte* from, std::byte* to,
                 uint64_t numel) {
  const size_t rank = tensor.shape.size();
  std::vector<int64_t> place(rank);  // the current element's index along each axis
  int64_t at = tensor.offset;        // its index in the storage
  for (uint64_t i = 0; i < numel; ++i) {
    std::memcpy(to + i * element, from + static_cast<size_t>(at) * element, element);
    for (size_t d = rank; d-- > 0;) {
      if (++place[d] < tensor.shape[d]) {
        at += tensor.stride[d];
        break;
      }
      // No overflow: CheckExtent() has checked this product. (An axis of size 1 may have any
      // stride, but its product is 0.)
      at -= tensor.stride[d] * (tensor.shape[d] - 1);
      place[d] = 0;
    }
  }
}

// A dict, and the key (`name`) under which its parent holds it. A hostile file may have many dicts
// with long keys, so a Candidate holds no path: Search::KeyOf() builds it on demand.
struct Candidate {
  PickleRef dict = 0;
  size_t depth = 0, parent = 0;  // parent: index in Search::dicts
  std::string_view name;
};

struct Search {
  std::vector<Candidate> dicts;
  std::vector<size_t> found;  // indices of the dicts whose values are all tensors
  std::string beside;  // for messages: name of a dict that holds other values beside its tensors

  // The path of keys joined by dots; "" for the outermost dict.
  std::string KeyOf(size_t index) const {
    const Candidate& candidate = dicts[index];
    if (candidate.depth == 0) return "";
    const std::string above = KeyOf(candidate.parent);
    return StrCat(above, candidate.depth > 1 ? "." : "", candidate.name);
  }
  // Whether `dict` is the dict at `index` or one that encloses it. This check ends the search in a
  // hostile file whose dicts are circular.
  bool IsAbove(PickleRef dict, size_t index) const {
    while (dicts[index].dict != dict && dicts[index].depth > 0) index = dicts[index].parent;
    return dicts[index].dict == dict;
  }
  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    for (size_t index : found) keys.push_back(KeyOf(index));
    return keys;
  }
};

// A summary of a dict's entries with string keys: the number of tensors, and the dicts (only those
// with keys of at most kMaxKey bytes).
struct Entries {
  size_t tensors = 0;
  std::vector<std::pair<std::string_view, PickleRef>> dicts;
};

Entries EntriesOf(const Pickle& pickle, PickleRef dict) {
  Entries result;
  const std::vector<PickleRef>& entries = *pickle.DictOf(dict);
  for (size_t i = 0; i < entries.size(); i += 2) {
    const std::string_view* name = pickle.StringOf(entries[i]);
    const PickleRef value = entries[i + 1];
    if (name == nullptr) continue;
    result.tensors += pickle.TensorOf(value) != nullptr;
    if (name->size() <= kMaxKey && pickle.DictOf(value) != nullptr) {
      result.dicts.emplace_back(*name, value);
    }
  }
  return result;
}

// Finds all state_dicts. A dict with several names is found under each name.
Search FindStateDicts(const Pickle& pickle, const std::string& path) {
  Search search;
  std::map<PickleRef, Entries> known;  // computed once for a dict that has many names
  size_t dicts = 0;
  if (pickle.DictOf(pickle.root()) != nullptr) search.dicts.push_back({pickle.root(), 0, 0, {}});
  for (size_t at = 0; at < search.dicts.size(); ++at) {
    const Candidate candidate = search.dicts[at];
    if (known.count(candidate.dict) == 0) {
      known.emplace(candidate.dict, EntriesOf(pickle, candidate.dict));
    }
    const Entries& entries = known.at(candidate.dict);
    if (candidate.depth < kMaxDepth) {
      for (const auto& [name, dict] : entries.dicts) {
        if (++dicts == kMaxDicts) {
          throw InputError(
              path, ": holds more than ", kMaxDicts,
              " dicts; in Python, torch.save(model.state_dict(), FILE) writes only the state_dict");
        }
        if (!search.IsAbove(dict, at)) {
          search.dicts.push_back({dict, candidate.depth + 1, at, name});
        }
      }
    }
    // Whether all values are tensors. DictOf() lists keys and values, hence the factor 2.
    if (entries.tensors > 0 && 2 * entries.tensors == pickle.DictOf(candidate.dict)->size()) {
      search.found.push_back(at);
    } else if (entries.tensors > 0 && search.beside.empty()) {
      search.beside = candidate.depth == 0 ? "the outermost dict" : Quote(search.KeyOf(at));
    }
  }
  return search;
}

struct Chosen {
  PickleRef dict = 0;
  std::string key;
};

Chosen Choose(const Pickle& pickle, const std::string& key, const std::string& path) {
  const Search search = FindStateDicts(pickle, path);
  if (search.found.empty()) {
    throw InputError(path, ": holds ", pickle.KindOf(pickle.root()), ", but no state_dict",
                     search.beside.empty()
                         ? ""
                         : StrCat(" (", search.beside, " holds tensors, but also other values)"),
                     "; in Python, torch.save(model.state_dict(), FILE) writes one");
  }
  // One dict under several names needs no choice.
  const PickleRef first = search.dicts[search.found[0]].dict;
  const bool one = std::all_of(search.found.begin(), search.found.end(),
                               [&](size_t index) { return search.dicts[index].dict == first; });
  for (size_t index : search.found) {
    const std::string its_key = search.KeyOf(index);
    if (key.empty() ? one : its_key == key) return {search.dicts[index].dict, its_key};
  }
  if (key.empty()) {
    throw InputError(
        path, ": holds several state_dicts; choose one with --key: ", QuoteAll(search.Keys()));
  }
  const bool at_top = search.found.size() == 1 && search.dicts[search.found[0]].depth == 0;
  throw InputError(
      path, ": has no state_dict under ", Quote(key), "; it has ",
      at_top ? "only one, the outermost dict; leave out --key" : QuoteAll(search.Keys()));
}

// Throws InputError unless torch.save wrote the archive on a little-endian machine.
void CheckKind(ZipReader& zip, const std::string& path) {
  if (zip.Has("constants.pkl")) {
    throw InputError(path,
                     ": a TorchScript archive, which holds code; in Python, "
                     "torch.save(torch.jit.load(FILE).state_dict(), NEW) writes only its tensors");
  }
  if (!zip.Has("data.pkl")) {
    throw InputError(path, ": a zip archive, but not written by torch.save: it has no data.pkl");
  }
  if (!zip.Has("byteorder")) return;
  const AlignedBuffer<std::byte> order = zip.Read("byteorder");
  if (std::string_view(reinterpret_cast<const char*>(order.data()), order.size()) != "little") {
    throw InputError(path,
                     ": written on a big-endian machine; load it in Python on this machine and "
                     "save it again");
  }
}

// The row-major data of pickled tensors: parts of the archive's records, or copies for tensors that
// are not contiguous. Each record and each copy is appended to `data` once.
class TensorData {
 public:
  TensorData(const Pickle& pickle, ZipReader& zip, const std::string& path, uint64_t file_bytes,
             std::vector<AlignedBuffer<std::byte>>& data)
      : pickle_(pickle), zip_(zip), path_(path), room_(4 * file_bytes), data_(data) {}

  // The data of the pickle's tensor `number`. Throws InputError, naming `name`, if the tensor's
  // record has the wrong size or its copy would be too large.
  std::span<const std::byte> Of(uint32_t number, const std::string& name) {
    const PickledTensor& tensor = pickle_.tensors()[number];
    const PickledStorage& storage = pickle_.storages()[tensor.storage];
    const size_t element = DTypeSize(storage.dtype), record = RecordOf(storage);
    const size_t bytes = data_[record].size();
    if (bytes / element != static_cast<uint64_t>(storage.numel) || bytes % element != 0) {
      throw InputError(path_, ": damaged: the record of tensor ", Quote(name), " holds ",
                       Bytes(bytes), ", not ", storage.numel, " elements", kFetchAgain);
    }
    const uint64_t numel = NumElements(tensor);
    if (numel == 0) return {};
    if (IsContiguous(tensor)) {
      return {data_[record].data() + static_cast<size_t>(tensor.offset) * element, numel * element};
    }
    auto copy = copies_.find(number);
    if (copy == copies_.end()) {
      if (numel > room_ / element) {
        throw InputError(path_, ": tensor ", Quote(name), " of shape ", FormatShape(tensor.shape),
                         " repeats a few elements many times; in Python, save x.contiguous()");
      }
      room_ -= numel * element;
      data_.emplace_back(numel * element);
      CopyStrided(tensor, element, data_[record].data(), data_.back().data(), numel);
      copy = copies_.emplace(number, data_.size() - 1).first;
    }
    return {data_[copy->second].data(), data_[copy->second].size()};
  }

 private:
  size_t RecordOf(const PickledStorage& storage) {
    const auto known = records_.find(storage.key);
    if (known != records_.end()) return known->second;
    data_.push_back(zip_.Read(StrCat("data/", storage.key)));
    return records_.emplace(storage.key, data_.size() - 1).first->second;
  }

  const Pickle& pickle_;
  ZipReader& zip_;
  const std::string& path_;
  // Bytes left for copies of non-contiguous tensors; initially four times the file's size, more
  // than a genuine file needs. With zero strides a hostile file could make a tensor of any size
  // from one element.
  uint64_t room_;
  std::vector<AlignedBuffer<std::byte>>& data_;
  std::map<std::string, size_t, std::less<>> records_;  // key of a storage -> index in data_
  std::map<uint32_t, size_t> copies_;                   // index of a tensor -> index in data_
};

// ---- Writing

constexpr const char* kFolder = "archive/";  // torch.save's folder name when it writes to a stream
constexpr uint16_t kPaddingField = 0x4246;   // "FB": the padding field of torch.save

const char* StorageName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "FloatStorage";
    case DType::kF16:
      return "HalfStorage";
    case DType::kBF16:
      return "BFloat16Storage";
    case DType::kF64:
      return "DoubleStorage";
    case DType::kI8:
      return "CharStorage";
    case DType::kU8:
      return "ByteStorage";
    case DType::kI16:
      return "ShortStorage";
    case DType::kI32:
      return "IntStorage";
    case DType::kI64:
      return "LongStorage";
    case DType::kBool:
      return "BoolStorage";
  }
  return "";
}

// Writes pickle protocol 2 without memoization, using only instructions that PyTorch's weights_only
// reader accepts. Pickle::Machine in pickle.cc names the instructions.
class PickleText {
 public:
  std::string Of(const std::vector<Tensor>& tensors) {
    text_ = "\x80\x02";
    OrderedDict();
    text_ += '(';
    for (size_t i = 0; i < tensors.size(); ++i) AddTensor(tensors[i], std::to_string(i));
    text_ += "u.";
    return std::move(text_);
  }

 private:
  void AddTensor(const Tensor& tensor, const std::string& key) {
    String(tensor.name);
    text_ += "ctorch._utils\n_rebuild_tensor_v2\n(";
    text_ += '(';
    String("storage");
    text_ += StrCat("ctorch\n", StorageName(tensor.dtype), "\n");
    String(key);
    String("cpu");
    Integer(tensor.numel());
    text_ += "tQ";
    Integer(0);
    text_ += '(';
    for (int64_t n : tensor.shape) Integer(n);
    text_ += "t(";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      int64_t stride = 1;
      for (size_t j = i + 1; j < tensor.shape.size(); ++j) {
        stride *= std::max<int64_t>(tensor.shape[j], 1);
      }
      Integer(stride);
    }
    text_ += "t\x89";  // requires_grad: False
    OrderedDict();     // backward_hooks
    text_ += "tR";
  }
  void OrderedDict() { text_ += "ccollections\nOrderedDict\n)R"; }
  void String(const std::string& text) {
    text_ += 'X';
    Number(text.size(), 4);
    text_ += text;
  }
  void Integer(int64_t value) {
    if (value <= 0xff) {
      text_ += 'K';
      Number(static_cast<uint64_t>(value), 1);
    } else if (value <= INT32_MAX) {
      text_ += 'J';
      Number(static_cast<uint64_t>(value), 4);
    } else {
      text_ += "\x8a\x08";
      Number(static_cast<uint64_t>(value), 8);
    }
  }
  void Number(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::string text_;
};

// Builds an archive in memory.
class ZipWriter {
 public:
  ZipWriter() {
    ZipError error;
    buffer_.reset(zip_source_buffer_create(nullptr, 0, /*freep=*/0, &error.error));
    if (buffer_ == nullptr) throw std::bad_alloc();
    zip_.reset(zip_open_from_source(buffer_.get(), ZIP_TRUNCATE, &error.error));
    if (zip_ == nullptr) throw RuntimeError("cannot create a zip archive (", error.text(), ")");
    zip_source_keep(buffer_.get());  // zip_open_from_source took over our reference
  }

  // Adds an uncompressed record and aligns its data to 64 bytes. Borrows `data` until Finish().
  void Add(const std::string& name, const void* data, size_t size) {
    constexpr size_t kHeader = 30, kField = 4;
    // A fixed date, 1980-01-01, so that the same tensors give the same file.
    constexpr zip_uint16_t kDosDate = 1 << 5 | 1;
    const std::string path = kFolder + name;
    zip_source_t* source = zip_source_buffer(zip_.get(), data, size, /*freep=*/0);
    Check(source != nullptr);
    const zip_int64_t added = zip_file_add(zip_.get(), path.c_str(), source, ZIP_FL_ENC_UTF_8);
    if (added < 0) zip_source_free(source);
    Check(added >= 0);
    const auto index = static_cast<zip_uint64_t>(added);
    const size_t begin = at_ + kHeader + path.size() + kField;
    const std::vector<zip_uint8_t> padding(RoundUp(begin, kCacheLine) - begin);
    Check(zip_set_file_compression(zip_.get(), index, ZIP_CM_STORE, 0) == 0);
    Check(zip_file_set_dostime(zip_.get(), index, 0, kDosDate, 0) == 0);
    Check(zip_file_extra_field_set(zip_.get(), index, kPaddingField, ZIP_EXTRA_FIELD_NEW,
                                   padding.data(), static_cast<zip_uint16_t>(padding.size()),
                                   ZIP_FL_LOCAL) == 0);
    at_ = begin + padding.size() + size;
  }

  void Finish(AtomicFile& file) {
    Check(zip_close(zip_.get()) == 0);
    static_cast<void>(zip_.release());  // zip_close has freed it
    zip_source_t* source = buffer_.get();
    if (zip_source_open(source) != 0) throw RuntimeError("cannot read back a zip archive");
    std::vector<char> block(size_t{1} << 20);
    while (true) {
      const zip_int64_t n = zip_source_read(source, block.data(), block.size());
      if (n < 0) throw RuntimeError("cannot read back a zip archive");
      if (n == 0) break;
      file.Write(block.data(), static_cast<size_t>(n));
    }
    zip_source_close(source);
  }

 private:
  void Check(bool good) {
    if (good) return;
    zip_error_t* error = zip_get_error(zip_.get());
    if (zip_error_code_zip(error) == ZIP_ER_MEMORY) throw std::bad_alloc();
    throw RuntimeError("cannot write a zip archive (", zip_error_strerror(error), ")");
  }

  std::unique_ptr<zip_source_t, decltype(&zip_source_free)> buffer_{nullptr, zip_source_free};
  std::unique_ptr<zip_t, decltype(&zip_discard)> zip_{nullptr, zip_discard};
  size_t at_ = 0;  // offset of the next local header
};

}  // namespace

PyTorchFile PyTorchFile::Open(const std::string& path, const std::string& key) {
  PyTorchFile file;
  file.path_ = path;
  const MappedFile mapped(path);
  file.Parse(mapped.bytes(), key);
  return file;
}

PyTorchFile PyTorchFile::FromMemory(std::span<const std::byte> bytes, std::string label,
                                    const std::string& key) {
  PyTorchFile file;
  file.path_ = std::move(label);
  file.Parse(bytes, key);
  return file;
}

void PyTorchFile::Parse(std::span<const std::byte> bytes, const std::string& key) {
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "PK\3\4", 4) != 0) throw NoZip(bytes, path_);
  ZipReader zip(bytes, path_);
  CheckKind(zip, path_);
  const AlignedBuffer<std::byte> text = zip.Read("data.pkl");
  const Pickle pickle({reinterpret_cast<const char*>(text.data()), text.size()}, path_);
  const Chosen chosen = Choose(pickle, key, path_);
  key_ = chosen.key;
  TensorData data(pickle, zip, path_, bytes.size(), data_);
  const std::vector<PickleRef>& entries = *pickle.DictOf(chosen.dict);
  for (size_t i = 0; i < entries.size(); i += 2) {
    const uint32_t number = *pickle.TensorOf(entries[i + 1]);
    const PickledTensor& from = pickle.tensors()[number];
    Tensor tensor;
    tensor.name = *pickle.StringOf(entries[i]);
    tensor.dtype = pickle.storages()[from.storage].dtype;
    tensor.shape = from.shape;
    tensor.file = path_;
    if (!index_.emplace(tensor.name, tensors_.size()).second) {
      throw InputError(path_, ": damaged: its state_dict has ", Quote(tensor.name), " twice",
                       kFetchAgain);
    }
    tensor.data = data.Of(number, tensor.name);
    tensors_.push_back(std::move(tensor));
  }
}

const Tensor* PyTorchFile::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const Tensor& PyTorchFile::Get(std::string_view name) const {
  const Tensor* tensor = Find(name);
  if (tensor == nullptr) {
    throw InputError(path_, ": no tensor ", Quote(name), " among its ", tensors_.size(),
                     " tensors; is this a file of another kind?");
  }
  return *tensor;
}

void PyTorchWriter::Add(const std::string& name, DType dtype, std::span<const int64_t> shape,
                        const void* data) {
  if (!names_.insert(name).second) {
    throw InputError("a file cannot hold two tensors named ", Quote(name));
  }
  int64_t bytes = static_cast<int64_t>(DTypeSize(dtype));
  for (int64_t n : shape) {
    if (n < 0 || __builtin_mul_overflow(bytes, n, &bytes)) {
      throw InputError("tensor ", Quote(name), " cannot have the shape ", FormatShape(shape));
    }
  }
  tensors_.push_back({name,
                      dtype,
                      {shape.begin(), shape.end()},
                      {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)},
                      ""});
}

void PyTorchWriter::Write(const std::string& path) const {
  constexpr std::string_view kOrder = "little", kVersion = "3\n";
  AtomicFile file(path);
  const std::string pickle = PickleText().Of(tensors_);
  ZipWriter zip;
  zip.Add("data.pkl", pickle.data(), pickle.size());
  zip.Add("byteorder", kOrder.data(), kOrder.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    zip.Add("data/" + std::to_string(i), tensors_[i].data.data(), tensors_[i].data.size());
  }
  zip.Add("version", kVersion.data(), kVersion.size());
  zip.Finish(file);
  file.Commit();
}

}  // namespace linnet
