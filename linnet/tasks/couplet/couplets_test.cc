#include "linnet/tasks/couplet/couplets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "linnet/error.h"

namespace linnet {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Couplets : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_ / "train"); }
  void TearDown() override { fs::remove_all(dir_); }

  void Write(const std::string& part, const std::string& in, const std::string& out) {
    fs::create_directories(dir_ / part);
    std::ofstream(dir_ / part / "in.txt") << in;
    std::ofstream(dir_ / part / "out.txt") << out;
  }
  std::string ErrorOf(CoupletSplit split = CoupletSplit::kTrain) {
    try {
      LoadCouplets(dir_, split);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const fs::path dir_ = fs::temp_directory_path() / ("linnet_couplets." + std::to_string(getpid()));
};

TEST_F(Couplets, ReadsPairsWithoutBlanks) {
  Write("train", "海 上 明 月\n风 ， 雨 \r\n一 二\n\n", "山 中 清 风\n花 ， 鸟\n三\n\n");
  Write("valid", "天\n", "地\n");
  const CoupletSet train = LoadCouplets(dir_, CoupletSplit::kTrain);
  ASSERT_EQ(train.pairs.size(), 2u);
  EXPECT_EQ(train.pairs[0].first, "海上明月");
  EXPECT_EQ(train.pairs[1].second, "花，鸟");
  EXPECT_EQ(train.left_out, 2u);  // a pair of lines of different lengths, a pair of empty lines
  EXPECT_EQ(LoadCouplets(dir_, CoupletSplit::kValidation).pairs[0].second, "地");
  EXPECT_EQ(LoadCouplets(dir_, CoupletSplit::kTest).pairs[0].first, "天");
  EXPECT_EQ(CountCharacters("海上a，"), 4u);
}

TEST_F(Couplets, HoldsOutPairsIfThereIsNoValidationSet) {
  std::string lines;
  for (int i = 0; i < 90; ++i) lines += std::string(1, static_cast<char>('!' + i)) + "\n";
  Write("train", lines, lines);
  Write("test", "t\n", "T\n");
  EXPECT_EQ(LoadCouplets(dir_, CoupletSplit::kTrain).pairs.size(), 87u);
  const CoupletSet held = LoadCouplets(dir_, CoupletSplit::kValidation);
  ASSERT_EQ(held.pairs.size(), 3u);
  EXPECT_EQ(held.pairs[0].first, std::string(1, '!' + 29));
  EXPECT_EQ(LoadCouplets(dir_, CoupletSplit::kTest).pairs[0].second, "T");
}

TEST_F(Couplets, ErrorsNameTheFault) {
  EXPECT_THAT(ErrorOf(), HasSubstr("train/in.txt"));
  Write("train", "a\nb\n", "c\n");
  EXPECT_THAT(ErrorOf(), HasSubstr("2 lines and out.txt 1"));
  Write("train", "a\n\xff\n", "c\nd\n");
  EXPECT_THAT(ErrorOf(), HasSubstr("in.txt: line 2"));
  Write("train", "a b\n", "c\n");
  EXPECT_THAT(ErrorOf(), HasSubstr("no couplet"));
}

TEST(PiecesOf, CutAtTheCaesura) {
  for (size_t characters = 0; characters < 12; ++characters) {
    const auto pieces = PiecesOf(characters);
    EXPECT_EQ(pieces.empty(), characters != 5 && characters != 7);
    for (const Piece& piece : pieces) {
      EXPECT_LT(piece.begin, piece.end);
      EXPECT_LE(piece.end, characters);
      EXPECT_LT(piece.end - piece.begin, characters);
    }
  }
}

}  // namespace
}  // namespace linnet
