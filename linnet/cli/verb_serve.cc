// linnet serve: runs linnet-serve, the program that links cpp-httplib.
#include "linnet/cli/sibling.h"
#include "linnet/cli/verbs.h"

namespace linnet::cli {

void AddServe(CLI::App& app) {
  AddSiblingVerb(app, "serve", "Serve models over HTTP, with a page ('linnet serve --help')",
                 ServeSibling("serve"));
}

}  // namespace linnet::cli
