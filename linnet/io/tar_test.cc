#include "linnet/io/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::HasSubstr;

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

TEST(Tar, ReadsPlainFilesOnly) {
  const auto archive = Bytes(TestTar({{"a/", "", '5'},
                                      {"a/one.bin", std::string(513, 'x'), '0'},
                                      {"a/link", "", '2'},
                                      {"a/empty", "", '0'}}));
  const auto files = ReadTar(archive, "t.tar");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name, "a/one.bin");
  EXPECT_EQ(files[0].bytes.size(), 513u);
  EXPECT_EQ(files[0].bytes[512], 'x');
  EXPECT_EQ(files[1].name, "a/empty");
  EXPECT_TRUE(files[1].bytes.empty());
}

TEST(Tar, RefusesBadArchives) {
  const std::string good = TestTar({{"one", std::string(700, 'x'), '0'}});
  const auto refusal = [](std::string text) {
    const auto archive = Bytes(text);
    return ErrorOf([&] { ReadTar(archive, "t.tar"); });
  };
  EXPECT_EQ(refusal(good), "");
  EXPECT_THAT(refusal(""), HasSubstr("t.tar: not a tar archive"));
  EXPECT_THAT(refusal(std::string(2000, 'y')), HasSubstr("not a tar archive"));
  EXPECT_THAT(refusal(good.substr(0, 900)), HasSubstr("truncated within one"));
  EXPECT_THAT(refusal(good.substr(0, 1536)), HasSubstr("end is missing"));
  std::string flipped = good;
  flipped[1536] = 1;  // in the zeros at the end
  EXPECT_THAT(refusal(flipped), HasSubstr("checksum"));
  std::string huge = good;
  huge.replace(124, 11, "77777777777");
  EXPECT_THAT(refusal(huge), HasSubstr("not a tar archive"));  // its checksum is now wrong
  EXPECT_THAT(refusal(TestTar({{"././@LongLink", "name", 'L'}, {"name", "x", '0'}})),
              HasSubstr("names that do not fit into a header"));
  EXPECT_THAT(refusal(TestTar({{"PaxHeaders/name", "13 path=name\n", 'x'}, {"name", "x", '0'}})),
              HasSubstr("names that do not fit into a header"));
  EXPECT_EQ(refusal(TestTar({{"PaxHeaders/name", "9 mtime=1\n", 'x'}, {"name", "x", '0'}})), "");
  // Truncated archives and flipped bits may throw, but must not crash.
  for (size_t size = 0; size < good.size(); size += 37) refusal(good.substr(0, size));
  for (size_t at = 0; at < 600; ++at) {
    std::string odd = good;
    odd[at] = static_cast<char>(odd[at] ^ 0x15);
    refusal(odd);
  }
}

TEST(Tar, UnpacksAFolder) {
  TempDir dir;
  const auto archive =
      Bytes(TestTar({{"a/x/one", "1", '0'}, {"a/two", "22", '0'}, {"b", "", '0'}}));
  EXPECT_EQ(UnpackTar(archive, "t.tar", "a/", dir / "out"), 2u);
  EXPECT_EQ(ReadFile(dir / "out/x/one"), "1");
  EXPECT_EQ(ReadFile(dir / "out/two"), "22");
  EXPECT_FALSE(std::filesystem::exists(dir / "out/b"));
  WriteFileAtomically(dir / "out/two", "old");
  const auto before = std::filesystem::last_write_time(dir / "out/x/one");
  EXPECT_EQ(UnpackTar(archive, "t.tar", "a/", dir / "out"), 2u);
  EXPECT_EQ(ReadFile(dir / "out/two"), "22");
  EXPECT_EQ(std::filesystem::last_write_time(dir / "out/x/one"), before);
}

TEST(Tar, UnpacksNothingOutsideTheFolder) {
  TempDir dir;
  for (const char* name : {"a/../../evil", "a//etc/evil", "a/x/../evil", "a/"}) {
    const auto archive = Bytes(TestTar({{"a/good", "1", '0'}, {name, "2", '0'}}));
    EXPECT_THAT(ErrorOf([&] { UnpackTar(archive, "t.tar", "a/", dir / "out"); }),
                HasSubstr("t.tar: contains the unsafe file name a/"))
        << name;
  }
  const auto archive = Bytes(TestTar({{"b/good", "1", '0'}}));
  EXPECT_THAT(ErrorOf([&] { UnpackTar(archive, "t.tar", "a/", dir / "out"); }),
              HasSubstr("t.tar: contains no files in a/"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
}

}  // namespace
}  // namespace linnet
