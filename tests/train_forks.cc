// linnet-train for tests: runs each command in a fork of this process. Loading libtorch takes
// longer than most runs in a test; a fork has it loaded already.
//
// Reads one command per line from stdin: {"arguments": ["train", ...], "folder": working directory,
// "out": PATH, "err": PATH}. The command's stdout goes to the file `out`, its stderr to `err`.
// Answers each command with a line on stdout: the command's exit code, or 128 + the signal that
// ended it. The client is train_forks.py.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__  // as GCC defines it
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/cli/torch/train_program.h"

namespace {

void Redirect(int fd, const std::string& path, int flags) {
  const int file = open(path.c_str(), flags, 0666);
  if (file < 0 || dup2(file, fd) < 0) {
    perror(path.c_str());
    _exit(127);
  }
  close(file);
}

[[noreturn]] void RunCommand(const nlohmann::json& command) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::filesystem::current_path(command.at("folder").get<std::string>());
  Redirect(0, "/dev/null", O_RDONLY);
  Redirect(1, command.at("out"), O_WRONLY | O_CREAT | O_TRUNC);
  Redirect(2, command.at("err"), O_WRONLY | O_CREAT | O_TRUNC);
  auto arguments = command.at("arguments").get<std::vector<std::string>>();
  arguments.insert(arguments.begin(), "linnet-train");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int code = linnet::TrainProgram(static_cast<int>(arguments.size()), argv.data());
  std::cout.flush();
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
  _exit(code);  // libtorch's destructors would write to every shared page, and so copy it
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json command = nlohmann::json::parse(line);
    const pid_t child = fork();
    if (child < 0) {
      perror("fork");
      return 1;
    }
    if (child == 0) RunCommand(command);
    int status = 0;
    waitpid(child, &status, 0);
    std::cout << (WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)) << std::endl;
  }
  return 0;
}
