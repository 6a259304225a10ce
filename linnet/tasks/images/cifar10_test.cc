#include "linnet/tasks/images/cifar10.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The record of an image: its label, then for channel c and pixel p the byte label + 50 c + p,
// modulo 256.
std::string Picture(int label) {
  std::string record(1, static_cast<char>(label));
  for (int c = 0; c < 3; ++c) {
    for (int p = 0; p < 1024; ++p) record += static_cast<char>(label + 50 * c + p);
  }
  return record;
}

void Check(const ImageSet& set, std::vector<uint8_t> labels) {
  EXPECT_EQ(set.name, "cifar10");
  EXPECT_EQ(set.labels, labels);
  EXPECT_EQ(set.image_bytes(), 3072u);
  for (size_t i = 0; i < set.size(); ++i) {
    for (size_t p : {0u, 1u, 31u, 32u, 1023u}) {
      for (size_t c = 0; c < 3; ++c) {
        EXPECT_EQ(set.image(i)[p * 3 + c], static_cast<uint8_t>(labels[i] + 50 * c + p));
      }
    }
  }
}

TEST(Cifar10, ReadsLooseBatches) {
  for (const std::string below : {"", "cifar-10-batches-bin/"}) {
    TempDir dir;
    std::filesystem::create_directories(dir / below);
    for (int i = 1; i <= 5; ++i) {
      WriteFileAtomically(dir / (below + StrCat("data_batch_", i, ".bin")),
                          Picture(i) + Picture(9 - i));
    }
    Check(LoadImages("", dir.path(), Split::kTrain), {1, 8, 2, 7, 3, 6, 4, 5, 5, 4});
    EXPECT_THAT(ErrorOf([&] { LoadImages("", dir.path(), Split::kTest); }),
                HasSubstr("test_batch.bin: no such file"));
    WriteFileAtomically(dir / (below + "test_batch_first1000.bin"), Picture(3));
    Check(LoadImages("", dir.path(), Split::kTest), {3});
    WriteFileAtomically(dir / (below + "test_batch.bin"), Picture(2) + Picture(0));
    Check(LoadImages("cifar10", dir.path(), Split::kTest), {2, 0});
  }
}

TEST(Cifar10, ReadsTheArchive) {
  TempDir dir;
  std::vector<TestTarEntry> entries = {{"cifar-10-batches-bin/", "", '5'}};
  for (int i = 5; i >= 1; --i) {
    entries.push_back({StrCat("cifar-10-batches-bin/data_batch_", i, ".bin"), Picture(i), '0'});
  }
  const auto write = [&] {
    const std::string tar = TestTar(entries);
    gzFile file = gzopen((dir / "cifar-10-binary.tar.gz").c_str(), "wb");
    gzwrite(file, tar.data(), static_cast<unsigned>(tar.size()));
    gzclose(file);
  };
  write();
  Check(LoadImages("", dir.path(), Split::kTrain), {1, 2, 3, 4, 5});
  EXPECT_THAT(
      ErrorOf([&] { LoadImages("", dir.path(), Split::kTest); }),
      AllOf(HasSubstr("cifar-10-binary.tar.gz"), HasSubstr("no cifar-10-batches-bin/test")));
  entries.push_back({"cifar-10-batches-bin/test_batch.bin", Picture(7), '0'});
  write();
  Check(LoadImages("", dir.path(), Split::kTest), {7});
}

TEST(Cifar10, RefusesBadBatches) {
  const auto refusal = [](const std::string& batch) {
    TempDir dir;
    WriteFileAtomically(dir / "test_batch.bin", batch);
    return ErrorOf([&] { LoadImages("cifar10", dir.path(), Split::kTest); });
  };
  EXPECT_EQ(refusal(Picture(1)), "");
  EXPECT_THAT(refusal(""), HasSubstr("test_batch.bin: holds 0 bytes"));
  EXPECT_THAT(refusal(Picture(1) + "x"), HasSubstr("not a whole number of 3073-byte images"));
  EXPECT_THAT(refusal(Picture(1) + Picture(10)), HasSubstr("image 1 has the label 10"));
  TempDir empty;
  EXPECT_THAT(ErrorOf([&] { LoadImages("cifar10", empty.path(), Split::kTrain); }),
              AllOf(HasSubstr("data_batch_1.bin"), HasSubstr("tar.gz")));
}

// Compares with the well-known per-channel means of CIFAR-10's training pixels, scaled to [0, 1].
TEST(Cifar10, ReadsTheRealFiles) {
  const std::string dir = TestData("cifar10");
  if (dir.empty() || !kCifar10.present(dir)) GTEST_SKIP() << "no cifar10/*.bin in $LINNET_DATA";
  const ImageSet train = LoadImages("", dir, Split::kTrain);
  ASSERT_EQ(train.size(), 50000u);
  double sums[3] = {};
  for (size_t i = 0; i < train.pixels.size(); ++i) sums[i % 3] += train.pixels[i];
  const double want[3] = {0.4914, 0.4822, 0.4465};
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(sums[c] / (50000.0 * 1024) / 255, want[c], 0.0001);
}

}  // namespace
}  // namespace linnet
