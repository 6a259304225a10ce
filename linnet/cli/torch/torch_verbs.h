// The verbs of linnet-train. Each adds itself to the app and sets `exit_code` when it runs.
#ifndef LINNET_CLI_TORCH_TORCH_VERBS_H_
#define LINNET_CLI_TORCH_TORCH_VERBS_H_

#include <CLI/CLI.hpp>
#include <functional>

namespace linnet {

void AddTrain(CLI::App& app, int& exit_code);
void AddLinearize(CLI::App& app, int& exit_code);

// linnet-train with these arguments; returns its exit code.
int TrainProgram(int argc, char** argv);

// Returns run(), with libtorch's errors as RuntimeError, or std::bad_alloc if memory ran out.
int WithTorchErrors(const std::function<int()>& run);

}  // namespace linnet

#endif  // LINNET_CLI_TORCH_TORCH_VERBS_H_
