// A description of a program's verbs (CLI11's subcommands) and options, from which scripts/manual
// makes man pages and shell completions.
#ifndef LINNET_PROGRAM_DESCRIBE_H_
#define LINNET_PROGRAM_DESCRIBE_H_

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace linnet::cli {

// Returns {"name", "summary", "notes", "options", "verbs"}. Each option is {"names", "positional",
// "type", "help", "default", "choices", "required", "repeats"}. Each verb has the same fields as
// the whole description. Hidden options are left out.
nlohmann::ordered_json Describe(const CLI::App& app);

}  // namespace linnet::cli

#endif  // LINNET_PROGRAM_DESCRIBE_H_
