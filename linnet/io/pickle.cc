#include "linnet/io/pickle.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "linnet/error.h"
#include "linnet/io/json.h"

namespace linnet {
namespace {

// Maximum size of a pickle: enough for a state_dict of about 28 000 tensors, which take about 150
// bytes each. The limit bounds memory: each byte of a malicious pickle can create a value that
// takes about 100 bytes.
constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr size_t kMaxRank = 16;
// A pickle must have at least this many bytes per tensor; torch.save writes more. Without the limit
// a malicious pickle could create a tensor of kMaxRank dimensions from every 5 bytes.
constexpr size_t kMinTensorBytes = 32;
constexpr size_t kMaxGlobalName = 256;
constexpr int kMinProtocol = 2, kMaxProtocol = 5;

// The format's instructions that Step() refuses, with their names for messages.
struct Instruction {
  uint8_t code;
  const char* name;
};
constexpr Instruction kRefused[] = {
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'F', "FLOAT"},
    {'I', "INT"},
    {'L', "LONG"},
    {'P', "PERSID"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'B', "BINBYTES"},
    {'C', "SHORT_BINBYTES"},
    {'d', "DICT"},
    {'g', "GET"},
    {'i', "INST"},
    {'l', "LIST"},
    {'o', "OBJ"},
    {'p', "PUT"},
    {0x81, "NEWOBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x8b, "LONG4"},
    {0x8e, "BINBYTES8"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x92, "NEWOBJ_EX"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

struct StorageType {
  const char* name;  // in the module torch
  DType dtype;
};
constexpr StorageType kStorageTypes[] = {
    {"FloatStorage", DType::kF32},     {"DoubleStorage", DType::kF64}, {"HalfStorage", DType::kF16},
    {"BFloat16Storage", DType::kBF16}, {"LongStorage", DType::kI64},   {"IntStorage", DType::kI32},
    {"ShortStorage", DType::kI16},     {"CharStorage", DType::kI8},    {"ByteStorage", DType::kU8},
    {"BoolStorage", DType::kBool},
};

constexpr const char* kSaveAgain =
    "; linnet runs no code from a pickle; in Python, save only the tensors with "
    "torch.save(model.state_dict(), FILE)";

}  // namespace

const std::vector<PickleRef>* Pickle::DictOf(PickleRef value) const {
  const Value& v = values_[value];
  return v.kind == Kind::kDict ? &containers_[v.index] : nullptr;
}

const std::string_view* Pickle::StringOf(PickleRef value) const {
  const Value& v = values_[value];
  return v.kind == Kind::kString ? &strings_[v.index] : nullptr;
}

const uint32_t* Pickle::TensorOf(PickleRef value) const {
  const Value& v = values_[value];
  return v.kind == Kind::kTensor ? &v.index : nullptr;
}

const char* Pickle::KindOf(PickleRef value) const {
  switch (values_[value].kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "a bool";
    case Kind::kInteger:
      return "an int";
    case Kind::kFloat:
      return "a float";
    case Kind::kString:
      return "a string";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kList:
      return "a list";
    case Kind::kDict:
      return "a dict";
    case Kind::kTensor:
      return "a tensor";
    default:
      return "an object";
  }
}

// The stack machine that executes a pickle's instructions.
class Pickle::Machine {
 public:
  Machine(Pickle& pickle, std::string_view text, const std::string& where)
      : p_(pickle), text_(text), where_(where) {
    // None, False, True and () exist once, so that the instructions for them allocate no value.
    for (const Value& value : {Value{Kind::kNone, 0, 0}, Value{Kind::kBool, 0, 0},
                               Value{Kind::kBool, 0, 1}, Value{Kind::kTuple, 0, 0}}) {
      p_.values_.push_back(value);
    }
  }

  void Run() {
    if (text_.size() > kMaxBytes)
      throw Bad("its pickle is larger than ", kMaxBytes >> 20,
                " MiB and holds more than the tensors of a model", kSaveAgain);
    if (Byte() != 0x80) throw Malformed("does not begin with its protocol");
    CheckProtocol();
    while (true) {
      const uint8_t code = Byte();
      if (code == '.') break;
      Step(code);
    }
    if (stack_.size() != 1 || !marks_.empty()) throw Malformed("leaves more than one value");
    if (at_ != text_.size()) throw Malformed("continues after its end");
    p_.root_ = stack_[0];
  }

 private:
  static constexpr PickleRef kNoneRef = 0, kFalseRef = 1, kTrueRef = 2, kEmptyTupleRef = 3;

  template <typename... Parts>
  InputError Bad(const Parts&... what) const {
    return InputError(where_, ": ", what...);
  }
  template <typename... Parts>
  InputError Malformed(const Parts&... what) const {
    return Bad("damaged: its pickle ", what..., " (byte ", at_, "); copy or download it again");
  }

  std::string_view Take(uint64_t size) {
    if (size > text_.size() - at_) throw Malformed("ends early");
    const std::string_view taken = text_.substr(at_, size);
    at_ += size;
    return taken;
  }
  uint8_t Byte() { return static_cast<uint8_t>(Take(1)[0]); }
  uint64_t Unsigned(size_t bytes) {
    uint64_t value = 0;
    const std::string_view taken = Take(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      value |= uint64_t{static_cast<uint8_t>(taken[i])} << (8 * i);
    }
    return value;
  }
  // Reads a little-endian two's-complement integer of at most 8 bytes.
  int64_t Signed(size_t bytes) {
    if (bytes == 0) return 0;
    const uint64_t value = Unsigned(bytes);
    const int shift = static_cast<int>(64 - 8 * bytes);
    return static_cast<int64_t>(value << shift) >> shift;
  }
  std::string_view Line() {
    const std::string_view rest = text_.substr(at_, kMaxGlobalName);
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) throw Malformed("holds a name without an end");
    return Take(end + 1).substr(0, end);
  }

  void CheckProtocol() {
    const int protocol = Byte();
    if (protocol < kMinProtocol || protocol > kMaxProtocol) {
      throw Bad("its pickle has protocol ", protocol, ", but torch.save writes ", kMinProtocol,
                " to ", kMaxProtocol, "; save it again without the argument pickle_protocol");
    }
  }

  // ---- The stack. Marks delimit the elements of a tuple, list or dict.

  void Push(PickleRef value) { stack_.push_back(value); }
  void PushNew(Value value) {
    p_.values_.push_back(value);
    Push(static_cast<PickleRef>(p_.values_.size() - 1));
  }
  // Height of the stack at the last mark.
  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleRef Pop() {
    if (stack_.size() <= Floor()) throw Malformed("takes a value where there is none");
    const PickleRef value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleRef Top() const {
    if (stack_.size() <= Floor()) throw Malformed("takes a value where there is none");
    return stack_.back();
  }
  // Pops all values above the last mark, and the mark.
  std::vector<PickleRef> PopMark() {
    if (marks_.empty()) throw Malformed("takes a mark where there is none");
    const auto begin = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<PickleRef> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }

  const Value& Get(PickleRef ref) const { return p_.values_[ref]; }
  std::string_view String(PickleRef ref, const char* what) const {
    if (Get(ref).kind != Kind::kString) throw Malformed("does not give a string for ", what);
    return p_.strings_[Get(ref).index];
  }
  int64_t Integer(PickleRef ref, const char* what) const {
    if (Get(ref).kind != Kind::kInteger) throw Malformed("does not give an int for ", what);
    return Get(ref).integer;
  }
  std::span<const PickleRef> Tuple(PickleRef ref, const char* what) const {
    if (Get(ref).kind != Kind::kTuple) throw Malformed("does not give a tuple for ", what);
    return std::span(p_.pool_).subspan(Get(ref).index, static_cast<size_t>(Get(ref).integer));
  }
  std::vector<PickleRef>& Container(PickleRef ref, Kind kind, const char* what) {
    if (Get(ref).kind != kind) throw Malformed("adds to ", what, " where there is none");
    return p_.containers_[Get(ref).index];
  }

  void PushTuple(std::span<const PickleRef> parts) {
    const size_t begin = p_.pool_.size();
    p_.pool_.insert(p_.pool_.end(), parts.begin(), parts.end());
    PushNew({Kind::kTuple, static_cast<uint32_t>(begin), static_cast<int64_t>(parts.size())});
  }
  void PushSmallTuple(size_t size) {
    PickleRef parts[3];
    for (size_t i = size; i > 0; --i) parts[i - 1] = Pop();
    PushTuple(std::span(parts).first(size));
  }
  void PushContainer(Kind kind) {
    p_.containers_.emplace_back();
    PushNew({kind, static_cast<uint32_t>(p_.containers_.size() - 1), 0});
  }
  void PushString(std::string_view text) {
    p_.strings_.push_back(text);
    PushNew({Kind::kString, static_cast<uint32_t>(p_.strings_.size() - 1), 0});
  }

  // Stores the stack's top value in the memo at index `place`.
  void Remember(uint64_t place) {
    // Python numbers memo entries from 0, and each takes at least one byte of the pickle.
    if (place >= text_.size()) throw Malformed("stores a value at an impossible memo index");
    if (place >= memo_.size()) memo_.resize(place + 1, kNowhere);
    memo_[place] = Top();
    memoized_ = std::max(memoized_, place + 1);
  }
  // Pushes the value in the memo at index `place`.
  void Recall(uint64_t place) {
    if (place >= memo_.size() || memo_[place] == kNowhere) {
      throw Malformed("reads a memo index without a value");
    }
    Push(memo_[place]);
  }

  // ---- The names that a pickle may use and call.

  void PushGlobal(std::string_view module, std::string_view name) {
    const auto global = [&](Global which) {
      PushNew({Kind::kGlobal, 0, static_cast<int64_t>(which)});
    };
    if (module == "collections" && name == "OrderedDict") return global(Global::kOrderedDict);
    if (module == "torch._utils" && name == "_rebuild_tensor_v2") {
      return global(Global::kRebuildTensor);
    }
    if (module == "torch._utils" && name == "_rebuild_parameter") {
      return global(Global::kRebuildParameter);
    }
    if (module == "torch") {
      for (const StorageType& type : kStorageTypes) {
        if (name == type.name) {
          return PushNew({Kind::kStorageType, 0, static_cast<int64_t>(type.dtype)});
        }
      }
    }
    throw Bad("its pickle asks for ", Quote(StrCat(module, ".", name)),
              ", which a state_dict of plain tensors does not need", kSaveAgain);
  }

  void Call() {
    const PickleRef arguments_ref = Pop(), function = Pop();
    if (Get(function).kind != Kind::kGlobal)
      throw Malformed("calls a value that is not a function");
    const std::span<const PickleRef> arguments = Tuple(arguments_ref, "the arguments of a call");
    switch (static_cast<Global>(Get(function).integer)) {
      case Global::kOrderedDict:
        if (!arguments.empty()) throw Malformed("gives arguments to OrderedDict");
        return PushContainer(Kind::kDict);
      case Global::kRebuildParameter:  // data, requires_grad, backward_hooks
        if (arguments.size() != 3 || Get(arguments[0]).kind != Kind::kTensor) {
          throw Malformed("makes a parameter of something other than a tensor");
        }
        return Push(arguments[0]);
      case Global::kRebuildTensor:
        return PushTensor(arguments);
    }
  }

  // The arguments are storage, storage_offset, size, stride, requires_grad, backward_hooks and, in
  // newer files, metadata.
  void PushTensor(std::span<const PickleRef> arguments) {
    if (arguments.size() < 6 || arguments.size() > 7) {
      throw Malformed("makes a tensor from ", arguments.size(), " arguments");
    }
    if (arguments.size() == 7) {
      const Value& metadata = Get(arguments[6]);
      const bool empty = metadata.kind == Kind::kNone ||
                         (metadata.kind == Kind::kDict && p_.containers_[metadata.index].empty());
      if (!empty) {
        throw Bad(
            "holds a conjugated or negated tensor; in Python, save x.resolve_neg() or "
            "x.resolve_conj()");
      }
    }
    if (Get(arguments[0]).kind != Kind::kStorage)
      throw Malformed("makes a tensor without a storage");
    PickledTensor tensor;
    tensor.storage = Get(arguments[0]).index;
    tensor.offset = Integer(arguments[1], "an offset");
    tensor.shape = Integers(arguments[2], "a shape");
    tensor.stride = Integers(arguments[3], "strides");
    if (tensor.shape.size() != tensor.stride.size())
      throw Malformed("has a shape and strides of different lengths");
    CheckExtent(tensor);
    if (p_.tensors_.size() >= text_.size() / kMinTensorBytes) {
      throw Malformed("makes more tensors than it has room to describe");
    }
    p_.tensors_.push_back(std::move(tensor));
    PushNew({Kind::kTensor, static_cast<uint32_t>(p_.tensors_.size() - 1), 0});
  }

  std::vector<int64_t> Integers(PickleRef ref, const char* what) const {
    const std::span<const PickleRef> parts = Tuple(ref, what);
    if (parts.size() > kMaxRank) throw Malformed("has a tensor of ", parts.size(), " dimensions");
    std::vector<int64_t> integers;
    for (PickleRef part : parts) integers.push_back(Integer(part, what));
    return integers;
  }

  // Throws InputError unless all elements of the tensor lie within its storage and their number
  // fits into an int64_t.
  void CheckExtent(const PickledTensor& tensor) const {
    const auto wrong = [&] { return Malformed("has a tensor that extends beyond its storage"); };
    int64_t numel = 1, last = tensor.offset;  // last: the largest index used
    bool empty = false;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      if (tensor.shape[i] < 0 || tensor.stride[i] < 0) throw wrong();
      empty = empty || tensor.shape[i] == 0;
    }
    if (tensor.offset < 0) throw wrong();
    if (empty) return;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      int64_t reach = 0;
      if (__builtin_mul_overflow(numel, tensor.shape[i], &numel) ||
          __builtin_mul_overflow(tensor.shape[i] - 1, tensor.stride[i], &reach) ||
          __builtin_add_overflow(last, reach, &last)) {
        throw wrong();
      }
    }
    if (last >= p_.storages_[tensor.storage].numel) throw wrong();
  }

