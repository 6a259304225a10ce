// CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 color pixels in ten classes. Reads
// the official binary version: the archive cifar-10-binary.tar.gz, or the files that it contains
// (data_batch_1.bin to data_batch_5.bin, test_batch.bin). If test_batch.bin is missing, reads
// test_batch_first1000.bin, which has only the first 1,000 test images.
//
//   ImageSet test = kCifar10.load("data/cifar10", Split::kTest);
//
// The files store an image as three planes, one per color; ImageSet stores rows of RGB pixels.
#ifndef LINNET_TASKS_IMAGES_CIFAR10_H_
#define LINNET_TASKS_IMAGES_CIFAR10_H_

#include "linnet/tasks/images/image_set.h"

namespace linnet {

extern const ImageDataset kCifar10;

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_CIFAR10_H_
