// The subcommands of linnet-serve (serve_main.cc).
#ifndef LINNET_CLI_SERVE_H_
#define LINNET_CLI_SERVE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace linnet::cli {

void AddServeVerb(CLI::App& app);

// The models that ship with linnet and that can be served: those in ./models, else in
// share/linnet/models of the installation, else in models/ of the source tree that the program was
// built in.
std::vector<std::string> ShippedModels();

}  // namespace linnet::cli

#endif  // LINNET_CLI_SERVE_H_
