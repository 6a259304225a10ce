// Runs another program and captures its output.
//
//   const ChildResult bench = RunChild("linnet", {"bench", "attention", "--json"});
//   if (bench.exit_code != 0) throw ...;   // the child has printed the reason on stderr
//   Use(bench.out);
#ifndef LINNET_PROGRAM_CHILD_H_
#define LINNET_PROGRAM_CHILD_H_

#include <string>
#include <vector>

namespace linnet::cli {

struct ChildResult {
  std::string out;     // standard output
  int exit_code = -1;  // -1 if a signal ended the program
  int signal = 0;      // the signal that ended the program; 0: none
};

// Runs a program and waits for it. Looks for it beside this executable, then on the PATH; "" runs
// this executable itself. The child inherits stderr and does not outlive this process. Passes
// SIGINT, SIGTERM and SIGHUP on to the child, then throws Interrupted (program.h) once the child
// has ended. Throws InputError if the program cannot be started, and RuntimeError if the system
// refuses a pipe or a process. Call it from the main thread, one child at a time.
ChildResult RunChild(const std::string& program, const std::vector<std::string>& arguments);

// Call this after the last child has ended: from then on, SIGINT, SIGTERM and SIGHUP end this
// process. (Between children these signals are only recorded, and the next RunChild() throws.)
// Throws Interrupted if a signal has already arrived.
void EndAtSignals();

}  // namespace linnet::cli

#endif  // LINNET_PROGRAM_CHILD_H_
