#include "linnet/tasks/images/image_set.h"

#include <filesystem>
#include <system_error>

#include "linnet/error.h"

namespace linnet {

const ImageDataset& FindImageDataset(const std::string& name) {
  std::string known;
  for (const ImageDataset& dataset : ImageDatasets()) {
    if (name == dataset.name) return dataset;
    known += StrCat(known.empty() ? "" : ", ", dataset.name);
  }
  throw InputError("no image data set is called '", name, "'; known: ", known);
}

ImageSet LoadImages(const std::string& name, const std::string& dir, Split split) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) {
    throw InputError(dir, ": no such folder; name the folder that holds the data set's files");
  }
  if (!name.empty()) return FindImageDataset(name).load(dir, split);

  const ImageDataset* found = nullptr;
  std::string looked_for;
  for (const ImageDataset& dataset : ImageDatasets()) {
    looked_for += StrCat(looked_for.empty() ? "" : "; ", dataset.files, " of ", dataset.name);
    if (!dataset.present(dir)) continue;
    if (found != nullptr) {
      throw InputError(dir, ": holds both ", found->name, " and ", dataset.name,
                       "; name the one to read");
    }
    found = &dataset;
  }
  if (found == nullptr) {
    throw InputError(dir, ": holds no known image data set; looked for ", looked_for);
  }
  return found->load(dir, split);
}

std::vector<float> FirstByteDistribution(const ImageSet& images) {
  std::vector<float> share(256);
  for (size_t i = 0; i < images.size(); ++i) ++share[images.image(i)[0]];
  for (float& count : share) count /= static_cast<float>(images.size());
  return share;
}

}  // namespace linnet