  // Replaces a storage's persistent id, ('storage', type, key, location, numel), by the storage.
  void PushStorage() {
    const std::span<const PickleRef> id = Tuple(Pop(), "a storage");
    if (id.size() != 5 || String(id[0], "the kind of a storage") != "storage") {
      throw Malformed("refers to something other than a storage");
    }
    const Value& type = Get(id[1]);
    if (type.kind != Kind::kStorageType) throw Malformed("has a storage without a type");
    PickledStorage storage;
    storage.dtype = static_cast<DType>(type.integer);
    storage.key = String(id[2], "the key of a storage");
    storage.numel = Integer(id[4], "the size of a storage");
    if (storage.numel < 0) throw Malformed("has a storage of negative size");
    p_.storages_.push_back(storage);
    PushNew({Kind::kStorage, static_cast<uint32_t>(p_.storages_.size() - 1), 0});
  }

  void SetItems(std::span<const PickleRef> items) {
    if (items.size() % 2 != 0) throw Malformed("has a key without a value");
    std::vector<PickleRef>& dict = Container(Top(), Kind::kDict, "a dict");
    dict.insert(dict.end(), items.begin(), items.end());
  }

  // Executes the instruction `code`, whose arguments follow in the text.
  void Step(uint8_t code) {
    if (PushScalar(code) || BuildContainer(code) || UseMemo(code) || UseClass(code)) return;
    switch (code) {
      case 0x80:  // PROTO
        return CheckProtocol();
      case 0x95:  // FRAME: length of the next block
        if (Unsigned(8) > text_.size() - at_) throw Malformed("ends early");
        return;
      case '(':  // MARK
        return marks_.push_back(stack_.size());
      default: {
        const auto* known = std::find_if(std::begin(kRefused), std::end(kRefused),
                                         [&](const Instruction& i) { return i.code == code; });
        if (known == std::end(kRefused)) throw Malformed("holds the unknown instruction ", +code);
        throw Bad("its pickle holds the instruction ", known->name,
                  ", which a state_dict does not need", kSaveAgain);
      }
    }
  }

