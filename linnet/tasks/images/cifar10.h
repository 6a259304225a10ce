// CIFAR-10: 50,000 and 10,000 color images of 32 x 32 pixels in ten classes, from the official
// binary version: its archive cifar-10-binary.tar.gz, or the files in it (data_batch_1.bin ... 5,
// test_batch.bin). test_batch_first1000.bin may hold the first images of the test batch only.
//
//   ImageSet test = kCifar10.load("data/cifar10", Split::kTest);
//
// The files store an image as three planes; ImageSet stores rows of RGB pixels.
#ifndef LINNET_TASKS_IMAGES_CIFAR10_H_
#define LINNET_TASKS_IMAGES_CIFAR10_H_

#include "linnet/tasks/images/image_set.h"

namespace linnet {

extern const ImageDataset kCifar10;

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_CIFAR10_H_
