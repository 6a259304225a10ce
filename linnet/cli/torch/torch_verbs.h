// The verbs of linnet-train. AddTrain() and AddLinearize() each add a verb, which sets `exit_code`
// when it runs.
#ifndef LINNET_CLI_TORCH_TORCH_VERBS_H_
#define LINNET_CLI_TORCH_TORCH_VERBS_H_

#include <CLI/CLI.hpp>
#include <functional>

namespace linnet {

void AddTrain(CLI::App& app, int& exit_code);
void AddLinearize(CLI::App& app, int& exit_code);

// Calls run() and returns its result. Rethrows libtorch's errors as RuntimeError, or as
// std::bad_alloc if memory ran out.
int WithTorchErrors(const std::function<int()>& run);

}  // namespace linnet

#endif  // LINNET_CLI_TORCH_TORCH_VERBS_H_
