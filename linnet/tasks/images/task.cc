// Images: evaluates bits per dimension over a data set.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/progress.h"
#include "linnet/error.h"
#include "linnet/tasks/images/images.h"
#include "linnet/tasks/task.h"

namespace linnet {
namespace {

// Averages `bytes` over each row of the image. `bytes` has one value for each byte of an image,
// except perhaps the first.
std::vector<double> ByRow(const std::vector<double>& bytes, const ImageSet& images) {
  const auto height = static_cast<size_t>(images.height);
  const size_t width = images.image_bytes() / height;  // bytes per row
  std::vector<double> rows(height);
  const size_t skipped = images.image_bytes() - bytes.size();
  for (size_t i = 0; i < bytes.size(); ++i) rows[(i + skipped) / width] += bytes[i];
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r] /= static_cast<double>(width - (r == 0 ? skipped : 0));
  }
  return rows;
}

Evaluation EvalImages(const EvalOptions& options, Engine& engine, const EvalProgress& report) {
  const Model& model = engine.model();
  const std::string& split = options.from.split;
  if (options.from.dir.empty()) {
    throw InputError(model.path(),
                     ": an image model; name the folder of its data set with --data DIR");
  }
  const ImageSet images = LoadImagesFor(model.spec(), options.from);
  const size_t count = options.limit > 0 ? std::min(options.limit, images.size()) : images.size();
  const ImageDataset& dataset = FindImageDataset(images.name);
  const size_t whole = split == "train" ? dataset.train_images : dataset.test_images;
  const Stopwatch watch;
  const auto pixels = std::span(images.pixels).first(count * images.image_bytes());
  const BitsPerDimResult result =
      BitsPerDim(engine, pixels, {.batch = options.batch, .progress = report});
  const double seconds = watch.Seconds(), bits = result.mean;
  CheckMean(model, bits);
  return {.record = {{"bits_per_dim", bits},
                     {"bits_per_dim_by_row", ByRow(result.byte, images)},
                     {"nats_per_dim", bits * std::numbers::ln2},
                     {"images", count},
                     {"split_images", whole},
                     {"seconds", seconds},
                     {"split", split},
                     {"dataset", images.name}},
          .summary = StrCat("bits/dim ", std::round(bits * 1e4) / 1e4, " over ", count,
                            count < whole ? StrCat(" of the ", whole) : "", " ", split,
                            " images of ", images.name)};
}

TaskLines DescribeImages(const ModelSpec& spec) {
  const ImageSpec& image = *spec.image();
  return {{"task", StrCat(" of ", image.width, " x ", image.height,
                          image.channels == 1 ? ", gray" : ", RGB")}};
}

}  // namespace

constinit const Task kImagesTask = {
    .name = "images",
    .description = "images, byte by byte or pixel by pixel",
    .evaluate = EvalImages,
    .describe = DescribeImages,
};

}  // namespace linnet
