// linnet data: runs linnet-data, the program that links libcurl.
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

void AddData(CLI::App& app) {
  AddSiblingVerb(app, "data", "Download a data set ('linnet data --help' says which)",
                 {.program = "linnet-data",
                  .build = "configure with -DLINNET_DOWNLOAD=ON (it needs libcurl and OpenSSL), "
                           "then 'cmake --build BUILD --target"});
}

}  // namespace linnet::cli
