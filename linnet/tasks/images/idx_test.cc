#include "linnet/tasks/images/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kTwoByThree("\0\0\x08\x02\0\0\0\x02\0\0\0\x03\x01\x02\x03\x04\x05\xff", 18);

// The error message for a file with these bytes.
std::string Refusal(const std::string& bytes) {
  TempDir dir;
  WriteFileAtomically(dir / "a", bytes);
  const std::string message = ErrorOf([&] { ReadIdx(dir / "a"); });
  EXPECT_THAT(message, StartsWith(StrCat("input: ", dir / "a", ": ")));
  return message;
}

TEST(Idx, ReadsPlainAndGzipped) {
  TempDir dir;
  WriteFileAtomically(dir / "plain", kTwoByThree);
  gzFile file = gzopen((dir / "packed").c_str(), "wb");
  gzwrite(file, kTwoByThree.data(), static_cast<unsigned>(kTwoByThree.size()));
  gzclose(file);
  for (const char* name : {"plain", "packed"}) {
    const IdxArray array = ReadIdx(dir / name);
    EXPECT_THAT(array.shape, ElementsAre(2, 3));
    EXPECT_THAT(array.data, ElementsAre(1, 2, 3, 4, 5, 255));
  }
}

TEST(Idx, RefusesBadFiles) {
  TempDir dir;
  EXPECT_THAT(ErrorOf([&] { ReadIdx(dir / "missing"); }), HasSubstr("no such file"));
  for (size_t size = 0; size < kTwoByThree.size(); ++size) {
    EXPECT_THAT(Refusal(kTwoByThree.substr(0, size)), HasSubstr(": truncated")) << size;
  }
  EXPECT_THAT(Refusal(kTwoByThree.substr(0, 15)),
              HasSubstr("its header promises 2 x 3 bytes (6 B) but 3 B follow"));
  EXPECT_THAT(Refusal(kTwoByThree + "x"), HasSubstr("(6 B) but 7 B follow"));
  EXPECT_THAT(Refusal("<html>not found</html>"), HasSubstr("not an IDX file"));
  EXPECT_THAT(Refusal(std::string("\0\0\x0d\x01\0\0\0\x01\0\0\0\0", 12)), HasSubstr("type 13"));
  EXPECT_THAT(Refusal(std::string("\0\0\x08\0x", 5)), HasSubstr("not an IDX file"));
}

// Headers that claim almost 2^32 x 2^32 and (2^31)^4 elements: the number of elements must not
// overflow to a small one.
TEST(Idx, RefusesAbsurdShapes) {
  const std::string huge("\xff\xff\xff\xff", 4);
  EXPECT_THAT(Refusal(std::string("\0\0\x08\x02", 4) + huge + huge), HasSubstr("truncated"));
  const std::string two31("\x80\0\0\0", 4);
  EXPECT_THAT(Refusal(std::string("\0\0\x08\x04", 4) + two31 + two31 + two31 + two31),
              HasSubstr("truncated"));
}

}  // namespace
}  // namespace linnet
