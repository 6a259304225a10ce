#include "linnet/cli/sibling.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "linnet/base/error.h"

namespace linnet::cli {

void Become(const Sibling& sibling, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(sibling.program)};
  if (!sibling.subcommand.empty()) argv.push_back(const_cast<char*>(sibling.subcommand.c_str()));
  for (const std::string& argument : sibling.arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  if (sibling.prepare != nullptr) sibling.prepare();
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (self.parent_path() / sibling.program).string();
  execv(beside.c_str(), argv.data());
  if (errno == ENOENT) execvp(sibling.program, argv.data());
  if (errno == ENOENT) {
    throw InputError(beside,
                     ": no such program, nor is there one on the PATH; build it: ", sibling.build,
                     " ", sibling.program);
  }
  throw RuntimeError(beside, ": cannot be started (", std::generic_category().message(errno), ")");
}

Sibling SpeechSibling(const std::string& subcommand) {
  return {.program = "linnet-speech",
          .build =
              "configure with -DLINNET_SPEECH=ON (it needs libsndfile, libsamplerate and KISS "
              "FFT), then 'cmake --build BUILD --target",
          .subcommand = subcommand};
}

Sibling ServeSibling(const std::string& subcommand) {
  return {.program = "linnet-serve",
          .build =
              "configure with -DLINNET_SERVE=ON (it needs cpp-httplib and OpenSSL), then 'cmake "
              "--build "
              "BUILD --target",
          .subcommand = subcommand};
}

void AddSiblingVerb(CLI::App& app, const std::string& name, const std::string& summary,
                    const Sibling& sibling) {
  CLI::App* verb = app.add_subcommand(name, summary);
  verb->set_help_flag();
  verb->prefix_command();
  verb->callback([verb, sibling] { Become(sibling, verb->remaining()); });
}

}  // namespace linnet::cli
