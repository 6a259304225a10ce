#include "linnet/program/forks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "linnet/error.h"
#include "linnet/program/signals.h"

namespace linnet::cli {
namespace {

constexpr int kMostForks = 1024;
std::array<std::atomic<pid_t>, kMostForks> children;  // ids by rank; 0: ended, or never started
std::atomic<int> passed_on{0};                        // the last signal that was passed on

void Send(int signal) {
  for (const std::atomic<pid_t>& child : children) {
    if (const pid_t id = child; id > 0) kill(id, signal);
  }
}

void PassOnToAll(int signal) {
  const int before = errno;
  passed_on = signal;
  Send(signal);
  errno = before;
}

// Waits for a child to end. Returns its rank, or -1 if no child is left. Ignores children that this
// process had before exec().
int Reap(int& status) {
  while (true) {
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended < 0 && errno != EINTR) return -1;
    bool left = false;
    for (int rank = 0; rank < kMostForks; ++rank) {
      std::atomic<pid_t>& child = children[static_cast<size_t>(rank)];
      if (ended > 0 && child == ended) {
        child = 0;
        return rank;
      }
      left |= child > 0;
    }
    if (!left) return -1;
  }
}

void EndAll() {
  Send(SIGKILL);
  for (std::atomic<pid_t>& child : children) {
    while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    child = 0;
  }
}

}  // namespace

Forks Fork(int count) {
  if (count < 1 || count > kMostForks) {
    throw InputError(count, " processes; choose 1 to ", kMostForks);
  }
  SignalsHeld held;  // blocks signals until `children` has all ids for PassOnToAll()
  HandleEndSignals(PassOnToAll);
  std::signal(SIGCHLD, SIG_DFL);  // if it is ignored, exit codes are lost
  const pid_t parent = getpid();
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      StopAtSignals();
      held.Release();
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);  // the parent ended before prctl()
      return {.rank = rank};
    }
    if (child < 0) {
      const int why = errno;
      EndAll();
      throw RuntimeError("cannot start process ", rank, " of ", count, " (",
                         std::generic_category().message(why), ")");
    }
    children[static_cast<size_t>(rank)] = child;
  }
  held.Release();
  Forks forks;
  int status = 0;
  for (int rank; (rank = Reap(status)) >= 0;) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == passed_on) {  // the signal was repeated
      EndAll();
      forks.exit_code = kStopped;
      return forks;
    }
    const bool exited = WIFEXITED(status);
    const int code = exited ? WEXITSTATUS(status) : -1;
    if (code == 0) continue;
    if (exited) forks.exit_code = code;
    if (code == kStopped) continue;
    EndAll();
    if (exited) return forks;
    throw RuntimeError("process ", rank, " of ", count, " was ended by signal ", WTERMSIG(status),
                       "; the others were ended too");
  }
  return forks;
}

}  // namespace linnet::cli
