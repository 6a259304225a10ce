#include "linnet/tasks/images/cifar10.h"

#include <filesystem>
#include <span>
#include <system_error>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/gzip.h"
#include "linnet/io/tar.h"

namespace linnet {
namespace {

constexpr int kSide = 32, kChannels = 3, kClasses = 10;
constexpr size_t kPlane = size_t{kSide} * kSide;
constexpr size_t kRecord = 1 + kChannels * kPlane;  // a label, then the red, green and blue planes
// Limit of the decompressed archive, in bytes.
constexpr size_t kMaxArchive = size_t{1} << 29;
constexpr const char* kArchive = "cifar-10-binary.tar.gz";
constexpr const char* kFolder = "cifar-10-batches-bin/";  // in the archive

// File names of a split. The training split is in all of its files, the test split in the first one
// that exists.
std::vector<std::string> Batches(Split split) {
  if (split == Split::kTest) return {"test_batch.bin", "test_batch_first1000.bin"};
  std::vector<std::string> names;
  for (int i = 1; i <= 5; ++i) names.push_back(StrCat("data_batch_", i, ".bin"));
  return names;
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Adds the images of a batch to `images`. `where` names the batch in error messages.
void Append(std::span<const uint8_t> batch, const std::string& where, ImageSet& images) {
  if (batch.empty() || batch.size() % kRecord != 0) {
    throw InputError(where, ": holds ", batch.size(), " bytes, which is not a whole number of ",
                     kRecord, "-byte images; copy or download it again");
  }
  for (size_t at = 0; at < batch.size(); at += kRecord) {
    if (batch[at] >= kClasses) {
      throw InputError(where, ": image ", at / kRecord, " has the label ", int{batch[at]},
                       ", but CIFAR-10 has 0 to 9: the file is corrupt or not of CIFAR-10; copy or "
                       "download it again");
    }
    images.labels.push_back(batch[at]);
    const uint8_t* planes = batch.data() + at + 1;
    for (size_t p = 0; p < kPlane; ++p) {
      for (size_t c = 0; c < kChannels; ++c) images.pixels.push_back(planes[c * kPlane + p]);
    }
  }
}

// The folder that has unpacked batches of the split: `dir` or its subfolder kFolder, which
// unpacking the archive creates; "" if neither has any.
std::string BatchFolder(const std::string& dir, Split split) {
  for (const std::string& folder : {dir + "/", dir + "/" + kFolder}) {
    for (const std::string& name : Batches(split)) {
      if (Exists(folder + name)) return folder;
    }
  }
  return "";
}

ImageSet LoadCifar10(const std::string& dir, Split split) {
  ImageSet images{kCifar10.name, kSide, kSide, kChannels, {}, {}};
  const std::vector<std::string> names = Batches(split);
  if (const std::string folder = BatchFolder(dir, split); !folder.empty()) {
    for (const std::string& name : names) {
      const std::string path = folder + name;
      if (split == Split::kTest && !Exists(path)) continue;
      const MappedFile file(path);
      Append({reinterpret_cast<const uint8_t*>(file.bytes().data()), file.bytes().size()}, path,
             images);
      if (split == Split::kTest) break;
    }
    return images;
  }

  const std::string path = StrCat(dir, "/", kArchive);
  if (!Exists(path)) {
    throw InputError(dir, "/", names[0], ": no such file, and no ", kArchive,
                     " either; put one of them there");
  }
  const std::vector<uint8_t> archive = ReadGzipOrPlain(path, kMaxArchive);
  const std::vector<TarFile> files = ReadTar(archive, path);
  for (const std::string& name : names) {
    if (name == "test_batch_first1000.bin") continue;  // not in the official archive
    const TarFile* found = nullptr;
    for (const TarFile& file : files) {
      if (file.name == kFolder + name) found = &file;
    }
    if (found == nullptr) {
      throw InputError(path, ": holds no ", kFolder, name, "; copy or download it again");
    }
    Append(found->bytes, StrCat(path, ": ", name), images);
  }
  return images;
}

bool Cifar10Present(const std::string& dir) {
  return Exists(dir + "/" + kArchive) || !BatchFolder(dir, Split::kTrain).empty() ||
         !BatchFolder(dir, Split::kTest).empty();
}

}  // namespace

const ImageDataset kCifar10 = {
    "cifar10",
    "color images of ten classes, 32 x 32 RGB, 50,000 to train on and 10,000 to test on",
    "data_batch_1.bin and test_batch.bin, or cifar-10-binary.tar.gz,",
    kSide,
    kSide,
    kChannels,
    50000,
    10000,
    LoadCifar10,
    Cifar10Present,
};

}  // namespace linnet
