// linnet train, and what else has libtorch in it: hands everything to a program of its own.
#include <cstdlib>

#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {
namespace {

// libgomp reads this when it is loaded, so it cannot be set from inside linnet-train. Its threads
// wait for one another by spinning for milliseconds, which costs several times the work where
// another process wants the processor; some microseconds are enough where none does.
constexpr const char* kSpinCount = "10000";

void ShortenSpinning() {
  if (getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", kSpinCount, /*overwrite=*/0);
}

}  // namespace

void AddTrainerVerb(CLI::App& app, const std::string& name, const std::string& summary,
                    const char* program, const std::string& subcommand) {
  AddSiblingVerb(app, name, summary,
                 {.program = program,
                  .build = "configure with -DLINNET_TRAIN=ON (it needs libtorch), then 'cmake "
                           "--build BUILD --target",
                  .prepare = ShortenSpinning,
                  .subcommand = subcommand});
}

void AddTrain(CLI::App& app) {
  AddTrainerVerb(app, "train", "Train a model ('linnet train --help' says what)", "linnet-train");
}

}  // namespace linnet::cli
