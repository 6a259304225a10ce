// Runs a CLI11 app: parses the arguments, runs the verb (CLI11's subcommand), and reports any error
// as one line on stderr and an exit code.
//
//   CLI::App app("Trains models", "linnet-train");
//   ...
//   return RunProgram(app, argc, argv);
#ifndef LINNET_PROGRAM_PROGRAM_H_
#define LINNET_PROGRAM_PROGRAM_H_

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace linnet::cli {

// Thrown after Ctrl-C has ended the work; no half-written files are left behind.
struct Interrupted {
  std::string says = {};  // printed on stderr if not empty
};

// Sets up a program before its options and verbs are added: adds --version, and lets the last value
// of a repeated option win.
void SetUp(CLI::App& app);

// Runs the app and returns the exit code: 0; 2 for bad usage or input (CLI::ParseError,
// InputError); 130 after Ctrl-C; 1 for any other failure. Messages begin with "PROGRAM: ". If the
// app has verbs, the command line must name exactly one. Applies $LINNET_ISA first (kernels/isa.h).
int RunProgram(CLI::App& app, int argc, char** argv);

// Returns a check that a number lies in [low, high]. --help does not show the range.
CLI::Validator Between(double low, double high);
// Returns a check for numbers whose range is checked elsewhere.
CLI::Validator IsNumber(bool may_be_negative = true);

// Adds an option `--name TYPE` with a check. --help shows its default unless the help text contains
// the word "default".
//
//   AddOption(verb, "--seed", seed, "N", "Seed of weights and data", Between(0, 1e9));
template <class T>
CLI::Option* AddOption(CLI::App* verb, const std::string& name, T& value, const std::string& type,
                       const std::string& help, CLI::Validator check = {}) {
  CLI::Option* option =
      verb->add_option(name, value, help)->type_name(type)->check(std::move(check));
  return help.find("default") == std::string::npos ? option->capture_default_str() : option;
}

// Adds an option that takes a list of values. Users separate the values by commas or repeat the
// option.
//
//   AddListOption(verb, "--batch", batches, "N", "Batch sizes, for example 1,64", Between(1, 1e6));
template <class T>
CLI::Option* AddListOption(CLI::App* verb, const std::string& name, std::vector<T>& values,
                           const std::string& type, const std::string& help,
                           CLI::Validator check = {}) {
  return AddOption(verb, name, values, type, help, std::move(check))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace linnet::cli

#endif  // LINNET_PROGRAM_PROGRAM_H_
