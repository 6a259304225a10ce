#include "linnet/io/pytorch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zip.h>

#include <cstring>

#include "linnet/io/pickle.h"
#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Files = std::vector<std::pair<std::string, std::string>>;

// Makes a zip archive, not necessarily one that PyTorch accepts.
std::string MakeZip(const Files& files, zip_int32_t method = ZIP_CM_STORE) {
  zip_error_t error;
  zip_source_t* buffer = zip_source_buffer_create(nullptr, 0, 0, &error);
  zip_t* zip = zip_open_from_source(buffer, ZIP_TRUNCATE, &error);
  zip_source_keep(buffer);
  for (const auto& [name, bytes] : files) {
    const zip_int64_t i =
        zip_file_add(zip, name.c_str(), zip_source_buffer(zip, bytes.data(), bytes.size(), 0), 0);
    zip_set_file_compression(zip, static_cast<zip_uint64_t>(i), method, 0);
  }
  EXPECT_EQ(zip_close(zip), 0);
  zip_source_open(buffer);
  std::string text;
  char block[4096];
  for (zip_int64_t n; (n = zip_source_read(buffer, block, sizeof(block))) > 0;) {
    text.append(block, static_cast<size_t>(n));
  }
  zip_source_close(buffer);
  zip_source_free(buffer);
  return text;
}

// ---- Pieces of pickles, each of which pushes one value.

std::string Number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}
std::string Str(const std::string& text) { return "X" + Number(text.size(), 4) + text; }
std::string Int(int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX)
    return "J" + Number(static_cast<uint64_t>(value), 4);
  return "\x8a\x08" + Number(static_cast<uint64_t>(value), 8);
}
std::string Ints(const std::vector<int64_t>& values) {
  std::string text = "(";
  for (int64_t value : values) text += Int(value);
  return text + "t";
}
std::string Storage(const std::string& type, const std::string& key, int64_t numel) {
  return "(" + Str("storage") + "ctorch\n" + type + "\n" + Str(key) + Str("cpu") + Int(numel) +
         "tQ";
}
std::string Rebuild(const std::string& storage, int64_t offset, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& stride, const std::string& last = "\x89}") {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + Int(offset) + Ints(shape) +
         Ints(stride) + last + "tR";
}
std::string Floats(const std::string& key, int64_t n) {
  return Rebuild(Storage("FloatStorage", key, n), 0, {n}, {1});
}
std::string Dict(const Files& entries) {
  std::string text = "}(";
  for (const auto& [key, value] : entries) text += Str(key) + value;
  return text + "u";
}
std::string Protocol2(const std::string& value) { return "\x80\x02" + value + "."; }

// An archive with the pickled `value` and three storages: "0" with the floats 1 .. 6, "1" with two
// int64, and "empty" without elements.
std::string Archive(const std::string& value, const Files& more = {}) {
  const float x[6] = {1, 2, 3, 4, 5, 6};
  const int64_t y[2] = {-1, int64_t{1} << 40};
  Files files = {{"m/data.pkl", Protocol2(value)},
                 {"m/data/0", std::string(reinterpret_cast<const char*>(x), sizeof(x))},
                 {"m/data/1", std::string(reinterpret_cast<const char*>(y), sizeof(y))},
                 {"m/data/empty", ""},
                 {"m/version", "3\n"}};
  files.insert(files.end(), more.begin(), more.end());
  return MakeZip(files);
}

PyTorchFile Load(const std::string& file, const std::string& key = "") {
  return PyTorchFile::FromMemory(std::as_bytes(std::span(file)), "memory", key);
}
std::string LoadError(const std::string& file, const std::string& key = "") {
  return ErrorOf([&] { Load(file, key); });
}

const std::string kSix = Storage("FloatStorage", "0", 6);

