#include "linnet/io/unicode.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "linnet/error.h"

namespace linnet {
namespace {

std::vector<std::string> Matches(const std::string& pattern, const std::string& text) {
  std::vector<std::string> matches;
  Regex(pattern, "test").ForMatches(text, [&](size_t begin, size_t end) {
    matches.push_back(text.substr(begin, end - begin));
  });
  return matches;
}

using Texts = std::vector<std::string>;

TEST(Regex, FindsLettersAndNumbersOfAnyScript) {
  EXPECT_EQ(Matches(R"(\p{L}+|\p{N})", "naïve 海上明月 ٣½ -"),
            (Texts{"naïve", "海上明月", "٣", "½"}));
  EXPECT_EQ(Matches(R"(\s+(?!\S)|\s+)", "a \u3000 b"), (Texts{" \u3000", " "}));
}

TEST(Regex, SkipsEmptyMatchesByWholeCharacters) {
  EXPECT_EQ(Matches("x*", "é海xx"), Texts{"xx"});
  EXPECT_EQ(Matches("", "é"), Texts{});
}

TEST(Regex, RejectsInvalidPatternsAndEndlessMatches) {
  EXPECT_THROW(Regex("(", "test"), InputError);
  EXPECT_THROW(Regex(R"(\C)", "test"), InputError);  // matches a byte, not a character
  EXPECT_THROW(Regex(std::string(5000, 'a'), "test"), InputError);
  EXPECT_THROW(Matches("(a+)+$", std::string(40, 'a') + "b"), InputError);
}

TEST(ToNfc, Composes) {
  EXPECT_EQ(ToNfc("plain"), "plain");
  EXPECT_EQ(ToNfc("e\u0301 \u1112\u1161\u11ab"), "\u00e9 \ud55c");
  EXPECT_EQ(ToNfc("\u00e9"), "\u00e9");
}

}  // namespace
}  // namespace linnet
