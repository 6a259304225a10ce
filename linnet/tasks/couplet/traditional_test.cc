#include "linnet/tasks/couplet/traditional.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linnet/runtime/test_util.h"
#include "linnet/tasks/couplet/couplet.h"

namespace linnet {
namespace {

TEST(SimplifiedOf, KnowsCommonCharacters) {
  const std::u32string traditional = U"漢國龍馬萬餘發髮鍾淨巖歎長風雲處盡聲";
  const std::u32string simplified = U"汉国龙马万余发发钟净岩叹长风云处尽声";
  ASSERT_EQ(traditional.size(), simplified.size());
  for (size_t i = 0; i < traditional.size(); ++i) {
    EXPECT_EQ(SimplifiedOf(traditional[i]), simplified[i]) << i;
    EXPECT_EQ(SimplifiedOf(simplified[i]), std::nullopt) << i;
  }
  for (const char32_t c : U"海上明月a，。") EXPECT_EQ(SimplifiedOf(c), std::nullopt);
}

// The binary search would miss entries if the table were not sorted or had a character twice. So it
// must find as many characters as the table has entries.
TEST(SimplifiedOf, FindsEveryEntryOfTheTable) {
  size_t found = 0;
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    const auto simplified = SimplifiedOf(c);
    if (!simplified) continue;
    ++found;
    EXPECT_NE(*simplified, c);
    EXPECT_GE(*simplified, 0x4e00u);
    EXPECT_LE(*simplified, 0x9fffu);
  }
  EXPECT_EQ(found, TraditionalCharacters());
  EXPECT_GT(found, 2500u);
}

class Traditional : public testing::Test {
 protected:
  // The vocabulary has both forms of 國, but only the simplified forms of 漢, 龍 and 馬.
  Engine engine_{RandomModel("couplet", "character", 40, 11, "，。海上明月国國汉龙马天地山水"),
                 {.threads = 1}};
  CoupletTokens tokens_{engine_.model()};
  CoupletWriter writer_{engine_};

  std::vector<int32_t> Prompt(const std::string& first) {
    return CoupletLine(tokens_, first).Prompt();
  }
  std::vector<std::string> Texts(const std::string& first, size_t beam) {
    std::vector<std::string> texts;
    for (const CoupletAnswer& answer :
         writer_.Write(first, {.candidates = 6, .beam = beam, .seed = 3})) {
      texts.push_back(answer.text);
    }
    return texts;
  }
};

TEST_F(Traditional, FirstLinesAreReadInSimplifiedForm) {
  EXPECT_EQ(Prompt("漢海龍"), Prompt("汉海龙"));
  EXPECT_NE(Prompt("國"), Prompt("国"));  // the vocabulary has 國, so it is not converted
  EXPECT_EQ(CoupletLine(tokens_, "漢海").Unknown(), std::vector<std::string>());
  // 鳳 has the simplified form 凤, but the vocabulary lacks both characters.
  const CoupletLine line(tokens_, "漢鳳囧凤");
  EXPECT_EQ(line.Unknown(), (std::vector<std::string>{"鳳", "囧", "凤"}));
  EXPECT_EQ(line.character(0), "漢");
}

TEST_F(Traditional, PunctuationStaysAsGiven) {
  for (const std::string& text : Texts("漢；海。", 4)) {
    EXPECT_EQ(text.substr(3, 3), "；");
    EXPECT_EQ(text.substr(9), "。");
  }
}

TEST_F(Traditional, BothFormsCountAsOneCharacter) {
  for (const size_t beam : {0u, 4u}) {
    const std::vector<std::string> texts = Texts("漢海汉漢", beam);
    EXPECT_EQ(texts, Texts("汉海汉汉", beam));
    ASSERT_FALSE(texts.empty());
    for (const std::string& text : texts) {
      ASSERT_EQ(text.size(), 12u);
      const std::string first = text.substr(0, 3);
      EXPECT_NE(first, "汉");
      EXPECT_NE(text.substr(3, 3), first);
      EXPECT_EQ(text.substr(6, 3), first);
      EXPECT_EQ(text.substr(9), first);
    }
  }
  // If the vocabulary has both forms, they count as two characters.
  for (const std::string& text : Texts("國海国", 4)) EXPECT_NE(text.substr(0, 3), text.substr(6));
  // Unknown characters count as different unless they are the same in the given line.
  for (const std::string& text : Texts("囧海凤囧", 4)) {
    EXPECT_EQ(text.substr(0, 3), text.substr(9));
    EXPECT_NE(text.substr(0, 3), text.substr(6, 3));
  }
}

}  // namespace
}  // namespace linnet
