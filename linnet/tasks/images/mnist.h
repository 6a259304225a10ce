// MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 x 28 gray pixels. Reads
// MNIST's four IDX files, plain or gzipped. File names may be spelled with '-' or '.'
// (train-images-idx3-ubyte or train-images.idx3-ubyte).
//
//   ImageSet test = kMnist.load("data/mnist", Split::kTest);
#ifndef LINNET_TASKS_IMAGES_MNIST_H_
#define LINNET_TASKS_IMAGES_MNIST_H_

#include "linnet/tasks/images/image_set.h"

namespace linnet {

extern const ImageDataset kMnist;

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_MNIST_H_