  // Runs the instructions for None, booleans, numbers and strings. Like the next three functions,
  // returns false for any other instruction.
  bool PushScalar(uint8_t code) {
    switch (code) {
      case 'N':  // NONE
        Push(kNoneRef);
        break;
      case 0x88:  // NEWTRUE
        Push(kTrueRef);
        break;
      case 0x89:  // NEWFALSE
        Push(kFalseRef);
        break;
      case 'K':  // BININT1
        PushNew({Kind::kInteger, 0, static_cast<int64_t>(Unsigned(1))});
        break;
      case 'M':  // BININT2
        PushNew({Kind::kInteger, 0, static_cast<int64_t>(Unsigned(2))});
        break;
      case 'J':  // BININT
        PushNew({Kind::kInteger, 0, Signed(4)});
        break;
      case 0x8a: {  // LONG1
        const size_t bytes = Byte();
        if (bytes > 8) throw Bad("its pickle holds an int of more than 64 bits", kSaveAgain);
        PushNew({Kind::kInteger, 0, Signed(bytes)});
        break;
      }
      case 'G':  // BINFLOAT: its value is never needed
        Take(8);
        PushNew({Kind::kFloat, 0, 0});
        break;
      case 0x8c:  // SHORT_BINUNICODE
        PushString(Take(Unsigned(1)));
        break;
      case 'X':  // BINUNICODE
        PushString(Take(Unsigned(4)));
        break;
      case 0x8d:  // BINUNICODE8
        PushString(Take(Unsigned(8)));
        break;
      default:
        return false;
    }
    return true;
  }