TEST(PyTorch, ReadsFilesOfTorchSave) {
  const PyTorchFile file = PyTorchFile::Open("tests/golden/image_model.pth");
  const SafetensorsFile same = SafetensorsFile::Open("tests/golden/image_model.safetensors");
  ASSERT_EQ(file.tensors().size(), 38u);
  EXPECT_EQ(file.tensors()[0].name, "pos_embedding.pe");  // in the state_dict's order
  EXPECT_EQ(file.key(), "");
  for (const Tensor& tensor : file.tensors()) {
    const Tensor& want = same.Get("param." + tensor.name);
    EXPECT_EQ(tensor.shape, want.shape) << tensor.name;
    EXPECT_THAT(tensor.f32(), ::testing::ElementsAreArray(want.f32())) << tensor.name;
  }
}

TEST(PyTorch, RoundTrip) {
  TempDir dir;
  const std::string path = dir / "a.pth";
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> steps = {-1, 1LL << 40};
  const std::vector<uint8_t> bytes(300, 7);
  const double scalar = 0.5;
  PyTorchWriter writer;
  writer.Add("weight", DType::kF32, {2, 3}, weight.data());
  writer.Add("bytes", DType::kU8, {300}, bytes.data());
  writer.Add("none", DType::kF32, {0, 5}, nullptr);
  writer.Add("steps", DType::kI64, {2}, steps.data());
  writer.Add("scalar", DType::kF64, {}, &scalar);
  const uint8_t small[2] = {0, 1};
  for (const DType dtype :
       {DType::kF16, DType::kBF16, DType::kI8, DType::kI16, DType::kI32, DType::kBool}) {
    writer.Add(DTypeName(dtype), dtype, {0}, small);
  }
  writer.Write(path);
  EXPECT_EQ(dir.Entries(), 1);

  PyTorchFile opened = PyTorchFile::Open(path);
  const PyTorchFile file = std::move(opened);  // the tensors' data stays valid
  EXPECT_EQ(file.path(), path);
  ASSERT_EQ(file.tensors().size(), 11u);
  EXPECT_THAT(file.Get("weight").f32(), ::testing::ElementsAreArray(weight));
  EXPECT_THAT(file.Get("weight").shape, ElementsAre(2, 3));
  EXPECT_THAT(file.Get("steps").i64(), ElementsAre(-1, 1LL << 40));
  EXPECT_THAT(file.Get("bytes").values<uint8_t>(), ::testing::Each(7));
  EXPECT_THAT(file.Get("scalar").values<double>(), ElementsAre(0.5));
  EXPECT_TRUE(file.Get("scalar").shape.empty());
  EXPECT_EQ(file.Get("none").numel(), 0);
  EXPECT_THAT(file.Get("none").shape, ElementsAre(0, 5));
  EXPECT_EQ(file.Get("BF16").dtype, DType::kBF16);
  EXPECT_EQ(file.Find("nothing"), nullptr);

  const std::string first = ReadFile(path);
  writer.Write(path);
  EXPECT_EQ(ReadFile(path), first);
}

// Walks the zip archive's local headers, as torch.load(mmap=True) does.
TEST(PyTorch, RecordsAreStoredAndAligned) {
  TempDir dir;
  const std::vector<float> x(7, 1.5f);
  PyTorchWriter writer;
  writer.Add("a", DType::kF32, {7}, x.data());
  writer.Add("a long name that moves things about", DType::kF32, {7}, x.data());
  writer.Add("empty", DType::kF32, {0}, x.data());
  writer.Write(dir / "a.pth");
  const std::string file = ReadFile(dir / "a.pth");
  const auto number = [&](size_t at, size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, file.data() + at, size);
    return value;
  };
  std::vector<std::string> names;
  size_t at = 0;
  for (; file.compare(at, 4, "PK\3\4") == 0;) {
    EXPECT_EQ(number(at + 6, 2) & 9, 0u) << "encrypted, or sizes behind the data";
    EXPECT_EQ(number(at + 8, 2), 0u) << "compressed";
    const size_t name = number(at + 26, 2), data = at + 30 + name + number(at + 28, 2);
    EXPECT_EQ(data % 64, 0u);
    names.push_back(file.substr(at + 30, name));
    at = data + number(at + 18, 4);
  }
  EXPECT_EQ(file.compare(at, 4, "PK\1\2"), 0);
  EXPECT_THAT(names, ElementsAre("archive/data.pkl", "archive/byteorder", "archive/data/0",
                                 "archive/data/1", "archive/data/2", "archive/version"));
}

