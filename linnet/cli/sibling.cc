#include "linnet/cli/sibling.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "linnet/error.h"

namespace linnet::cli {

namespace {

// The OpenBLAS kernels for this processor's instructions, or null.
const char* BlasKernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return "SKYLAKEX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "HASWELL";
#endif
  return nullptr;
}

}  // namespace

void PrepareTorch() {
  // By default, libgomp's waiting threads spin for milliseconds. If another process needs the same
  // cores, the spinning multiplies the run time. On an idle machine, some microseconds of spinning
  // are enough.
  constexpr const char* kSpinCount = "10000";
  if (getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", kSpinCount, /*overwrite=*/0);

  // On a processor newer than itself, OpenBLAS falls back to SSE3.
  if (const char* kernels = BlasKernels()) setenv("OPENBLAS_CORETYPE", kernels, /*overwrite=*/0);
}

void Become(const Sibling& sibling, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(sibling.program)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  if (sibling.prepare != nullptr) sibling.prepare();
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (self.parent_path() / sibling.program).string();
  execv(beside.c_str(), argv.data());
  if (errno == ENOENT) execvp(sibling.program, argv.data());
  if (errno == ENOENT) {
    const std::string needs = sibling.option == nullptr ? ""
                                                        : StrCat(" (CMake option ", sibling.option,
                                                                 "; needs ", sibling.needs, ")");
    throw InputError(beside, ": no such program here or on the PATH; build it with scripts/build ",
                     "in the source folder", needs);
  }
  throw RuntimeError(beside, ": cannot be started (", std::generic_category().message(errno), ")");
}

void AddSiblingVerb(CLI::App& app, const std::string& name, const std::string& summary,
                    const Sibling& sibling) {
  CLI::App* verb = app.add_subcommand(name, summary);
  verb->set_help_flag();
  verb->prefix_command();
  verb->callback([verb, &sibling] {
    std::vector<std::string> arguments = verb->remaining();
    if (sibling.has_subcommands) arguments.insert(arguments.begin(), verb->get_name());
    Become(sibling, arguments);
  });
}

}  // namespace linnet::cli