  // Runs the instructions for tuples, lists and dicts.
  bool BuildContainer(uint8_t code) {
    switch (code) {
      case ')':  // EMPTY_TUPLE
        Push(kEmptyTupleRef);
        break;
      case 't':  // TUPLE
        PushTuple(PopMark());
        break;
      case 0x85:  // TUPLE1, 2, 3
      case 0x86:
      case 0x87:
        PushSmallTuple(code - 0x84u);
        break;
      case ']':  // EMPTY_LIST
        PushContainer(Kind::kList);
        break;
      case 'a': {  // APPEND
        const PickleRef value = Pop();
        Container(Top(), Kind::kList, "a list").push_back(value);
        break;
      }
      case 'e': {  // APPENDS
        const std::vector<PickleRef> values = PopMark();
        std::vector<PickleRef>& list = Container(Top(), Kind::kList, "a list");
        list.insert(list.end(), values.begin(), values.end());
        break;
      }
      case '}':  // EMPTY_DICT
        PushContainer(Kind::kDict);
        break;
      case 's': {  // SETITEM
        const PickleRef value = Pop(), key = Pop();
        SetItems(std::vector<PickleRef>{key, value});
        break;
      }
      case 'u':  // SETITEMS
        SetItems(PopMark());
        break;
      default:
        return false;
    }
    return true;
  }

