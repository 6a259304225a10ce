#include "linnet/tasks/images/mnist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string Images(uint32_t count, uint32_t side = 28) {
  return std::string("\0\0\x08\x03", 4) + BigEndian(count) + BigEndian(side) + BigEndian(side) +
         std::string(size_t{count} * side * side, 'p');
}

std::string Labels(const std::string& labels) {
  return std::string("\0\0\x08\x01", 4) + BigEndian(static_cast<uint32_t>(labels.size())) + labels;
}

TEST(Mnist, ReadsTheRealFiles) {
  const std::string dir = TestData("mnist");
  if (dir.empty()) GTEST_SKIP() << "no mnist under $LINNET_DATA";
  const ImageSet train = LoadImages("mnist", dir, Split::kTrain);
  EXPECT_EQ(train.size(), 60000u);
  EXPECT_EQ(train.pixels.size(), 60000u * 784);
  EXPECT_EQ(train.labels[0], 5);
  const ImageSet test = LoadImages("", dir, Split::kTest);
  EXPECT_EQ(test.name, "mnist");
  EXPECT_EQ(test.size(), 10000u);
  EXPECT_EQ(test.labels[0], 7);
  EXPECT_EQ(test.width, 28);
  EXPECT_EQ(test.height, 28);
  EXPECT_EQ(test.channels, 1);
  // The well-known mean of the training pixels, 0.1307 of 255.
  const uint64_t sum = std::accumulate(train.pixels.begin(), train.pixels.end(), uint64_t{0});
  EXPECT_NEAR(static_cast<double>(sum) / static_cast<double>(train.pixels.size()) / 255, 0.1307,
              0.0001);
  EXPECT_EQ(train.image(1).data(), train.pixels.data() + 784);
}

TEST(Mnist, AcceptsBothSpellings) {
  for (const char* separator : {"-", "."}) {
    TempDir dir;
    WriteFileAtomically(dir / StrCat("t10k-images", separator, "idx3-ubyte"), Images(2));
    WriteFileAtomically(dir / StrCat("t10k-labels", separator, "idx1-ubyte"), Labels("\x01\x09"));
    const ImageSet set = LoadImages("", dir.path(), Split::kTest);
    EXPECT_EQ(set.size(), 2u);
    EXPECT_EQ(set.image(1).size(), 784u);
    EXPECT_EQ(set.image(1)[783], 'p');
    EXPECT_THAT(ErrorOf([&] { LoadImages("", dir.path(), Split::kTrain); }),
                HasSubstr("train-images-idx3-ubyte[.gz]: no such file"));
  }
}

TEST(Mnist, RefusesImagesAndLabelsOfDifferentCounts) {
  const auto refusal = [](const std::string& images, const std::string& labels) {
    TempDir dir;
    WriteFileAtomically(dir / "train-images-idx3-ubyte", images);
    WriteFileAtomically(dir / "train-labels-idx1-ubyte", labels);
    return ErrorOf([&] { LoadImages("mnist", dir.path(), Split::kTrain); });
  };
  EXPECT_EQ(refusal(Images(1), Labels("\x01")), "");
  EXPECT_THAT(refusal(Images(2), Labels("\x01")), HasSubstr("holds 1 labels for 2 images"));
  EXPECT_THAT(refusal(Images(1, 27), Labels("\x01")), HasSubstr("not images of 28 x 28"));
  EXPECT_THAT(refusal(Labels("\x01"), Labels("\x01")), HasSubstr("not images of 28 x 28"));
  EXPECT_THAT(refusal(Images(1), Images(1)), HasSubstr("not a list of labels"));
  EXPECT_THAT(refusal(Images(1), Labels("\x0a")), HasSubstr("labels above 9"));
  EXPECT_THAT(refusal(Images(0), Labels("")), HasSubstr("holds no images"));
  EXPECT_THAT(refusal(Images(1).substr(0, 100), Labels("\x01")),
              AllOf(HasSubstr("train-images"), HasSubstr("truncated")));
}

TEST(ImageDatasets, AreFoundByName) {
  EXPECT_STREQ(FindImageDataset("mnist").name, "mnist");
  EXPECT_THAT(ErrorOf([] { FindImageDataset("mnits"); }),
              AllOf(HasSubstr("'mnits'"), HasSubstr("mnist")));
  TempDir dir;
  EXPECT_THAT(ErrorOf([&] { LoadImages("", dir.path(), Split::kTest); }),
              AllOf(HasSubstr(dir.path()), HasSubstr("t10k-images-idx3-ubyte")));
  EXPECT_THAT(ErrorOf([&] { LoadImages("mnist", dir / "none", Split::kTest); }),
              HasSubstr("no such folder"));
  for (const ImageDataset& dataset : ImageDatasets()) EXPECT_FALSE(dataset.present(dir.path()));
}

}  // namespace
}  // namespace linnet
