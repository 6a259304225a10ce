#include "linnet/train/task.h"

namespace linnet::train {

const std::vector<const TaskInfo*>& Tasks() {
  static const std::vector<const TaskInfo*> tasks = {&kImagesTask, &kCopyTask};
  return tasks;
}

}  // namespace linnet::train
