#include "linnet/vocabulary.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linnet/error.h"

namespace linnet {
namespace {

using Tokens = std::vector<int32_t>;

TEST(Vocabulary, OfBytesHasEveryByte) {
  const Vocabulary bytes = Vocabulary::Bytes();
  EXPECT_EQ(bytes.size(), 259u);
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  EXPECT_EQ(bytes.Decode(bytes.Encode(all)), all);
  EXPECT_EQ(bytes.Encode("A"), Tokens{3 + 'A'});
  EXPECT_EQ(bytes.Save().characters, "");
}

TEST(Vocabulary, OfATextHasItsMostFrequentCharacters) {
  const Vocabulary some = Vocabulary::OfText("海上生明月，海。海上", 3);
  EXPECT_EQ(some.Save().characters,
            "海上。");  // count 3, count 2, and the lowest code point of count 1
  EXPECT_EQ(some.size(), 6u);
  EXPECT_EQ(some.Encode("上海月"), (Tokens{4, 3, Vocabulary::kUnknown}));
  EXPECT_EQ(some.Decode(some.Encode("上海月")), "上海\xef\xbf\xbd");
  EXPECT_EQ(some.Decode({{Vocabulary::kEnd, 3, Vocabulary::kSeparator, 99, -1}}), "海");
  EXPECT_EQ(Vocabulary::OfText("aab", 9, 2).Save().characters, "a");
  const Vocabulary again(some.Save());
  EXPECT_EQ(again.Encode("海上。"), some.Encode("海上。"));
}

Vocabulary Characters(const std::string& characters) {
  return Vocabulary({.unit = TextUnit::kCharacter, .characters = characters});
}

TEST(Vocabulary, RefusesInvalidVocabularies) {
  EXPECT_THROW(Vocabulary({.unit = TextUnit::kByte, .characters = "a"}), Error);
  EXPECT_THROW(Characters(""), Error);
  EXPECT_THROW(Characters("aba"), Error);
  EXPECT_THROW(Characters("a\xff"), Error);
  EXPECT_THROW(Vocabulary::OfText("", 5), Error);
  EXPECT_THROW(Vocabulary::OfText("\xe6\xb5", 5), Error);
  EXPECT_THROW(Characters("a").Encode("\xff"), Error);
}

}  // namespace
}  // namespace linnet
