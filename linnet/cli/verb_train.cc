// linnet train: hands everything to linnet-train, the program that has libtorch in it.
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

void AddTrain(CLI::App& app) {
  AddSiblingVerb(app, "train", "Train a model ('linnet train --help' says what)",
                 {.program = "linnet-train",
                  .build = "configure with -DLINNET_TRAIN=ON (it needs libtorch) and run 'cmake "
                           "--build BUILD --target linnet-train'",
                  .prepare = ShortenSpinning});
}

}  // namespace linnet::cli
