#include "linnet/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A file with the given header and `data_bytes` zeros.
std::string FileOf(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(file.data(), &size, 8);
  return file + header + std::string(data_bytes, '\0');
}

SafetensorsFile Parse(const std::string& file) {
  return SafetensorsFile::FromMemory(std::as_bytes(std::span(file)), "memory");
}

std::string ParseError(const std::string& file) {
  return ErrorOf([&] { Parse(file); });
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(DTypeSize(DType::kF32), 4u);
  EXPECT_EQ(DTypeSize(DType::kBF16), 2u);
  EXPECT_EQ(DTypeSize(DType::kI64), 8u);
  EXPECT_STREQ(DTypeName(DType::kBool), "BOOL");
}

TEST(Safetensors, RoundTrip) {
  TempDir dir;
  const std::string path = dir / "a.safetensors";
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> steps = {-1, 1LL << 40};
  const std::vector<uint8_t> bytes = {7, 8, 9};
  const float scalar = 0.5f;
  SafetensorsWriter writer;
  writer.SetMetadata("linnet", R"({"layers": 4, "text": "a \"quoted\" ü"})");
  writer.Add("bytes", DType::kU8, {3}, bytes.data());
  writer.Add("weight", DType::kF32, {2, 3}, weight.data());
  writer.Add("none", DType::kF32, {0, 5}, nullptr);
  writer.Add("steps", DType::kI64, {2}, steps.data());
  writer.Add("scalar", DType::kF32, {}, &scalar);
  writer.Write(path);
  EXPECT_EQ(dir.Entries(), 1);

  SafetensorsFile opened = SafetensorsFile::Open(path);
  const SafetensorsFile file = std::move(opened);  // the tensors' data stays valid
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.metadata().at("linnet"), R"({"layers": 4, "text": "a \"quoted\" ü"})");
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.tensors()[0].name, "steps");
  EXPECT_EQ(file.tensors()[4].name, "bytes");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensors()[0].data.data()) % 64, 0u);
  EXPECT_THAT(file.Get("weight").f32(), ::testing::ElementsAreArray(weight));
  EXPECT_THAT(file.Get("weight").shape, ElementsAre(2, 3));
  EXPECT_THAT(file.Get("steps").i64(), ElementsAre(-1, 1LL << 40));
  EXPECT_THAT(file.Get("bytes").values<uint8_t>(), ElementsAre(7, 8, 9));
  EXPECT_THAT(file.Get("scalar").f32(), ElementsAre(0.5f));
  EXPECT_EQ(file.Get("scalar").numel(), 1);
  EXPECT_EQ(file.Get("none").numel(), 0);
  EXPECT_TRUE(file.Get("none").f32().empty());
  EXPECT_EQ(file.Find("nothing"), nullptr);

  const std::string text = ReadFile(path);
  uint64_t header_bytes;
  std::memcpy(&header_bytes, text.data(), 8);
  EXPECT_EQ((8 + header_bytes) % 64, 0u);
}

TEST(Safetensors, WritesOneTypeInTheOrderAdded) {
  TempDir dir;
  const float x[2] = {1, 2};
  SafetensorsWriter writer;
  for (const char* name : {"z", "a", "m"}) writer.Add(name, DType::kF32, {2}, x);
  writer.Write(dir / "a");
  const SafetensorsFile file = SafetensorsFile::Open(dir / "a");
  std::string names;
  for (const Tensor& tensor : file.tensors()) names += tensor.name;
  EXPECT_EQ(names, "zam");
}

TEST(Safetensors, EmptyFile) {
  TempDir dir;
  SafetensorsWriter().Write(dir / "a");
  EXPECT_TRUE(SafetensorsFile::Open(dir / "a").tensors().empty());
  EXPECT_TRUE(Parse(FileOf("{}", 0)).tensors().empty());
}

