// The subcommands of linnet-serve (serve_main.cc).
#ifndef LINNET_CLI_SERVE_H_
#define LINNET_CLI_SERVE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace linnet::cli {

void AddServeVerb(CLI::App& app);
void AddServeBench(CLI::App& app);

// Models that ship with linnet and that can be served: in ./models, beside the program where it is
// installed, or in the sources that it was built from. The first folder that has any.
std::vector<std::string> ShippedModels();

}  // namespace linnet::cli

#endif  // LINNET_CLI_SERVE_H_
