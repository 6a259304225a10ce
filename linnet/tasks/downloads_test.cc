#include "linnet/tasks/downloads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

void CheckSum(const RemoteFile& file) {
  EXPECT_THAT(file.sha256, MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(file.sha256.size(), 64u);
}

TEST(Downloads, EntriesAreWellFormed) {
  for (const DownloadableSet& set : DownloadableSets()) {
    SCOPED_TRACE(set.name);
    EXPECT_FALSE(set.files.empty());
    EXPECT_FALSE(set.mirrors.empty());
    EXPECT_THAT(set.next, HasSubstr("DIR"));
    EXPECT_FALSE(set.terms.empty());
    bool checked = true;  // every downloaded file has a checksum
    for (const RemoteFile& file : set.files) {
      EXPECT_THAT(file.name, MatchesRegex("[a-z0-9._-]+"));
      EXPECT_TRUE(file.size > 0 || !set.unpack.empty());
      checked = checked && !file.sha256.empty();
      if (!file.sha256.empty()) CheckSum(file);
    }
    if (!checked) {
      CheckSum(set.contains);
      EXPECT_GT(set.contains.size, 0u);
    }
    // Without a checksum, only https shows that the files are genuine.
    for (const std::string& mirror : set.mirrors) {
      EXPECT_THAT(mirror, checked ? StartsWith("http") : StartsWith("https://"));
      EXPECT_THAT(mirror, EndsWith("/"));
    }
  }
}

TEST(Downloads, NamesAreThoseThatTheReadersExpect) {
  for (const DownloadableSet& set : DownloadableSets()) {
    if (set.next.starts_with("linnet train text")) {  // training on text reads one file
      ASSERT_EQ(set.files.size(), 1u);
      EXPECT_THAT(set.next, HasSubstr("--data DIR/" + set.files[0].name + " "));
      continue;
    }
    if (!set.unpack.empty()) continue;  // linnet reads the unpacked files, not the download
    TempDir dir;
    for (const RemoteFile& file : set.files) WriteFileAtomically(dir / file.name, "");
    EXPECT_TRUE(FindImageDataset(set.name).present(dir.path())) << set.name;
  }
}

TEST(Downloads, SizesAreThoseOfTheRealFiles) {
  for (const DownloadableSet& set : DownloadableSets()) {
    const std::string folder = set.name == "shakespeare" ? "tinyshakespeare" : set.name;
    for (const RemoteFile& file : set.files) {
      const std::string path = TestData(folder + "/" + file.name);
      if (path.empty() || file.size == 0) continue;
      EXPECT_EQ(MappedFile(path).bytes().size(), file.size) << path;
    }
  }
}

}  // namespace
}  // namespace linnet
