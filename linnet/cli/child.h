// Other programs, run for what they print.
//
//   const ChildResult bench = RunChild("linnet", {"bench", "attention", "--json"});
//   if (bench.exit_code != 0) throw ...;   // it has said why, on our stderr
//   Use(bench.out);
#ifndef LINNET_CLI_CHILD_H_
#define LINNET_CLI_CHILD_H_

#include <string>
#include <vector>

namespace linnet::cli {

struct ChildResult {
  std::string out;     // its standard output
  int exit_code = -1;  // or -1, where a signal ended it
  int signal = 0;
};

// Runs the program and waits for it: the one beside this executable, else the one on the PATH; ""
// is this executable itself. Its messages go where ours go. Ctrl-C (SIGTERM, SIGHUP) is passed on to
// it; when it has ended, Interrupted is thrown (program.h). It does not outlive this process. Throws
// InputError where there is no such program. One at a time, from the main thread.
ChildResult RunChild(const std::string& program, const std::vector<std::string>& arguments);

// After a child, Ctrl-C waits for the next one; from here on it ends this process, which does the work itself.
// Throws Interrupted where it came before.
void EndAtSignals();

}  // namespace linnet::cli

#endif  // LINNET_CLI_CHILD_H_