TEST(Safetensors, ErrorsNameFileAndTensor) {
  TempDir dir;
  const float x = 1;
  SafetensorsWriter writer;
  writer.Add("x", DType::kF32, {1}, &x);
  writer.Write(dir / "a");
  const SafetensorsFile file = SafetensorsFile::Open(dir / "a");
  EXPECT_THAT(ErrorOf([&] { file.Get("layers.0.norm"); }),
              StartsWith(StrCat("input: ", dir / "a", ": no tensor 'layers.0.norm'")));
  EXPECT_THAT(ErrorOf([&] { file.Get("x").i64(); }),
              StartsWith(StrCat("input: ", dir / "a", ": tensor 'x' is F32 where I64")));
  EXPECT_THAT(ErrorOf([&] { SafetensorsFile::Open(dir / "b"); }), HasSubstr("no such file"));
  EXPECT_THAT(ErrorOf([&] { writer.Write(dir / "no/a"); }), HasSubstr("does not exist"));
}

TEST(SafetensorsWriter, RefusesInvalidTensors) {
  const float x = 1;
  SafetensorsWriter writer;
  writer.Add("x", DType::kF32, {1}, &x);
  EXPECT_THAT(ErrorOf([&] { writer.Add("x", DType::kF32, {1}, &x); }), HasSubstr("two tensors"));
  EXPECT_THAT(ErrorOf([&] { writer.Add("__metadata__", DType::kF32, {1}, &x); }),
              HasSubstr("'__metadata__': the format reserves this name"));
  EXPECT_THAT(ErrorOf([&] { writer.Add("y", DType::kF32, {-1}, &x); }), HasSubstr("[-1]"));
  TempDir dir;
  writer.SetMetadata("text", "\xff");
  EXPECT_THAT(ErrorOf([&] { writer.Write(dir / "a"); }), HasSubstr("UTF-8"));
  EXPECT_EQ(dir.Entries(), 0);
}

// Floats are aligned even after an odd header length or a byte tensor.
TEST(Safetensors, RealignsOddData) {
  const float values[2] = {1.5f, -2.0f};
  std::string file = FileOf(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                            R"("x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})",
                            9);
  std::memcpy(file.data() + file.size() - 8, values, 8);
  for (size_t shift = 0; shift < 4; ++shift) {
    const std::string shifted = std::string(shift, ' ') + file;
    const SafetensorsFile loaded =
        SafetensorsFile::FromMemory(std::as_bytes(std::span(shifted)).subspan(shift), "memory");
    const std::span<const float> x = loaded.Get("x").f32();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data()) % 4, 0u);
    EXPECT_THAT(x, ElementsAre(1.5f, -2.0f));
  }
}

TEST(Safetensors, TruncatedFilesNameTheFault) {
  const std::string file =
      FileOf(R"({"x":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4000000]}})", 1200);
  EXPECT_EQ(ParseError(file),
            "input: memory: truncated: its header promises 4.00 MB of tensors but the file holds "
            "1.20 kB; copy or download it again");
  EXPECT_THAT(ParseError(""), HasSubstr("truncated"));
  EXPECT_THAT(ParseError("GIF89a and so on"), HasSubstr("not a safetensors file"));
}

