#include "linnet/train/task.h"

namespace linnet::train {

const std::vector<const TaskInfo*>& Tasks() {
  static const std::vector<const TaskInfo*> tasks = {
      &kImagesTask, &kCopyTask, &kTextTask, &kCoupletTask,
#ifdef LINNET_WITH_SPEECH
      &kSpeechTask,
#endif
  };
  return tasks;
}

}  // namespace linnet::train
