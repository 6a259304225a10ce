// linnet eval of models of images: bits a dimension.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>
#include <span>
#include <string>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/eval.h"
#include "linnet/cli/verbs.h"
#include "linnet/kernels/isa.h"
#include "linnet/runtime/engine.h"
#include "linnet/runtime/images.h"

namespace linnet::cli {
namespace {

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
  double bits = 0;
  WithProgress("evaluating", [&](const auto& report) {
    const auto pixels = std::span(images.pixels).first(count * images.image_bytes());
    bits = BitsPerDim(engine, pixels, {.batch = options.batch, .progress = &report}).mean;
  });
  const double seconds = watch.Seconds();
  if (!std::isfinite(bits)) {
    throw RuntimeError(model->path(), ": predicts no numbers (", bits, "); its weights are broken");
  }
  if (options.json) {
    PrintJson({{"bits_per_dim", bits},
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
