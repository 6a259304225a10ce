// linnet reproduce: runs linnet-reproduce, which draws with Cairo.
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

void AddReproduce(CLI::App& app) {
  AddSiblingVerb(app, "reproduce",
                 "Measure a figure of the paper again ('linnet reproduce --help' says which)",
                 {.program = "linnet-reproduce",
                  .build = "configure with -DLINNET_PLOT=ON (it needs Cairo), then 'cmake "
                           "--build BUILD --target"});
}

}  // namespace linnet::cli
