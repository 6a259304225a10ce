// linnet train: hands everything to linnet-train, the program that has libtorch in it.
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {
namespace {

constexpr const char* kTrainer = "linnet-train";

// Becomes linnet-train: the one beside this program, else the one on the PATH.
[[noreturn]] void Exec(const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(kTrainer)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (self.parent_path() / kTrainer).string();
  execv(beside.c_str(), argv.data());
  if (errno == ENOENT) execvp(kTrainer, argv.data());
  if (errno == ENOENT) {
    throw InputError(beside,
                     ": no such program, nor is there one on the PATH; build it: configure ",
                     "with -DLINNET_TRAIN=ON (it needs libtorch) and run 'cmake --build BUILD ",
                     "--target linnet-train'");
  }
  throw RuntimeError(beside, ": cannot be started (", std::generic_category().message(errno), ")");
}

}  // namespace

void AddTrain(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("train", "Train a model ('linnet train --help' says what)");
  // Whatever follows, --help too, is for linnet-train.
  verb->set_help_flag();
  verb->prefix_command();
  verb->callback([verb] { Exec(verb->remaining()); });
}

}  // namespace linnet::cli
