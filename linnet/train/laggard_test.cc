#include "linnet/train/laggard.h"

#include <gtest/gtest.h>

namespace linnet::train {
namespace {

TEST(Laggard, NamesTheProcessThatTheOthersWaitFor) {
  Laggard laggard(3);
  for (int i = 0; i < 4; ++i) laggard.Add({0.1, 0.1, 0.25});
  EXPECT_EQ(laggard.Remark(), "");  // too early
  laggard.Add({0.1, 0.1, 0.25});
  EXPECT_EQ(laggard.Remark(), "process 2 takes 2.5 times as long as the others");
  for (int i = 0; i < 400; ++i) laggard.Add({0.1, 0.11, 0.1});
  EXPECT_EQ(laggard.Remark(), "");
  laggard.Add({0.1, 0.2, 0.1});  // a single slow update is no reason
  EXPECT_EQ(laggard.Remark(), "");
}

TEST(Laggard, NeedsMoreThanABusySecond) {
  Laggard laggard(2);
  for (int i = 0; i < 1000; ++i) laggard.Add({0.01, 0.01});
  for (int i = 0; i < 50; ++i) laggard.Add({0.01, 0.02});
  EXPECT_EQ(laggard.Remark(), "");
  for (int i = 0; i < 500; ++i) laggard.Add({0.01, 0.02});
  EXPECT_EQ(laggard.Remark(), "process 1 takes 1.7 times as long as the others");
  // Slow updates: the mean is over ten of them.
  Laggard slow(2);
  for (int i = 0; i < 20; ++i) slow.Add({5, 5});
  for (int i = 0; i < 5; ++i) slow.Add({5, 10});
  EXPECT_EQ(slow.Remark(), "process 1 takes 1.4 times as long as the others");
}

TEST(Laggard, OfTwoProcessesIsTheSlowerOne) {
  Laggard laggard(2);
  for (int i = 0; i < 20; ++i) laggard.Add({0.3, 0.1});
  EXPECT_EQ(laggard.Remark(), "process 0 takes 3.0 times as long as the others");
}

TEST(Laggard, IsNoneAlone) {
  Laggard laggard(1);
  for (int i = 0; i < 20; ++i) laggard.Add({0.3});
  EXPECT_EQ(laggard.Remark(), "");
}

}  // namespace
}  // namespace linnet::train
