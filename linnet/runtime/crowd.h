// Decides whether one thread or a team of all threads runs a step (private to linnet/runtime).
//
//   if (crowd.Alone()) threads = 1;
//   ...                                            // the step
//   crowd.Stepped(threads == 1, seconds, waits_before, pool.waits());
#ifndef LINNET_RUNTIME_CROWD_H_
#define LINNET_RUNTIME_CROWD_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "linnet/base/thread_pool.h"

namespace linnet {

// Detects when steps of few rows (positions of sequences) are faster on one thread than on a team;
// there is one Crowd for each number of rows, or for similar numbers. If other processes
// crowd the processors, each barrier waits until the operating system runs the last thread of the
// team again: a team's step of 0.7 ms then takes 20 ms. After kTries team steps in a row with at
// least one sleep per two barriers, there is a trial: one thread runs kTries steps. The trial
// succeeds if its fastest step is faster than the fastest of those team steps. Then one thread runs
// the next 32 steps; with each further successful trial in a row, this number doubles, up to 1024.
// Outputs do not depend on the choice.
class Crowd {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether the next step should run on one thread.
  bool Alone() const { return trying_ > 0 || alone_ > 0; }

  // Records a step: whether one thread ran it, its duration (per row, if the number of rows
  // varies), and the pool's waits before and after.
  void Stepped(bool alone, double seconds, const ThreadPool::Waits& before,
               const ThreadPool::Waits& after) {
    if (!alone) {
      const uint32_t barriers = after.barriers - before.barriers;
      const bool waits = 2 * (after.sleeps - before.sleeps) >= barriers;
      if (unchecked_ > 0 || !waits) {
        unchecked_ -= unchecked_ > 0;
        strikes_ = 0, period_ = waits ? period_ : kShortest;
        return;
      }
      team_seconds_ = strikes_ == 0 ? seconds : std::min(team_seconds_, seconds);
      // Threads may also sleep because their shares are large and unequal, so one thread is timed
      // before it is used.
      if (++strikes_ == kTries) trying_ = kTries, alone_seconds_ = 1e30;
    } else if (trying_ > 0) {
      alone_seconds_ = std::min(alone_seconds_, seconds);
      if (--trying_ > 0) return;
      strikes_ = 0;
      if (alone_seconds_ < team_seconds_) {
        alone_ = period_, period_ = std::min(2 * period_, kLongest);
      } else {
        unchecked_ = kLongest;
      }
    } else {
      --alone_;
    }
  }

 private:
  static constexpr int kTries = 3, kShortest = 32, kLongest = 1024;  // steps

  int strikes_ = 0,         // team steps in a row with at least one sleep per two barriers
      trying_ = 0,          // steps left of the trial on one thread
      alone_ = 0,           // steps left on one thread after a successful trial
      unchecked_ = 0,       // team steps left after a failed trial until sleeps count again
      period_ = kShortest;  // value of alone_ after the next successful trial
  double team_seconds_ = 0, alone_seconds_ = 0;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_CROWD_H_
