#include "linnet/train/task.h"

namespace linnet::train {

const std::vector<const TaskInfo*>& Tasks() {
#define LINNET_TASK(Name) &k##Name##Task,
  static const std::vector<const TaskInfo*> tasks = {
#include "linnet/tasks/list.h"
  };
  return tasks;
}

}  // namespace linnet::train
