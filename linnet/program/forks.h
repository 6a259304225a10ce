// Continues a program in several processes.
//
//   const Forks forks = Fork(4);
//   if (forks.parent()) return forks.exit_code;   // all children have ended
//   Work(forks.rank);
#ifndef LINNET_PROGRAM_FORKS_H_
#define LINNET_PROGRAM_FORKS_H_

namespace linnet::cli {

struct Forks {
  int rank = -1;      // of a child: 0, 1, ...
  int exit_code = 0;  // in the parent: that of the first child that failed, else kStopped or 0
  bool parent() const { return rank < 0; }
};

// The exit code of a child that was asked to stop, and did.
inline constexpr int kStopped = 130;

// Forks this process `count` times. Returns in every child at once, and in this process when all
// children have ended. Passes SIGINT, SIGTERM and SIGHUP on to the children; children do not
// outlive this process. Children begin with StopAtSignals() (signals.h). If a child fails, that is,
// exits with another code than 0 or kStopped, kills the others. Throws RuntimeError if a signal
// ended a child, other than one that was passed on. Call it from the main thread, before the
// process has other threads.
Forks Fork(int count);

}  // namespace linnet::cli

#endif  // LINNET_PROGRAM_FORKS_H_
