#include "linnet/io/gzip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"
#include "linnet/rng.h"

namespace linnet {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<uint8_t> Noise(size_t size) {
  Philox rng(1);
  std::vector<uint8_t> noise(size);
  for (uint8_t& byte : noise) byte = static_cast<uint8_t>(rng.Below(20));
  return noise;
}

// Writes `bytes` gzipped and returns the compressed bytes.
std::string WriteGzip(const std::string& path, const std::vector<uint8_t>& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return ReadFile(path);
}

TEST(Gzip, ReadsGzippedPlainAndConcatenated) {
  TempDir dir;
  for (size_t size : {0u, 1u, 1000u, 1u << 18, (1u << 18) + 1, 1000003u}) {
    const std::vector<uint8_t> bytes = Noise(size);
    const std::string packed = WriteGzip(dir / "a", bytes);
    EXPECT_EQ(ReadGzipOrPlain(dir / "a", size), bytes);
    WriteFileAtomically(dir / "plain", std::as_bytes(std::span(bytes)));
    EXPECT_EQ(ReadGzipOrPlain(dir / "plain", size), bytes);

    WriteFileAtomically(dir / "twice", packed + packed);
    std::vector<uint8_t> twice = bytes;
    twice.insert(twice.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(ReadGzipOrPlain(dir / "twice", 2 * size), twice);
  }
}

TEST(Gzip, RefusesMoreThanExpected) {
  TempDir dir;
  WriteGzip(dir / "a", std::vector<uint8_t>(10000000));  // a few kB compressed
  EXPECT_THAT(ErrorOf([&] { ReadGzipOrPlain(dir / "a", 9999999); }),
              HasSubstr("holds more than 10.0 MB"));
  WriteFileAtomically(dir / "plain", "1234");
  EXPECT_THAT(ErrorOf([&] { ReadGzipOrPlain(dir / "plain", 3); }), HasSubstr("holds more than"));
}

TEST(Gzip, RefusesEveryTruncation) {
  TempDir dir;
  const std::string packed = WriteGzip(dir / "a", Noise(500));
  for (size_t size = 2; size < packed.size(); ++size) {
    WriteFileAtomically(dir / "cut", packed.substr(0, size));
    EXPECT_THAT(ErrorOf([&] { ReadGzipOrPlain(dir / "cut", 1 << 20); }),
                StartsWith(StrCat("input: ", dir / "cut", ": truncated")))
        << size;
  }
}

TEST(Gzip, RefusesCorruptData) {
  TempDir dir;
  const std::vector<uint8_t> bytes = Noise(500);
  const std::string packed = WriteGzip(dir / "a", bytes);
  for (size_t i = 10; i < packed.size(); ++i) {  // after the header, which holds no data
    std::string flipped = packed;
    flipped[i] ^= 0x10;
    WriteFileAtomically(dir / "flipped", flipped);
    EXPECT_THAT(ErrorOf([&] { ReadGzipOrPlain(dir / "flipped", 1 << 20); }),
                AnyOf(HasSubstr(": corrupt"), HasSubstr(": truncated")))
        << i;
  }
  WriteFileAtomically(dir / "tail", packed + "tail");
  EXPECT_THAT(ErrorOf([&] { ReadGzipOrPlain(dir / "tail", 1 << 20); }),
              HasSubstr("4 B follow the end"));
}

}  // namespace
}  // namespace linnet
