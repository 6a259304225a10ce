// The registry of tasks: how models of a task are measured, described and served. A task's data and
// generation are ordinary functions in its folder, and its training is train/NAME.cc.
//
//   const std::optional<Task> task = FindTask(model->spec().task);
//   const Evaluation result = task->evaluate({.from = {.dir = "data/mnist"}}, engine, report);
//
// A new task is a file NAME/task.cc that defines `const Task kNameTask`, and a line in list.h, which its
// training shares. A program adds one with AddTask().
#ifndef LINNET_TASKS_TASK_H_
#define LINNET_TASKS_TASK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/runtime/engine.h"
#include "linnet/tasks/endpoint.h"

namespace linnet {

// Where data comes from.
struct DatasetOptions {
  std::string dir, name;  // a folder or a file; name: "" for whatever lies in dir
  std::string split = "test";
};

struct EvalOptions {
  DatasetOptions from;
  size_t limit = 0;   // of images, sequences, ...; 0: all, or as many as the task has for that
  size_t batch = 64;  // worked on together
  int show = 0;       // examples in Evaluation::examples
  uint64_t seed = 0;  // of random sequences
};

struct Evaluation {
  nlohmann::ordered_json record;  // figures by name, "seconds" among them
  std::string summary;            // the same in one line
  std::string examples = {};      // lines
};

// Names and values of a model's properties; the first is "task".
using TaskLines = std::vector<std::pair<std::string, std::string>>;

using EvalProgress = FunctionRef<void(size_t done, size_t total)>;

struct Task {
  std::string_view name;  // as in ModelSpec::task
  std::string_view description;

  // A word for the progress line, and the measure; null: there is none. Throws InputError on data that the
  // model cannot read and on missing data.
  const char* evaluating = "evaluating";
  Evaluation (*evaluate)(const EvalOptions& options, Engine& engine,
                         const EvalProgress& report) = nullptr;

  // What a model's spec says of the task; the first value goes on behind the task's name. Null: no more than
  // the name.
  TaskLines (*describe)(const ModelSpec& spec) = nullptr;

  // The path of POST requests, and its endpoint over models of the task; null: cannot be served.
  const char* path = nullptr;
  std::unique_ptr<server::Endpoint> (*endpoint)(std::vector<server::ServedModel> models,
                                                const server::EndpointLimits& limits) = nullptr;
};

std::vector<Task> Tasks();
std::optional<Task> FindTask(std::string_view name);
// Strings of the row must live on. Throws InputError where the name is taken.
void AddTask(const Task& task);

#define LINNET_TASK(Name) extern const Task k##Name##Task;  // NAME/task.cc
#include "linnet/tasks/list.h"

bool IsOf(const ModelSpec& spec, const Task& task);
// Throws InputError for a model of another task; `user` is who needs it, for the message.
void CheckTask(const Model& model, const Task& task, const std::string& user);

// What `linnet info` says of a model's task, known or not.
TaskLines DescribeTask(const ModelSpec& spec);

// Throws RuntimeError where `mean`, a measure of the model, is not finite: its weights are broken.
void CheckMean(const Model& model, double mean);

}  // namespace linnet

#endif  // LINNET_TASKS_TASK_H_
