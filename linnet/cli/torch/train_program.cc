#include "linnet/cli/torch/train_program.h"

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <new>
#include <string>
#include <string_view>

#include "linnet/cli/torch/process.h"
#include "linnet/cli/torch/torch_verbs.h"
#include "linnet/error.h"
#include "linnet/program/program.h"

namespace linnet {

int WithTorchErrors(const std::function<int()>& run) {
  try {
    return run();
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    if (what.find("DefaultCPUAllocator") != std::string::npos) throw std::bad_alloc();
    // "CUDA out of memory. Tried to allocate 44.80 GiB. GPU 0 has a total capacity of 139.80 GiB of
    // which 3.21 GiB is free. Process 3815 has ...", followed by advice for Python programs.
    constexpr std::string_view kFree = " is free.";
    const size_t end = what.find(kFree);
    if (what.starts_with("CUDA out of memory") && end != std::string::npos) {
      throw RuntimeError(what.substr(0, end + kFree.size()),
                         " Reduce --batch or raise --accumulate");
    }
    throw RuntimeError(what);
  }
}

int TrainProgram(int argc, char** argv) {
  PrepareProcess();
  CLI::App app("Train models", "linnet");
  cli::SetUp(app);
  app.get_formatter()->column_width(32);
  int exit_code = 0;
  AddTrain(app, exit_code);
  AddLinearize(app, exit_code);
  const int failed = cli::RunProgram(app, argc, argv);
  return failed != 0 ? failed : exit_code;
}

}  // namespace linnet
