#include "linnet/base/suggestion.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

const std::vector<std::string> kNames = {"prompt", "max_tokens", "top_k", "top_p", "n"};

std::string Meant(const std::string& name) { return "; did you mean '" + name + "'?"; }

TEST(Suggestion, NamesTheMostSimilar) {
  EXPECT_EQ(Suggestion("max_token", kNames), Meant("max_tokens"));  // one insertion
  EXPECT_EQ(Suggestion("max_tokenss", kNames), Meant("max_tokens"));
  EXPECT_EQ(Suggestion("prompf", kNames), Meant("prompt"));
  EXPECT_EQ(Suggestion("rpomtp", kNames), Meant("prompt"));  // two swaps
  EXPECT_EQ(Suggestion("topp", kNames), Meant("top_p"));
  EXPECT_EQ(Suggestion("top_", kNames), Meant("top_k"));  // the first of two equally near names
  EXPECT_EQ(Suggestion("maxtoken", kNames), Meant("max_tokens"));
}

TEST(Suggestion, IsEmptyWithoutASimilarName) {
  EXPECT_EQ(Suggestion("temperature", kNames), "");
  EXPECT_EQ(Suggestion("pro", kNames), "");
  EXPECT_EQ(Suggestion("prompt", {}), "");
  EXPECT_EQ(Suggestion("", {"abc"}), "");
}

TEST(Suggestion, TakesTextOfAnyLength) {
  EXPECT_EQ(Suggestion(std::string(50'000'000, 'p'), kNames), "");
}

}  // namespace
}  // namespace linnet
