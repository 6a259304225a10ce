#include "linnet/data/cifar10.h"
#include "linnet/data/image_set.h"
#include "linnet/data/mnist.h"

namespace linnet {

const std::vector<ImageDataset>& ImageDatasets() {
  static const std::vector<ImageDataset> datasets = {
      kCifar10,
      kMnist,
  };
  return datasets;
}

}  // namespace linnet
