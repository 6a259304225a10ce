// The subcommands of linnet-serve (serve_main.cc).
#ifndef LINNET_CLI_SERVE_H_
#define LINNET_CLI_SERVE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace linnet::cli {

void AddServeVerb(CLI::App& app);

// The shipped models that can be served, sorted by path. They come from the first folder that has
// any: ./models, share/linnet/models of the installation, or models/ of the source tree in which
// the program was built.
std::vector<std::string> ShippedModels();

}  // namespace linnet::cli

#endif  // LINNET_CLI_SERVE_H_
