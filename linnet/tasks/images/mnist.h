// MNIST: 60,000 and 10,000 handwritten digits of 28 x 28 gray pixels, from its four IDX files,
// plain or gzipped, with either spelling (train-images-idx3-ubyte, train-images.idx3-ubyte).
//
//   ImageSet test = kMnist.load("data/mnist", Split::kTest);
#ifndef LINNET_TASKS_IMAGES_MNIST_H_
#define LINNET_TASKS_IMAGES_MNIST_H_

#include "linnet/tasks/images/image_set.h"

namespace linnet {

extern const ImageDataset kMnist;

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_MNIST_H_
