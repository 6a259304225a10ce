#include "linnet/program/forks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>

#include "linnet/error.h"
#include "linnet/program/signals.h"

namespace linnet::cli {
namespace {

constexpr int kMostForks = 1024;
std::array<std::atomic<pid_t>, kMostForks> children;  // 0: ended, or never started

void Send(int signal) {
  for (const std::atomic<pid_t>& child : children) {
    if (const pid_t id = child; id > 0) kill(id, signal);
  }
}

void PassOnToAll(int signal) {
  const int before = errno;
  Send(signal);
  errno = before;
}

void EndAll() {
  Send(SIGKILL);
  while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
}

// Waits for a child to end. Returns its rank, or -1 if there is none left.
int Reap(int& status) {
  pid_t ended;
  while ((ended = waitpid(-1, &status, 0)) < 0 && errno == EINTR) {
  }
  for (int rank = 0; ended > 0 && rank < kMostForks; ++rank) {
    std::atomic<pid_t>& child = children[static_cast<size_t>(rank)];
    if (child != ended) continue;
    child = 0;
    return rank;
  }
  return -1;
}

}  // namespace

Forks Fork(int count) {
  if (count < 1 || count > kMostForks) {
    throw InputError(count, " processes; choose 1 to ", kMostForks);
  }
  HandleEndSignals(PassOnToAll);
  const pid_t parent = getpid();
  for (int rank = 0; rank < count; ++rank) {
    SignalsHeld held;  // so that PassOnToAll() misses no child
    const pid_t child = fork();
    if (child == 0) {
      HandleEndSignals(SIG_DFL);
      held.Release();
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
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
  Forks forks;
  int status = 0;
  for (int rank; (rank = Reap(status)) >= 0;) {
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
