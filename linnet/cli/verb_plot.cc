// linnet plot: runs linnet-plot, the program that links Cairo.
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

void AddPlot(CLI::App& app) {
  AddSiblingVerb(app, "plot", "Draw the curves of training runs ('linnet plot --help' says how)",
                 {.program = "linnet-plot",
                  .build = "configure with -DLINNET_PLOT=ON (it needs Cairo), then 'cmake "
                           "--build BUILD --target"});
}

}  // namespace linnet::cli
