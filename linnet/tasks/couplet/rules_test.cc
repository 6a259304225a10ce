#include "linnet/tasks/couplet/rules.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

TEST(KeptRules, AllAreKeptByACouplet) {
  EXPECT_TRUE(KeptRules("海上生明月", "天涯共此时").all());
  EXPECT_TRUE(KeptRules("山山水水，处处明明秀秀", "晴晴雨雨，时时好好奇奇").all());
}

TEST(KeptRules, NamesTheBrokenRule) {
  const CoupletRules shorter = KeptRules("海上生明月", "天涯共此");
  EXPECT_FALSE(shorter.length);
  EXPECT_TRUE(shorter.punctuation && shorter.places && shorter.repeats && shorter.mirrored);

  const CoupletRules comma = KeptRules("春风，秋月", "夏雨冬，雪");
  EXPECT_FALSE(comma.punctuation);
  EXPECT_TRUE(comma.length && comma.repeats);

  const CoupletRules same = KeptRules("海上生明月", "天上共此时");
  EXPECT_FALSE(same.places);
  EXPECT_TRUE(same.length && same.punctuation && same.repeats && same.mirrored);

  const CoupletRules repeated = KeptRules("海上生明月", "天涯天此时");
  EXPECT_FALSE(repeated.repeats);
  EXPECT_TRUE(repeated.mirrored && repeated.places);

  const CoupletRules single = KeptRules("山山水水", "风雨雷电");
  EXPECT_FALSE(single.mirrored);
  EXPECT_TRUE(single.repeats && single.length);
  EXPECT_FALSE(single.all());
}

TEST(KeptRules, TakesEmptyLines) {
  EXPECT_TRUE(KeptRules("", "").all());
  EXPECT_FALSE(KeptRules("海", "").length);
  EXPECT_FALSE(KeptRules("", "海").length);
}

}  // namespace
}  // namespace linnet
