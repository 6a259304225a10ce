// IDX files, the format of MNIST and its relatives: a small big-endian header, then the elements.
//
//   IdxArray images = ReadIdx("train-images-idx3-ubyte.gz");   // images.shape == {60000, 28, 28}
#ifndef LINNET_TASKS_IMAGES_IDX_H_
#define LINNET_TASKS_IMAGES_IDX_H_

#include <cstdint>
#include <string>
#include <vector>

namespace linnet {

struct IdxArray {
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;  // row-major; its size is the product of the shape
};

// Reads an IDX file of unsigned bytes, plain or gzipped. Throws InputError, naming the path, if the
// file is missing, truncated or corrupt, has another element type, or is longer than its header
// says.
IdxArray ReadIdx(const std::string& path);

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_IDX_H_