TEST(PyTorch, ErrorsNameFileAndTensor) {
  TempDir dir;
  const float x = 1;
  PyTorchWriter writer;
  writer.Add("x", DType::kF32, {1}, &x);
  EXPECT_THAT(ErrorOf([&] { writer.Add("x", DType::kF32, {1}, &x); }), HasSubstr("two tensors"));
  EXPECT_THAT(ErrorOf([&] { writer.Add("y", DType::kF32, {-1}, &x); }), HasSubstr("[-1]"));
  writer.Write(dir / "a");
  const PyTorchFile file = PyTorchFile::Open(dir / "a");
  EXPECT_THAT(ErrorOf([&] { file.Get("y"); }),
              StartsWith(StrCat("input: ", dir / "a", ": no tensor 'y'")));
  EXPECT_THAT(ErrorOf([&] { PyTorchFile::Open(dir / "b"); }), HasSubstr("no such file"));
  EXPECT_THAT(ErrorOf([&] { writer.Write(dir / "no/a"); }), HasSubstr("does not exist"));
}

TEST(PyTorch, StridesOffsetsAndSharedStorages) {
  const PyTorchFile file = Load(Archive(Dict({
      {"plain", Rebuild(kSix, 0, {2, 3}, {3, 1})},
      {"transposed", Rebuild(kSix, 0, {3, 2}, {1, 3})},
      {"column", Rebuild(kSix, 1, {2, 1}, {3, 7})},
      {"axes of size 1", Rebuild(kSix, 1, {1, 3, 1}, {INT64_MAX, 2, INT64_MAX})},
      {"tail", Rebuild(kSix, 4, {2}, {1})},
      {"scalar", Rebuild(kSix, 5, {}, {})},
      {"repeated", Rebuild(kSix, 2, {2, 2}, {0, 1})},
      {"none", Rebuild(kSix, 6, {0, 3}, {3, 1})},
      {"nothing at all", Rebuild(Storage("HalfStorage", "empty", 0), 0, {0}, {1})},
      {"long", Rebuild(Storage("LongStorage", "1", 2), 1, {1}, {1})},
      {"parameter", "ctorch._utils\n_rebuild_parameter\n(" + Floats("0", 6) + "\x88}tR"},
      {"metadata", Rebuild(kSix, 0, {1}, {1}, "\x89}N")},
  })));
  EXPECT_THAT(file.Get("plain").f32(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(file.Get("transposed").f32(), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(file.Get("column").f32(), ElementsAre(2, 5));
  EXPECT_THAT(file.Get("axes of size 1").f32(), ElementsAre(2, 4, 6));
  EXPECT_THAT(file.Get("tail").f32(), ElementsAre(5, 6));
  EXPECT_THAT(file.Get("scalar").f32(), ElementsAre(6));
  EXPECT_THAT(file.Get("repeated").f32(), ElementsAre(3, 4, 3, 4));
  EXPECT_EQ(file.Get("none").numel(), 0);
  EXPECT_EQ(file.Get("nothing at all").dtype, DType::kF16);
  EXPECT_THAT(file.Get("long").i64(), ElementsAre(int64_t{1} << 40));
  EXPECT_THAT(file.Get("parameter").f32(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(file.Get("plain").data.data() + 16, file.Get("tail").data.data());
}

TEST(PyTorch, RefusesTensorsOutsideTheirStorage) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  const std::string cases[] = {
      Rebuild(kSix, 0, {7}, {1}),
      Rebuild(kSix, 1, {2, 3}, {3, 1}),
      Rebuild(kSix, 6, {}, {}),
      Rebuild(kSix, -1, {1}, {1}),
      Rebuild(kSix, 0, {-1}, {1}),
      Rebuild(kSix, 5, {2}, {-1}),
      Rebuild(kSix, 0, {2}, {kHuge}),
      Rebuild(kSix, 0, {5}, {kHuge}),
      Rebuild(kSix, kHuge, {3}, {kHuge}),
      Rebuild(kSix, 0, {kHuge, 4}, {0, 0}),
      Rebuild(kSix, 0, {kHuge, kHuge}, {0, 0}),
  };
  for (const std::string& value : cases) {
    EXPECT_THAT(LoadError(Archive(Dict({{"x", value}}))),
                HasSubstr(" has a tensor that extends beyond its storage"));
  }
  EXPECT_THAT(LoadError(Archive(Dict({{"x", Rebuild(kSix, 0, {1 << 30}, {0})}}))),
              HasSubstr("repeats a few elements"));
  EXPECT_THAT(LoadError(Archive(Dict({{"x", Floats("0", 5)}}))), HasSubstr("not 5 elements"));
  EXPECT_THAT(LoadError(Archive(Dict({{"x", Floats("2", 5)}}))), HasSubstr("no record 'data/2'"));
  EXPECT_THAT(LoadError(Archive(Dict({{"x", Floats("../version", 5)}}))), HasSubstr("no record"));
  EXPECT_THAT(LoadError(Archive(Dict({{"x", Floats("0", 6)}, {"x", Floats("0", 6)}}))),
              HasSubstr("'x' twice"));
  EXPECT_THAT(LoadError(Archive(Dict({{"x", Rebuild(kSix, 0, std::vector<int64_t>(17, 1),
                                                    std::vector<int64_t>(17, 1))}}))),
              HasSubstr("17 dimensions"));
  EXPECT_THAT(LoadError(Archive(
                  Dict({{"x", Rebuild(kSix, 0, {1}, {1}, "\x89}" + Dict({{"neg", "\x88"}}))}}))),
              HasSubstr("negated"));
}

TEST(PyTorch, FindsTheStateDict) {
  const std::string sd = Dict({{"x", Floats("0", 6)}});
  const std::string adam = Dict(
      {{"state", "}J" + Number(0, 4) + Dict({{"exp_avg", Floats("0", 6)}}) + "s"},
       {"param_groups", "](" + Dict({{"lr", "G" + Number(0, 8)}, {"betas", Ints({1, 2})}}) + "e"}});
  EXPECT_EQ(Load(Archive(sd)).key(), "");
  EXPECT_EQ(
      Load(Archive(Dict({{"model_state", sd}, {"optimizer", adam}, {"epoch", Int(3)}}))).key(),
      "model_state");
  EXPECT_EQ(Load(Archive(Dict({{"loss", Floats("0", 6)}, {"a", Dict({{"b", sd}})}}))).key(), "a.b");
  // A state_dict as module.state_dict() returns it: an OrderedDict with _metadata.
  const std::string module = "ccollections\nOrderedDict\n)R(" + Str("x") + Floats("0", 6) + "u}" +
                             Str("_metadata") + "}sb";
  EXPECT_EQ(Load(Archive(module)).tensors().size(), 1u);

  const std::string two = Archive(Dict({{"model", sd}, {"ema", sd}}));
  EXPECT_THAT(LoadError(two), HasSubstr("several state_dicts; choose one with --key: 'model', "
                                        "'ema'"));
  EXPECT_EQ(Load(two, "ema").key(), "ema");
  EXPECT_THAT(LoadError(two, "emma"), HasSubstr("no state_dict under 'emma'; it has 'model'"));
  EXPECT_THAT(LoadError(Archive(sd), "model"), HasSubstr("the outermost dict"));
  EXPECT_THAT(LoadError(Archive(Floats("0", 6))), HasSubstr("holds a tensor, but no state_dict"));
  EXPECT_THAT(LoadError(Archive("]")), HasSubstr("holds a list, but no state_dict"));
  EXPECT_THAT(LoadError(Archive("}")), HasSubstr("holds a dict, but no state_dict"));
  EXPECT_THAT(LoadError(Archive(Dict({{"x", Floats("0", 6)}, {"y", "N"}}))),
              HasSubstr("the outermost dict holds tensors, but also other values"));
  // A dict that contains itself.
  EXPECT_THAT(LoadError(Archive("}q" + Number(0, 1) + Str("a") + "h" + Number(0, 1) + "s")),
              HasSubstr("holds a dict, but no state_dict"));
}

// If an object occurs twice, Python writes it once, and the second occurrence refers to the first.
TEST(PyTorch, FindsASharedStateDictUnderEachName) {
  const auto keep = [](const std::string& value, uint64_t n) { return value + "q" + Number(n, 1); };
  const auto again = [](uint64_t n) { return "h" + Number(n, 1); };
  const std::string sd = Dict({{"x", Floats("0", 6)}}), other = Dict({{"y", Floats("1", 2)}});
  const std::string one = Archive(Dict({{"model", keep(sd, 0)}, {"ema", again(0)}}));
  for (const char* key : {"model", "ema"}) {
    const PyTorchFile file = Load(one, key);
    EXPECT_EQ(file.key(), key);
    EXPECT_EQ(file.tensors().at(0).name, "x");
  }
  EXPECT_EQ(Load(one).key(), "model");  // both names mean one dict
  EXPECT_THAT(LoadError(one, "average"), HasSubstr("it has 'model', 'ema'"));
  const std::string three =
      Archive(Dict({{"model", keep(sd, 0)}, {"best", other}, {"ema", again(0)}}));
  EXPECT_THAT(LoadError(three), HasSubstr("--key: 'model', 'best', 'ema'"));
  EXPECT_EQ(Load(three, "ema").tensors().at(0).name, "x");
  const std::string nested = Archive(
      Dict({{"a", keep(Dict({{"net", sd}}), 0)}, {"b", Dict({{"c", again(0)}})}, {"d", other}}));
  EXPECT_EQ(Load(nested, "b.c.net").tensors().at(0).name, "x");
  // Tensors that two state_dicts share.
  const std::string tensors = Archive(Dict({{"model", Dict({{"x", keep(Floats("0", 6), 0)}})},
                                            {"ema", Dict({{"y", again(0)}, {"z", again(0)}})}}));
  const PyTorchFile shared = Load(tensors, "ema");
  EXPECT_THAT(shared.Get("z").f32(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(shared.Get("y").f32(), ElementsAre(1, 2, 3, 4, 5, 6));
}

// The search is bounded even if dicts contain each other many times.
TEST(PyTorch, SearchInSharedDictsIsBounded) {
  const std::string again = "h" + Number(0, 1);
  Files names, circle;
  for (int i = 0; i < 150; ++i) names.emplace_back("n" + std::to_string(i), again);
  for (int i = 0; i < 20'000; ++i) circle.emplace_back("n" + std::to_string(i), again);
  const std::string leaf = "}q" + Number(0, 1);
  const std::string maze =
      Dict({{"a", leaf}, {"b", Dict(names) + "q" + Number(0, 1)}, {"c", Dict(names)}});
  EXPECT_THAT(LoadError(Archive(maze)), HasSubstr("more than 10000 dicts"));
  EXPECT_THAT(LoadError(Archive("}q" + Number(0, 1) + Dict(circle).substr(1))),
              HasSubstr("more than 10000 dicts"));
}

TEST(PyTorch, RefusesInvalidPickles) {
  const std::string sd = Dict({{"x", Floats("0", 6)}});
  const std::pair<std::string, const char*> cases[] = {
      {"cposix\nsystem\n" + Str("true") + "\x85R", "asks for 'posix.system'"},
      {"c__builtin__\neval\n", "asks for '__builtin__.eval'"},
      {Str("os") + Str("system") + "\x93", "asks for 'os.system'"},
      {"cargparse\nNamespace\n)\x81", "asks for 'argparse.Namespace'"},
      {"ctorch\nComplexFloatStorage\n", "asks for 'torch.ComplexFloatStorage'"},
      {"ccollections\nOrderedDict\n)\x81", "the instruction NEWOBJ"},
      {"(i", "the instruction INST"},
      {"ccollections\nOrderedDict\n(]tR", "gives arguments to OrderedDict"},
      {"]}b", "sets attributes"},
      {"\x80\x01", "protocol 1"},
      {"\x8a\x09" + std::string(9, 0), "more than 64 bits"},
      {"\xff", "unknown instruction 255"},
      {"h" + Number(0, 1), "reads a memo index"},
      {"Nr" + Number(0xffffffff, 4), "impossible memo index"},
      {"X" + Number(0xffffffff, 4), "ends early"},
      {"\x8d" + Number(UINT64_MAX, 8), "ends early"},
      {"\x95" + Number(UINT64_MAX, 8), "ends early"},
      {"c" + std::string(1000, 'a'), "name without an end"},
      {"(((", "more than one value"},
      {"NN", "more than one value"},
      {"", "more than one value"},
      {"t", "mark where there is none"},
      {"\x87", "value where there is none"},
      {"N(s", "value where there is none"},
      {"N(Nu", "without a value"},
      {"N(NNu", "adds to a dict"},
      {"NNa", "adds to a list"},
      {"N)R", "not a function"},
      {"NQ", "does not give a tuple"},
  };
  for (const auto& [value, message] : cases) {
    EXPECT_THAT(LoadError(Archive(value)), AllOf(StartsWith("input: memory: "), HasSubstr(message)))
        << value.substr(0, 100);
  }
  EXPECT_THAT(LoadError(Archive(sd + ".N")), HasSubstr("after its end"));
  std::string again = "(ctorch._utils\n_rebuild_tensor_v2\nq" + Number(0, 1) + "(" + kSix + Int(0) +
                      Ints({1}) + Ints({1}) + "\x89}tq" + Number(1, 1) + "R";
  for (int i = 0; i < 1000; ++i) again += "h" + Number(0, 1) + "h" + Number(1, 1) + "R";
  EXPECT_THAT(LoadError(Archive(again + "t")), HasSubstr("more tensors than it has room"));
  // Deeply nested lists cause no recursion, neither in reading nor in destruction.
  const std::string tower = std::string(200000, ']') + std::string(199999, 'a');
  EXPECT_THAT(LoadError(Archive(tower)), HasSubstr("holds a list"));
  EXPECT_THAT(LoadError(Archive(std::string(200000, '('))), HasSubstr("more than one value"));
}

TEST(PyTorch, NamesTheTypeOfOtherFiles) {
  const std::string sd = Dict({{"x", Floats("0", 6)}});
  EXPECT_THAT(LoadError(Archive(sd, {{"m/constants.pkl", "x"}})),
              AllOf(HasSubstr("TorchScript"), HasSubstr("torch.jit.load")));
  EXPECT_THAT(LoadError(Archive(sd, {{"m/byteorder", "big"}})), HasSubstr("big-endian"));
  EXPECT_EQ(LoadError(Archive(sd, {{"m/byteorder", "little"}})), "");
  EXPECT_THAT(LoadError("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."),
              AllOf(HasSubstr("before 1.6"), HasSubstr("torch.save(torch.load")));
  EXPECT_THAT(LoadError(TestTar({{"storages", "x", '0'}})), HasSubstr("before 1.6"));
  EXPECT_THAT(LoadError("GIF89a"), HasSubstr("no zip archive"));
  EXPECT_THAT(LoadError(""), HasSubstr("no zip archive"));
  EXPECT_THAT(LoadError(MakeZip({{"a/b", "x"}})), HasSubstr("no data.pkl"));
  EXPECT_THAT(LoadError(MakeZip({{"m/data.pkl", std::string(1000, 'a')}}, ZIP_CM_DEFLATE)),
              HasSubstr("compressed"));
  // 2^60 entries in a directory of a few bytes.
  std::string file = Archive(sd);
  const std::string end = file.substr(file.size() - 22);
  const std::string end64 = "PK\6\6" + Number(44, 8) + Number(0x2d002d, 4) + Number(0, 8) +
                            Number(uint64_t{1} << 60, 8) + Number(uint64_t{1} << 60, 8) +
                            Number(uint64_t{46} << 50, 8) + Number(0, 8);
  const size_t at = file.size() - 22;
  file.resize(at);
  file += end64 + "PK\6\7" + Number(0, 4) + Number(at, 8) + Number(1, 4) + "PK\5\6" + Number(0, 4) +
          Number(UINT64_MAX, 8) + Number(UINT64_MAX, 4) + Number(0, 2);
  EXPECT_THAT(LoadError(file), HasSubstr("directory is larger than the file"));
}

// A dict with 100001 empty dicts, all under the same long key.
TEST(PyTorch, ManyDictsTakeLittleMemory) {
  std::string dicts = "}(" + Str(std::string(200, 'k')) + "q" + Number(0, 1) + "}";
  for (int i = 0; i < 100000; ++i) dicts += "h" + Number(0, 1) + "}";
  EXPECT_THAT(LoadError(Archive(Dict({{std::string(200, 'a'), dicts + "u"}}))),
              HasSubstr("more than 10000 dicts"));
  EXPECT_THAT(LoadError(Archive(std::string(5 << 20, '}'))), HasSubstr("larger than 4 MiB"));
}

// A hostile name may be long and contain newlines and escape sequences.
TEST(PyTorch, MessagesStayOneLine) {
  const std::string error =
      LoadError(Archive(Dict({{"a\nb\x1b[1m" + std::string(1000, 'c'), Floats("0", 5)}})));
  EXPECT_THAT(error, HasSubstr("'a?b?[1mccc"));
  EXPECT_LT(error.size(), 300u);
}

// Returns whether the file is accepted; a refusal is fine, a crash is not.
bool Survives(const std::string& file) {
  try {
    double sum = 0;
    const PyTorchFile loaded = Load(file);
    for (const Tensor& tensor : loaded.tensors()) {
      for (std::byte b : tensor.data) sum += std::to_integer<int>(b);
    }
    EXPECT_GE(sum, 0);
    return true;
  } catch (const InputError& error) {
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    return false;
  }
}

TEST(PyTorch, SurvivesDamageToTheArchive) {
  const std::string whole =
      Archive(Dict({{"x", Rebuild(kSix, 0, {3, 2}, {1, 3})},
                    {"y", Rebuild(Storage("LongStorage", "1", 2), 0, {2}, {1})}}));
  ASSERT_TRUE(Survives(whole));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(Survives(whole.substr(0, size))) << size;
  }
  size_t refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int change : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ change);
      refused += !Survives(changed);
    }
  }
  EXPECT_GT(refused, 1000u);
}

// Tries every value of every byte of the pickle, in archives with correct checksums.
TEST(PyTorch, SurvivesDamageToThePickle) {
  const std::string value =
      Dict({{"a", Dict({{"x", Rebuild(kSix, 0, {3, 2}, {1, 3})}}) + "q" + Number(0, 1)},
            {"b", "h" + Number(0, 1)},
            {"c", "](K\1M\1\1NG" + Number(0, 8) + "e\x85"}});
  const std::string whole = Protocol2(value);
  size_t refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = whole;
      changed[i] = static_cast<char>(byte);
      const std::string file = Archive(changed.substr(2, changed.size() - 3));
      refused += i >= 2 && i + 1 < whole.size() && !Survives(file);
    }
    const std::string cut = whole.substr(0, i);
    EXPECT_THAT(ErrorOf([&] { Pickle(cut, "memory"); }), StartsWith("input: ")) << i;
  }
  EXPECT_GT(refused, 1000u);
}

TEST(Pickle, SurvivesDamageToPicklesOfTorch) {
  const std::string file = ReadFile("tests/golden/image_model.pth");
  const size_t begin = file.find("\x80\x02"), end = file.find("sb.", begin) + 3;
  const std::string whole = file.substr(begin, end - begin);
  ASSERT_EQ(Pickle(whole, "memory").tensors().size(), 38u);
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int change : {1, 8, 64, 255}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ change);
      const std::string error = ErrorOf([&] { Pickle(changed, "memory"); });
      EXPECT_TRUE(error.empty() || error.rfind("input: ", 0) == 0) << error;
    }
  }
}

}  // namespace
}  // namespace linnet
