// linnet eval, a file a task: eval_TASK.cc measures models of that task, verb_eval.cc lists them.
#ifndef LINNET_CLI_EVAL_H_
#define LINNET_CLI_EVAL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "linnet/cli/image_options.h"
#include "linnet/runtime/model.h"

namespace linnet::cli {

struct EvalOptions {
  std::string model;
  DatasetOptions from;
  size_t limit = 0, batch = 64;
  std::optional<Precision> precision;
  int threads = 0, show = 0;
  uint64_t seed = 0;
  bool json = false;
  std::string dictionary;
  int beam = 1;
};

struct EvalTask {
  const char* task;
  void (*run)(const EvalOptions& options, const std::shared_ptr<const Model>& model);
};

extern const EvalTask kEvalImages, kEvalCopy, kEvalText, kEvalCouplet;

constexpr size_t kCopySequences = 200;  // that are copied where no --limit says otherwise

}  // namespace linnet::cli

#endif  // LINNET_CLI_EVAL_H_
