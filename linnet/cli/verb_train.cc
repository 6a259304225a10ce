// linnet train: hands everything to linnet-train, the program that has libtorch in it.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {
namespace {

constexpr const char* kTrainer = "linnet-train";

// libgomp reads this when it is loaded, so it cannot be set from inside linnet-train. Its threads
// wait for one another by spinning for milliseconds, which costs several times the work where
// another process wants the processor; some microseconds are enough where none does.
constexpr const char* kSpinCount = "10000";

// Becomes linnet-train: the one beside this program, else the one on the PATH.
[[noreturn]] void Exec(const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(kTrainer)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  if (getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", kSpinCount, /*overwrite=*/0);
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
