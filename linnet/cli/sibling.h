// Verbs that need heavy libraries live in separate programs, so that `linnet` stays small and
// starts at once. `linnet train` replaces its process by linnet-train (exec).
//
//   AddSiblingVerb(app, "train", "Train a model", {.program = "linnet-train", .build = "..."});
#ifndef LINNET_CLI_SIBLING_H_
#define LINNET_CLI_SIBLING_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace linnet::cli {

struct Sibling {
  const char* program;                      // the name of the program and of its CMake target
  const char* build;                        // the build command, up to the target's name
  void (*prepare)() = nullptr;              // sets up the environment before the program starts
  std::string subcommand = {};              // of the program; "": the program itself
  std::vector<std::string> arguments = {};  // placed before the user's arguments
};

// Adds a verb that replaces this process by the sibling and passes on all arguments, including
// --help. Looks for the program beside this executable, then on the PATH; the verb throws
// InputError if it is in neither place.
void AddSiblingVerb(CLI::App& app, const std::string& name, const std::string& summary,
                    const Sibling& sibling);

// Replaces this process by the sibling, with these arguments. Throws InputError as above.
[[noreturn]] void Become(const Sibling& sibling, const std::vector<std::string>& arguments);

// linnet-speech, which reads audio.
Sibling SpeechSibling(const std::string& subcommand);
// linnet-serve, which speaks HTTP.
Sibling ServeSibling(const std::string& subcommand);

}  // namespace linnet::cli

#endif  // LINNET_CLI_SIBLING_H_
