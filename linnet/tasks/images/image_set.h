// Labelled images in memory, and the data sets they come from, by name.
//
//   ImageSet train = LoadImages("mnist", "data/mnist", Split::kTrain);
//   ImageSet test = LoadImages("", "data/mnist", Split::kTest);    // by the files that lie there
//   std::span<const uint8_t> first = train.image(0);               // 784 bytes
//
// A new data set is a new file that defines an ImageDataset, and one line in datasets.cc.
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
  const char* files;  // what it looks for, for messages
  int width, height, channels;
  size_t train_images, test_images;  // of the whole set; a folder may hold fewer
  // Reads one split from a folder. Throws InputError, naming the file, when it is missing or bad.
  ImageSet (*load)(const std::string& dir, Split split);
  // Whether the folder holds at least one of its files.
  bool (*present)(const std::string& dir);
};

// All known data sets.
const std::vector<ImageDataset>& ImageDatasets();

// Throws InputError with the known names when there is none of that name.
const ImageDataset& FindImageDataset(const std::string& name);

// Loads the named data set from `dir`; with an empty name, the one whose files lie there. Throws
// InputError when there is none (saying what was looked for), more than one, or a bad file.
ImageSet LoadImages(const std::string& name, const std::string& dir, Split split);

// How often an image begins with each byte, [256]: what generation draws the first one from, which a
// model only ever reads.
std::vector<float> FirstByteDistribution(const ImageSet& images);

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_IMAGE_SET_H_
