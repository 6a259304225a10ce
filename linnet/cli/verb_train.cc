// linnet train and the other verbs that need libtorch: they run separate programs.
#include <cstdlib>

#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {
namespace {

// libgomp reads this when it is loaded, so linnet-train cannot set it itself. By default its
// threads spin for milliseconds while they wait for one another, which multiplies the run time if
// another process wants the processor. Some microseconds are enough otherwise.
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
