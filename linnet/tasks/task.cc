#include "linnet/tasks/task.h"

#include <cmath>

#include "linnet/error.h"
#include "linnet/model/registry.h"

namespace linnet {
namespace {

Registry<Task>& Rows() {
#define LINNET_TASK(Name) k##Name##Task,
  static Registry<Task> rows("task", {
#include "linnet/tasks/list.h"
                                     });
  return rows;
}

}  // namespace

std::vector<Task> Tasks() { return Rows().all(); }
void AddTask(const Task& task) { Rows().Add(task); }

std::optional<Task> FindTask(std::string_view name) {
  for (const Task& task : Tasks()) {
    if (task.name == name) return task;
  }
  return {};
}

bool IsOf(const ModelSpec& spec, const Task& task) { return spec.task == task.name; }

void CheckTask(const Model& model, const Task& task, const std::string& user) {
  if (IsOf(model.spec(), task)) return;
  throw InputError(model.path(), ": a model of the task '", model.spec().task, "', but linnet ",
                   user, " needs one of '", task.name, "'; see 'linnet info ", model.path(), "'");
}

TaskLines DescribeTask(const ModelSpec& spec) {
  TaskLines lines = {{"task", ""}};
  if (const auto task = FindTask(spec.task); task && task->describe) lines = task->describe(spec);
  lines[0].second.insert(0, spec.task);
  return lines;
}

void CheckMean(const Model& model, double mean) {
  if (std::isfinite(mean)) return;
  throw RuntimeError(model.path(), ": its evaluation produced NaN or infinity (", mean,
                     "); its weights are broken");
}

}  // namespace linnet
