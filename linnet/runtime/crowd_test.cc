#include "linnet/runtime/crowd.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

// Simulates a machine: seconds per step of a team and of one thread, and sleeps per ten barriers.
struct Machine {
  Crowd crowd;
  double team, one;
  uint32_t sleeps;
  ThreadPool::Waits waits{0xfffffff0, 0xfffffff8};  // wraps around during the test

  // Runs `count` steps; returns how many of them ran on one thread.
  int Steps(int count) {
    int alone = 0;
    for (int i = 0; i < count; ++i) {
      const bool is_alone = crowd.Alone();
      const ThreadPool::Waits before = waits;
      if (!is_alone) waits.barriers += 10, waits.sleeps += sleeps;
      crowd.Stepped(is_alone, is_alone ? one : team, before, waits);
      alone += is_alone;
    }
    return alone;
  }
};

TEST(Crowd, TeamThatDoesNotSleepStays) {
  Machine machine{.crowd = Crowd(), .team = 1, .one = 0.1, .sleeps = 4};
  EXPECT_EQ(machine.Steps(1000), 0);
}

TEST(Crowd, OneThreadTakesOverAndTriesTheTeamAgain) {
  Machine machine{.crowd = Crowd(), .team = 20, .one = 2, .sleeps = 9};
  EXPECT_EQ(machine.Steps(3), 0);
  EXPECT_EQ(machine.Steps(3 + 32), 35);  // a trial of 3 steps, then 32 steps on one thread
  EXPECT_EQ(machine.Steps(3), 0);
  EXPECT_EQ(machine.Steps(3 + 64), 67);  // a trial, then twice as many steps
  EXPECT_GT(machine.Steps(10'000), 9'900);
  machine.sleeps = 0, machine.team = 1;  // the other processes have ended
  machine.Steps(1100);
  EXPECT_EQ(machine.Steps(1000), 0);
}

TEST(Crowd, TeamThatSleepsAndIsFasterStays) {
  Machine machine{.crowd = Crowd(), .team = 1, .one = 2, .sleeps = 10};
  EXPECT_EQ(machine.Steps(1000), 3);
}

}  // namespace
}  // namespace linnet
