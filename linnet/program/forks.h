// Continues a program in several processes.
//
//   const Forks forks = Fork(4);
//   if (forks.parent()) return forks.exit_code;   // all children have ended
//   Work(forks.rank);
#ifndef LINNET_PROGRAM_FORKS_H_
#define LINNET_PROGRAM_FORKS_H_

namespace linnet::cli {

struct Forks {
  int rank = -1;  // 0, 1, ... in the children, -1 in the parent
  // In the parent: the exit code of the first child that failed, else kStopped if a child was
  // stopped, else 0.
  int exit_code = 0;
  bool parent() const { return rank < 0; }
};

// The exit code of a child that was asked to stop, and did.
inline constexpr int kStopped = 130;

// Forks this process `count` times. Returns immediately in every child, and in this process when
// all children have ended. Passes SIGINT, SIGTERM and SIGHUP on to the children; children do not
// outlive this process. Each child first calls StopAtSignals() (signals.h). A child fails if it
// exits with a code other than 0 and kStopped; the other children are then killed. Throws
// InputError unless `count` is 1 to 1024, and RuntimeError if a process cannot be started (no child
// is then left) or if a signal that was not passed on ended a child. Call it from the main thread,
// before the process has other threads.
Forks Fork(int count);

}  // namespace linnet::cli

#endif  // LINNET_PROGRAM_FORKS_H_
