#include "linnet/tasks/images/cifar10.h"
#include "linnet/tasks/images/image_set.h"
#include "linnet/tasks/images/mnist.h"

namespace linnet {

const std::vector<ImageDataset>& ImageDatasets() {
  static const std::vector<ImageDataset> datasets = {
      kCifar10,
      kMnist,
  };
  return datasets;
}

}  // namespace linnet
