#include "linnet/program/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "linnet/error.h"
#include "linnet/program/program.h"
#include "linnet/program/signals.h"

namespace linnet::cli {
namespace {

std::atomic<int> interrupted{0};  // the last signal that arrived; 0: none
std::atomic<pid_t> running{0};    // id of the running child; 0: none

// Signal handler.
void PassOn(int signal) {
  const int before = errno;
  interrupted = signal;
  if (const pid_t child = running; child > 0) kill(child, signal);
  errno = before;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

struct Pipe {
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw RuntimeError("cannot create a pipe to a child process (",
                         std::generic_category().message(errno), ")");
    }
    from = ends[0], to = ends[1];
  }
  int from = -1, to = -1;  // the descriptors for reading and for writing
};

// Reads to the end of the file. Waits in poll(), since the thread sanitizer calls no signal handler
// during read().
std::string ReadAll(int fd) {
  std::string text;
  char buffer[65536];
  while (true) {
    pollfd readable = {fd, POLLIN, 0};
    if (poll(&readable, 1, -1) < 0 && errno == EINTR) continue;
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      return text;
    }
  }
}

}  // namespace

void EndAtSignals() {
  DieAtSignals();
  if (interrupted != 0) throw Interrupted();
}

ChildResult RunChild(const std::string& program, const std::vector<std::string>& arguments) {
  HandleEndSignals(PassOn);  // stays installed, so that no signal is lost between children
  if (interrupted != 0) throw Interrupted();

  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path =
      program.empty() ? self.string() : (self.parent_path() / program).string();
  std::vector<char*> argv = {const_cast<char*>(program.empty() ? path.c_str() : program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  // failure_pipe carries the errno of a failed exec. A successful exec closes the pipe (O_CLOEXEC),
  // so this process then reads nothing.
  const Pipe out_pipe, failure_pipe;
  Descriptor out(out_pipe.from), out_end(out_pipe.to);
  Descriptor failure(failure_pipe.from), failure_end(failure_pipe.to);
  SignalsHeld held;  // blocks signals until `running` has the child's id for PassOn()
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {
    HandleEndSignals(SIG_DFL);
    held.Release();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // the parent ended before prctl()
    dup2(out_end.get(), STDOUT_FILENO);
    execv(path.c_str(), argv.data());
    if (errno == ENOENT && !program.empty()) execvp(program.c_str(), argv.data());
    const int why = errno;
    (void)!write(failure_end.get(), &why, sizeof(why));
    _exit(127);
  }
  const int no_child = errno;
  running = child;
  held.Release();
  if (child < 0) {
    throw RuntimeError(path, ": cannot start a process (",
                       std::generic_category().message(no_child), ")");
  }
  out_end.Close();
  failure_end.Close();

  ChildResult result;
  result.out = ReadAll(out.get());
  const std::string why = ReadAll(failure.get());
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running = 0;
  if (interrupted != 0) throw Interrupted();
  if (why.size() == sizeof(int)) {
    int number = 0;
    why.copy(reinterpret_cast<char*>(&number), sizeof(number));
    throw InputError(path, ": cannot be started (", std::generic_category().message(number),
                     "); build it, or put it beside this program");
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

}  // namespace linnet::cli
