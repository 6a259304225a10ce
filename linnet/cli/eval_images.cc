// linnet eval of models of images: bits a dimension.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/eval.h"
#include "linnet/cli/verbs.h"
#include "linnet/kernels/isa.h"
#include "linnet/runtime/engine.h"
#include "linnet/tasks/images/images.h"

namespace linnet::cli {
namespace {

// The mean of each of an image's rows, the first one without its first byte.
std::vector<double> ByRow(const std::vector<double>& bytes, const ImageSet& images) {
  const auto height = static_cast<size_t>(images.height);
  const size_t width = images.image_bytes() / height;
  std::vector<double> rows(height);
  for (size_t i = 0; i < bytes.size(); ++i) rows[(i + 1) / width] += bytes[i];
  for (size_t r = 0; r < rows.size(); ++r) rows[r] /= static_cast<double>(width - (r == 0 ? 1 : 0));
  return rows;
}

void EvalImages(const EvalOptions& options, const std::shared_ptr<const Model>& model) {
  if (options.from.dir.empty()) {
    throw InputError(model->path(),
                     ": an image model; name the folder of its data set with --data DIR");
  }
  const ImageSet images = LoadImagesFor(model->spec(), options.from);
  const size_t count = options.limit > 0 ? std::min(options.limit, images.size()) : images.size();
  const ImageDataset& dataset = FindImageDataset(images.name);
  const size_t whole = options.from.split == "train" ? dataset.train_images : dataset.test_images;
  Engine engine(model, {.threads = options.threads});

  const Stopwatch watch;
  BitsPerDimResult result;
  WithProgress("evaluating", [&](const auto& report) {
    const auto pixels = std::span(images.pixels).first(count * images.image_bytes());
    result = BitsPerDim(engine, pixels, {.batch = options.batch, .progress = &report});
  });
  const double seconds = watch.Seconds(), bits = result.mean;
  if (!std::isfinite(bits)) {
    throw RuntimeError(model->path(), ": predicts no numbers (", bits, "); its weights are broken");
  }
  if (options.json) {
    PrintJson({{"bits_per_dim", bits},
               {"bits_per_dim_by_row", ByRow(result.byte, images)},
               {"nats_per_dim", bits * std::numbers::ln2},
               {"images", count},
               {"split_images", whole},
               {"seconds", seconds},
               {"split", options.from.split},
               {"dataset", images.name},
               {"model", options.model},
               {"threads", engine.pool().size()},
               {"isa", kernels::ActiveIsa()},
               {"precision", PrecisionName(model->precision())}});
  } else {
    std::cout << StrCat("bits/dim ", std::round(bits * 1e4) / 1e4, " over ", count,
                        count < whole ? StrCat(" of the ", whole) : "", " ", options.from.split,
                        " images of ", images.name, " (", FormatSeconds(seconds), ")\n");
  }
}

}  // namespace

const EvalTask kEvalImages = {"images", EvalImages};

}  // namespace linnet::cli
