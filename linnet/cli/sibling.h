// Verbs that need heavy libraries live in programs of their own, so that `linnet` stays small and
// starts at once: `linnet train` becomes linnet-train.
//
//   AddSiblingVerb(app, "train", "Train a model", {.program = "linnet-train", .build = "..."});
#ifndef LINNET_CLI_SIBLING_H_
#define LINNET_CLI_SIBLING_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace linnet::cli {

struct Sibling {
  const char* program;                      // its name, and that of its CMake target
  const char* build;                        // how to build it, up to the target's name
  void (*prepare)() = nullptr;              // called before the program starts, for its environment
  std::string subcommand = {};              // of the program, or "" for all of it
  std::vector<std::string> arguments = {};  // that come first
};

// A verb that becomes the sibling and hands it everything, --help too. The program is the one
// beside this executable, else the one on the PATH; without either the verb throws InputError.
void AddSiblingVerb(CLI::App& app, const std::string& name, const std::string& summary,
                    const Sibling& sibling);

// Becomes the sibling at once, with these arguments. Throws as such a verb does.
[[noreturn]] void Become(const Sibling& sibling, const std::vector<std::string>& arguments);

// linnet-speech, which reads sound.
Sibling SpeechSibling(const std::string& subcommand);
// linnet-serve, which speaks HTTP.
Sibling ServeSibling(const std::string& subcommand);

}  // namespace linnet::cli

#endif  // LINNET_CLI_SIBLING_H_