TEST(Safetensors, RefusesHostileHeaders) {
  const std::string tower(50000, '[');
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON"},
      {"[]", "not a JSON object"},
      {"7", "not a JSON object"},
      {"null", "not a JSON object"},
      {"{", "not valid JSON"},
      {"{}x", "not valid JSON"},
      {"{\"\xff\":1}", "not valid JSON"},
      {R"({"x":1e999})", "not valid JSON"},
      {tower, "nested too deeply"},
      {R"({"x":)" + tower, "nested too deeply"},
      {R"({"x":1})", "has no dtype"},
      {R"({"x":[]})", "has no dtype"},
      {R"({"x":{}})", "has no dtype"},
      {R"({"x":{"dtype":5,"shape":[1],"data_offsets":[0,4]}})", "has no dtype"},
      {R"({"x":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "dtype 'F33'"},
      {R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", "has no shape"},
      {R"({"x":{"dtype":"F32","shape":4,"data_offsets":[0,4]}})", "has no shape"},
      {R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "whole numbers"},
      {R"({"x":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "whole numbers"},
      {R"({"x":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "whole numbers"},
      {R"({"x":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})",
       "whole numbers"},
      {R"({"x":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}})",
       "whole numbers"},
      {R"({"x":{"dtype":"F32","shape":[1]}})", "no data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "no data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "no data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "no data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "disagree"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "disagree"},
      {R"({"x":{"dtype":"F64","shape":[1],"data_offsets":[0,4]}})", "disagree"},
      // The sizes of the next two tensors are 2^64 bytes, which would wrap to 0.
      {R"({"x":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", "disagree"},
      {R"({"x":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "disagree"},
      {R"({"x":{"dtype":"U8","shape":[9223372036854775807],)"
       R"("data_offsets":[0,9223372036854775807]}})",
       "truncated"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0]}})", "disagree"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "does not follow"},
      {R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "1 B follow the last tensor"},
      {R"({})", "4 B follow the last tensor"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "truncated"},
      {R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
       R"("y":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "overlaps"},
      {R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("y":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       "overlaps"},
      {R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       "'x' twice"},
      {R"({"x":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", "'dtype' twice"},
      {R"({"__metadata__":5})", "not a map of strings"},
      {R"({"__metadata__":{"a":1}})", "not a map of strings"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", "not a map of strings"},
  };
  for (const auto& [header, message] : cases) {
    const std::string error = ParseError(FileOf(header, 4));
    EXPECT_THAT(error, AllOf(StartsWith("input: memory: "), HasSubstr(message)))
        << header.substr(0, 100);
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

TEST(Safetensors, MessagesShortenManyDimensions) {
  std::string ones = "1";
  for (int i = 0; i < 100000; ++i) ones += ",1";
  EXPECT_THAT(ParseError(FileOf(
                  R"({"a":{"dtype":"F32","shape":[)" + ones + R"(],"data_offsets":[0,4]}})", 4)),
              HasSubstr("'a' has 100001 dimensions"));
  const std::vector<int64_t> shape(100000, 1);
  EXPECT_LT(FormatShape(shape).size(), 300u);
}

TEST(Safetensors, MessagesStayOneLine) {
  const std::string error = ParseError(FileOf(
      R"({"a\nb)" + std::string(1000, 'c') + R"(":{"dtype":"F\n\u001b[1m","shape":[]}})", 0));
  EXPECT_THAT(error, HasSubstr("'a?b"));
  EXPECT_EQ(error.find('\n'), std::string::npos);
  EXPECT_EQ(error.find('\x1b'), std::string::npos);
  EXPECT_LT(error.size(), 300u);
}

// Any truncation is refused; any flipped bit is refused or harmless, never a crash.
TEST(Safetensors, SurvivesDamage) {
  TempDir dir;
  const float x[6] = {1, 2, 3, 4, 5, 6};
  const int64_t y[2] = {1, 2};
  SafetensorsWriter writer;
  writer.SetMetadata("linnet", "{}");
  writer.Add("layer.weight", DType::kF32, {2, 3}, x);
  writer.Add("y", DType::kI64, {2}, y);
  writer.Write(dir / "a");
  const std::string whole = ReadFile(dir / "a");
  ASSERT_EQ(ParseError(whole), "");

  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(ParseError(whole.substr(0, size)), StartsWith("input: memory: ")) << size;
  }
  size_t refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[i] ^= static_cast<char>(1 << bit);
      try {
        double sum = 0;
        const SafetensorsFile file = Parse(flipped);
        for (const Tensor& tensor : file.tensors()) {
          for (std::byte b : tensor.data) sum += std::to_integer<int>(b);
        }
        EXPECT_GT(sum, 0);
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace linnet
