// The registry of tasks: how models of a task are evaluated, described and served. A task's data
// and generation are ordinary functions in its folder; its training is in train/NAME.cc.
//
//   const std::optional<Task> task = FindTask(model->spec().task);
//   const Evaluation result = task->evaluate({.from = {.dir = "data/mnist"}}, engine, report);
//
// To add a task: write NAME/task.cc, which defines `const Task kNameTask`, and train/NAME.cc, which
// defines train::kNameTask (train/task.h); then add a line to list.h, which registers both.
// Programs outside the library call AddTask().
#ifndef LINNET_TASKS_TASK_H_
#define LINNET_TASKS_TASK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/engine.h"
#include "linnet/tasks/endpoint.h"

namespace linnet {

// The location of a data set.
struct DatasetOptions {
  // dir: a folder or a file. name: of the data set; if empty, detected from the files in `dir`.
  std::string dir, name;
  std::string split = "test";
};

struct EvalOptions {
  DatasetOptions from;
  size_t limit = 0;   // maximum number of images, sequences, ...; 0: all, or the task's default
  size_t batch = 64;  // items evaluated together
  int show = 0;       // number of examples in Evaluation::examples
  uint64_t seed = 0;  // of generated test sequences
};

// Generated test sequence i uses Philox stream kFreshStreams + i of EvalOptions::seed. A training
// run with the same seed uses only streams near 0 (training) and near 2^64 (validation), so test
// sequences are new.
inline constexpr uint64_t kFreshStreams = uint64_t{1} << 62;

struct Evaluation {
  nlohmann::ordered_json record;  // metrics by name, including "seconds"
  std::string summary;            // the main metrics in one line
  std::string examples = {};      // lines of text
};

// Names and values of a model's properties; the first is "task".
using TaskLines = std::vector<std::pair<std::string, std::string>>;

using EvalProgress = FunctionRef<void(size_t done, size_t total)>;

// A path of POST requests to models of a task. `make` is as Task::endpoint. `serves` says whether
// the path can serve a model; if it cannot, the error says `missing`.
struct MorePath {
  const char* path;
  std::unique_ptr<server::Endpoint> (*make)(std::vector<server::ServedModel> models,
                                            const server::EndpointLimits& limits);
  bool (*serves)(const server::ServedModel& model);
  const char* missing;
};

struct Task {
  std::string_view name;  // as in ModelSpec::task
  std::string_view description;

  // The verb that the progress line of an evaluation shows.
  const char* evaluating = "evaluating";
  // Evaluates a model. Throws InputError on missing data and on data that the model cannot read.
  // Null if the task has no evaluation, or one that is called directly (speech/eval.h).
  Evaluation (*evaluate)(const EvalOptions& options, Engine& engine,
                         const EvalProgress& report) = nullptr;

  // Properties of a model, from its spec. DescribeTask() prepends the task's name to the first
  // value. If the pointer is null, DescribeTask() returns only the name.
  TaskLines (*describe)(const ModelSpec& spec) = nullptr;

  // The URL path of POST requests; null: models of the task cannot be served.
  const char* path = nullptr;
  // Makes the endpoint at `path`. The pointer is null if `path` is null.
  std::unique_ptr<server::Endpoint> (*endpoint)(std::vector<server::ServedModel> models,
                                                const server::EndpointLimits& limits) = nullptr;
  // Further paths of POST requests, some of which need options of the server.
  std::span<const MorePath> more = {};
};

std::vector<Task> Tasks();
std::optional<Task> FindTask(std::string_view name);
// The task's strings must stay valid. Throws InputError if the name is taken.
void AddTask(const Task& task);

#define LINNET_TASK(Name) extern const Task k##Name##Task;  // NAME/task.cc
#include "linnet/tasks/list.h"

bool IsOf(const ModelSpec& spec, const Task& task);
// Throws InputError for a model of another task. `user`: the linnet command that the message names.
void CheckTask(const Model& model, const Task& task, const std::string& user);

// The lines of `linnet info` about a model's task. If the task is not registered: only its name.
TaskLines DescribeTask(const ModelSpec& spec);

// Throws RuntimeError if `mean`, an evaluation result, is not finite; then the weights are broken.
void CheckMean(const Model& model, double mean);

}  // namespace linnet

#endif  // LINNET_TASKS_TASK_H_
