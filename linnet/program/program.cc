#include "linnet/program/program.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/base/suggestion.h"
#include "linnet/error.h"
#include "linnet/kernels/isa.h"
#include "linnet/program/describe.h"
#include "linnet/program/signals.h"
#include "linnet/version.h"

namespace linnet::cli {
namespace {

// This option prints Describe(app), which scripts/manual reads. --help does not list it.
constexpr std::string_view kDescribeFlag = "--describe";

// Prints an error message on one line. The message may quote user input or file contents, so
// control characters, which would break the line or steer the terminal, are replaced by spaces.
void Complain(const std::string& program, std::string message) {
  for (size_t i = 0; i < message.size(); ++i) {
    const auto c = static_cast<unsigned char>(message[i]);
    // UTF-8 encodes the control characters U+0080 to U+009F (C1) as 0xc2 and a byte 0x80 to 0x9f.
    const bool c1 = c >= 0x80 && c < 0xa0 && i > 0 && message[i - 1] == '\xc2';
    if (c1) message[i - 1] = ' ';
    if (c1 || c < 0x20 || c == 0x7f) message[i] = ' ';
  }
  std::cout.flush();
  std::cerr << program << ": " << message << std::endl;
}

// The innermost command on the command line: "linnet", "linnet eval", "linnet bench step".
struct Named {
  const CLI::App* app;
  std::string name;
};
Named NamedCommand(const CLI::App& app) {
  Named named = {&app, app.get_name()};
  while (!named.app->get_subcommands().empty()) {
    named.app = named.app->get_subcommands().back();
    named.name += " " + named.app->get_name();
  }
  return named;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// For a command with positional arguments, returns "; usage: linnet couplet MODEL LINE".
std::string Positionals(const Named& named) {
  std::string names;
  for (const CLI::Option* option : named.app->get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = option->get_name(/*positional=*/true);
    names += option->get_required() ? " " + name : " [" + name + "]";
  }
  return names.empty() ? "" : "; usage: " + named.name + names;
}

std::string Usage(const CLI::App& app, const CLI::ParseError& error) {
  const auto is_option = [](const std::string& argument) {
    return argument.size() > 1 && argument.starts_with("-");
  };
  // Words before a verb are left over in `app`, others in the named command.
  const Named named = NamedCommand(app);
  const Named owner = app.remaining().empty() ? named : Named{&app, app.get_name()};
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  const auto option = std::find_if(rest.begin(), rest.end(), is_option);
  std::string what = error.what();
  if (owner.app->get_require_subcommand_min() > 0 && (rest.empty() || !is_option(rest[0]))) {
    std::string known;  // CLI11 does not list the subcommands
    std::vector<std::string> names;
    for (const CLI::App* verb : owner.app->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(verb->get_name());
      known += (known.empty() ? "" : ", ") + names.back();
    }
    what = rest.empty() ? "required: one of " + known
                        : "'" + rest[0] + "' is not one of " + known + Suggestion(rest[0], names);
  } else if (option != rest.end()) {
    // CLI11 reports a missing option before an unknown one, which may be the same one misspelled.
    what = "unknown option " + *option +
           Suggestion(option->substr(0, option->find('=')), OptionNames(*owner.app));
  } else if (!rest.empty()) {
    what = "unexpected argument '" + rest[0] + "'" + Positionals(named);
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    what += Positionals(named);
  }
  return StrCat(what, "; see '", owner.name, " --help'");
}

// Opens descriptors 0, 1 and 2 if they are closed. Otherwise the next opened file would get one of
// these numbers, and output or messages would be written to that file.
void OpenStandardStreams() {
  // A closed stdout becomes /dev/full, so that lost results cause an error. A closed stderr becomes
  // /dev/null, because lost messages are no error. open() returns the lowest free descriptor, which
  // must be `fd`.
  const char* const devices[] = {"/dev/null", "/dev/full", "/dev/null"};
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) == -1 && open(devices[fd], O_RDWR) != fd) return;
  }
}

void FlushOutput() {
  if (!std::cout.flush()) throw RuntimeError("standard output: cannot be written");
}

// CLI11's own formatter shows "{false}" after the name of a --no- flag, which reads like a default.
// It also describes an option twice if the option may be given as a positional argument.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_argument) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_argument);
    const std::string value = "{false}";
    for (size_t at; (at = name.find(value)) != name.npos;) name.erase(at, value.size());
    return name;
  }
  std::string make_option(const CLI::Option* option, bool is_argument) const override {
    if (is_argument || !option->get_positional()) {
      return CLI::Formatter::make_option(option, is_argument);
    }
    const std::string argument = option->get_name(/*positional=*/true);
    std::ostringstream out;
    CLI::detail::format_help(out, make_option_name(option, false) + " " + argument,
                             "Same as the argument " + argument, column_width_);
    return out.str();
  }
};

int Run(CLI::App& app, int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == kDescribeFlag) {
    std::cout << Describe(app).dump() << "\n";
    FlushOutput();
    return 0;
  }
  try {
#ifndef LINNET_PLAIN
    kernels::ApplyIsaEnvironment();
#endif
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    // In "linnet nope --help", the help must not hide that the verb is unknown.
    const CLI::App& command = *NamedCommand(app).app;
    if (command.get_require_subcommand_min() > 0 && !command.remaining().empty()) {
      throw CLI::ExtrasError(command.remaining());
    }
    app.exit(help_or_version);
  }
  FlushOutput();
  return 0;
}

}  // namespace

void SetUp(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("-V,--version", "linnet " LINNET_VERSION);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CLI::Validator Between(double low, double high) {
  // Not CLI::Range, which accepts "nan".
  const auto check = [low, high](std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return "'" + text + "' is not a number";
    if (value >= low && value <= high) return "";
    const auto number = [](double x) {
      return std::abs(x) < 1e15 && x == std::floor(x) ? StrCat(static_cast<int64_t>(x)) : StrCat(x);
    };
    return StrCat(text, " is not between ", number(low), " and ", number(high));
  };
  return CLI::Validator(check, "");
}

CLI::Validator IsNumber(bool may_be_negative) {
  const auto check = [may_be_negative](std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return "'" + text + "' is not a number";
    if (value < 0 && !may_be_negative) return text + " is negative";
    // CLI11 would read such an integer as the largest one of its type.
    const bool whole = text.find_first_not_of("+-0123456789") == std::string::npos;
    return whole && std::abs(value) >= 0x1p64 ? text + " is too large" : "";
  };
  return CLI::Validator(check, "");
}

int RunProgram(CLI::App& app, int argc, char** argv) {
  const std::string program = app.get_name();
  const auto any = [](const CLI::App*) { return true; };
  if (!std::as_const(app).get_subcommands(any).empty()) app.require_subcommand(1);
  OpenStandardStreams();
  DieAtSignals();                 // programs with data to save call StopAtSignals() later
  std::signal(SIGXFSZ, SIG_IGN);  // at the file size limit, write() then fails
  try {
    return Run(app, argc, argv);
  } catch (const CLI::ParseError& error) {
    Complain(program, Usage(app, error));
    return 2;
  } catch (const InputError& error) {
    Complain(program, error.what());
    return 2;
  } catch (const Interrupted& interrupted) {
    if (!interrupted.says.empty()) Complain(program, interrupted.says);
    return 130;
  } catch (const std::bad_alloc&) {
    Complain(program, "out of memory; reduce the size of the work, for example --batch");
  } catch (const std::exception& error) {
    Complain(program, error.what());
  }
  return 1;
}

}  // namespace linnet::cli
