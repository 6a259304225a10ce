#include "linnet/tasks/images/mnist.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "linnet/error.h"
#include "linnet/tasks/images/idx.h"

namespace linnet {
namespace {

constexpr int kMnistSide = 28;

// Finds a file in `dir` whose name is `stem`, then '-' or '.', then `type`, then nothing or ".gz";
// for example train-images-idx3-ubyte.gz. Returns its path, or "" if there is none.
std::string FindFile(const std::string& dir, const std::string& stem, const std::string& type) {
  for (const char* separator : {"-", "."}) {
    for (const char* suffix : {"", ".gz"}) {
      const std::string path = StrCat(dir, "/", stem, separator, type, suffix);
      std::error_code ignored;
      if (std::filesystem::exists(path, ignored)) return path;
    }
  }
  return "";
}

std::string NeedFile(const std::string& dir, const std::string& stem, const std::string& type) {
  const std::string path = FindFile(dir, stem, type);
  if (path.empty()) {
    throw InputError(dir, "/", stem, "-", type, "[.gz]: no such file; put it there");
  }
  return path;
}

ImageSet LoadMnist(const std::string& dir, Split split) {
  const std::string stem = split == Split::kTrain ? "train" : "t10k";
  const std::string images_path = NeedFile(dir, stem + "-images", "idx3-ubyte");
  const std::string labels_path = NeedFile(dir, stem + "-labels", "idx1-ubyte");
  IdxArray images = ReadIdx(images_path);
  IdxArray labels = ReadIdx(labels_path);

  if (images.shape.size() != 3 || images.shape[1] != kMnistSide || images.shape[2] != kMnistSide) {
    throw InputError(images_path, ": not images of 28 x 28; name a folder with MNIST's files");
  }
  if (images.shape[0] == 0) throw InputError(images_path, ": holds no images; download it again");
  if (labels.shape.size() != 1) throw InputError(labels_path, ": not a list of labels");
  if (labels.shape[0] != images.shape[0]) {
    throw InputError(labels_path, ": holds ", labels.shape[0], " labels for ", images.shape[0],
                     " images; download both files again");
  }
  if (std::any_of(labels.data.begin(), labels.data.end(), [](uint8_t x) { return x > 9; })) {
    throw InputError(labels_path, ": holds labels above 9; download it again");
  }
  return {kMnist.name, kMnistSide, kMnistSide, 1, std::move(images.data), std::move(labels.data)};
}

bool MnistPresent(const std::string& dir) {
  return !FindFile(dir, "train-images", "idx3-ubyte").empty() ||
         !FindFile(dir, "t10k-images", "idx3-ubyte").empty();
}

}  // namespace

const ImageDataset kMnist = {
    "mnist",
    "handwritten digits, 28 x 28 gray, 60,000 to train on and 10,000 to test on",
    "train-images-idx3-ubyte[.gz] and t10k-images-idx3-ubyte[.gz]",
    kMnistSide,
    kMnistSide,
    1,
    60000,
    10000,
    LoadMnist,
    MnistPresent,
};

}  // namespace linnet