  // Runs the instructions for the memo: numbered values that later instructions refer to.
  bool UseMemo(uint8_t code) {
    switch (code) {
      case 'q':  // BINPUT
        Remember(Unsigned(1));
        break;
      case 'r':  // LONG_BINPUT
        Remember(Unsigned(4));
        break;
      case 0x94:  // MEMOIZE
        Remember(memoized_);
        break;
      case 'h':  // BINGET
        Recall(Unsigned(1));
        break;
      case 'j':  // LONG_BINGET
        Recall(Unsigned(4));
        break;
      default:
        return false;
    }
    return true;
  }

  // Runs the instructions for classes and functions that a state_dict needs, and for storages.
  bool UseClass(uint8_t code) {
    switch (code) {
      case 'c': {  // GLOBAL
        const std::string_view module = Line();
        PushGlobal(module, Line());
        break;
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string_view name = String(Pop(), "a name");
        PushGlobal(String(Pop(), "a module"), name);
        break;
      }
      case 'R':  // REDUCE
        Call();
        break;
      case 'Q':  // BINPERSID
        PushStorage();
        break;
      case 'b':  // BUILD: ignores the attributes of a dict (_metadata), which hold no tensors
        Pop();
        if (Get(Top()).kind != Kind::kDict) {
          throw Bad("its pickle sets attributes of an object", kSaveAgain);
        }
        break;
      default:
        return false;
    }
    return true;
  }

  static constexpr PickleRef kNowhere = UINT32_MAX;  // an empty memo entry

  Pickle& p_;  // the result
  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  std::vector<PickleRef> stack_;
  std::vector<size_t> marks_;  // the stack's heights at the marks
  std::vector<PickleRef> memo_;
  uint64_t memoized_ = 0;  // the next index for MEMOIZE
};

Pickle::Pickle(std::string_view text, const std::string& where) {
  Machine(*this, text, where).Run();
}

}  // namespace linnet
