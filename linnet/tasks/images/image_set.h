// Labeled images in memory, and the registry of image data sets.
//
//   ImageSet train = LoadImages("mnist", "data/mnist", Split::kTrain);
//   ImageSet test = LoadImages("", "data/mnist", Split::kTest);    // detects the data set
//   std::span<const uint8_t> first = train.image(0);               // 784 bytes
//
// To add a data set: write a file that defines an ImageDataset, and one line in datasets.cc.
#ifndef LINNET_TASKS_IMAGES_IMAGE_SET_H_
#define LINNET_TASKS_IMAGES_IMAGE_SET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace linnet {

struct ImageSet {
  std::string name;  // of the data set, e.g. "mnist"
  int width = 0, height = 0, channels = 0;
  std::vector<uint8_t> pixels;  // [size(), height, width, channels]
  std::vector<uint8_t> labels;  // [size()]

  size_t image_bytes() const { return static_cast<size_t>(width * height * channels); }
  size_t size() const { return labels.size(); }
  std::span<const uint8_t> image(size_t i) const {
    return std::span(pixels).subspan(i * image_bytes(), image_bytes());
  }
};

enum class Split { kTrain, kTest };

struct ImageDataset {
  const char* name;
  const char* description;
  const char* files;  // the expected files, for messages
  int width, height, channels;
  size_t train_images, test_images;  // of the full set; a folder may hold fewer
  // Reads one split from a folder. Throws InputError, naming the file, if a file is missing or
  // invalid.
  ImageSet (*load)(const std::string& dir, Split split);
  // Whether the folder holds at least one of the data set's files.
  bool (*present)(const std::string& dir);
};

// All known data sets.
const std::vector<ImageDataset>& ImageDatasets();

// Finds a data set by its name. For an unknown name, throws InputError with the known names.
const ImageDataset& FindImageDataset(const std::string& name);

// Loads the named data set from `dir`. With an empty name, loads the data set whose files are in
// `dir`, and throws InputError if `dir` has no data set (the message lists the expected files) or
// several. Also throws InputError if a file is missing or invalid.
ImageSet LoadImages(const std::string& name, const std::string& dir, Split split);

// The distribution of the images' first bytes, [256]. Models do not predict the first byte of an
// image, so generation draws it from this distribution.
std::vector<float> FirstByteDistribution(const ImageSet& images);

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_IMAGE_SET_H_
