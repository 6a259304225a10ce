#include "linnet/tasks/copy/copy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "linnet/engine.h"
#include "linnet/runtime/test_models.h"

namespace linnet {
namespace {

TEST(CopyTokens, FeedsBackTheMostLikelyTokens) {
  Engine engine(Copy().model, {.threads = 1});
  const Tokens given = {3, 1, 4, 1, 5};
  Tokens read = given, want;
  read.push_back(0);
  while (want.size() < given.size()) {
    const Doubles last = Copy().Outputs(read).back();
    want.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
    read.push_back(want.back());
  }
  EXPECT_EQ(CopyTokens(engine, given), want);
  EXPECT_EQ(CopyTokens(engine, Tokens(124, 1)).size(), 124u);
  EXPECT_TRUE(Contains(ErrorOf([&] { CopyTokens(engine, Tokens(125, 1)); }), "1 and 124"));
  EXPECT_TRUE(Contains(ErrorOf([&] { CopyTokens(engine, Tokens{0}); }), "1 .. 6; got 0"));
  Engine images(Images().model, {.threads = 1});
  EXPECT_TRUE(Contains(ErrorOf([&] { CopyTokens(images, given); }), "cannot copy"));
}

}  // namespace
}  // namespace linnet
