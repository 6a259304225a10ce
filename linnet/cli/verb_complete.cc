// linnet complete: the model draws the lower part of images, given the upper part.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linnet/cli/image_options.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/program/program.h"
#include "linnet/tasks/images/images.h"

namespace linnet::cli {
namespace {

struct CompleteArguments {
  std::string model;
  DatasetOptions from;
  size_t count = 8, first = 0, alternatives = 1;
  int rows_known = 0;  // 0: the upper half
  DrawingOptions drawing;
  std::optional<Precision> precision;
  int threads = 0;
  DeviceKind device = DeviceKind::kCpu;
  bool json = false;
};

constexpr uint8_t kUnknown = 128;  // gray, for the bytes that are not given

// The images to complete: `count` images of the data set or, without --data, samples of the model.
std::vector<uint8_t> Originals(CompleteArguments& options, const Drawer& drawer) {
  if (options.from.dir.empty()) {
    std::vector<uint8_t> samples;
    WithProgress("drawing originals", [&](const auto& report) {
      SampleOptions sample = ToSampleOptions(options.drawing, report);
      sample.first_stream = options.first;
      samples = SampleImages(*drawer.generator, options.count, sample);
    });
    return samples;
  }
  const ImageSet images = LoadImagesFor(drawer.model->spec(), options.from);
  if (options.first >= images.size() || options.count > images.size() - options.first) {
    throw InputError(options.from.dir, ": has ", images.size(), " ", options.from.split,
                     " images, fewer than --first ", options.first, " plus --count ",
                     options.count);
  }
  const auto chosen =
      std::span(images.pixels)
          .subspan(options.first * images.image_bytes(), options.count * images.image_bytes());
  return {chosen.begin(), chosen.end()};
}

void Run(CompleteArguments& options) {
  const Drawer drawer =
      OpenDrawer(options.model,
                 {.verb = "complete",
                  .precision = options.precision,
                  .device = options.device,
                  .threads = options.threads,
                  .batch = std::min(options.drawing.batch, options.count * options.alternatives)});
  const ModelSpec& spec = drawer.model->spec();
  const int rows = options.rows_known > 0 ? options.rows_known : spec.image()->height / 2;
  if (rows < 1 || rows >= spec.image()->height) {
    throw InputError("--rows-known is ", rows, ", but the model's images have ",
                     spec.image()->height, " rows; give 1 to ", spec.image()->height - 1);
  }
  const int columns = static_cast<int>(options.count);
  CheckSheet(spec, options.model, options.count * (options.alternatives + 2), columns,
             options.drawing);
  const std::vector<uint8_t> originals = Originals(options, drawer);
  // Bytes of one image, and of its given rows.
  const size_t bytes = originals.size() / options.count;
  const size_t known =
      static_cast<size_t>(rows) * bytes / static_cast<size_t>(spec.image()->height);

  // The sheet has one column per image. From top to bottom, a column shows the given part, the
  // completions and the original.
  std::vector<uint8_t> sheet = originals;
  for (size_t i = 0; i < options.count; ++i) {
    std::fill_n(sheet.begin() + static_cast<ptrdiff_t>(i * bytes + known), bytes - known, kUnknown);
  }
  const Stopwatch watch;
  WithProgress("completing images", [&](const auto& report) {
    std::vector<uint8_t> repeated;
    for (size_t i = 0; i < options.alternatives; ++i) {
      repeated.insert(repeated.end(), originals.begin(), originals.end());
    }
    SampleOptions sample = ToSampleOptions(options.drawing, report);
    // Not the random streams of Originals(), with which the model would draw the originals again.
    sample.first_stream = options.first + options.count;
    const std::vector<uint8_t> completed =
        CompleteImages(*drawer.generator, repeated, known, sample);
    sheet.insert(sheet.end(), completed.begin(), completed.end());
  });
  const double seconds = watch.Seconds();
  sheet.insert(sheet.end(), originals.begin(), originals.end());
  WriteSheet(spec, sheet, columns, options.drawing);

  const size_t count = options.count * options.alternatives;
  const std::string source = options.from.dir.empty() ? "its own samples" : options.from.dir;
  PrintDrawn({{"images", count}, {"rows_known", rows}, {"of", source}}, "completions of " + source,
             count, seconds, options.model, drawer, options.drawing, options.json);
}

}  // namespace

void AddComplete(CLI::App& app) {
  CLI::App* verb = AddVerb(
      app, "complete", "Complete images from their upper rows",
      "The PNG sheet has one column per image. From top to bottom, a column shows the "
      "given rows\n(with gray below them), the completion (several with --alternatives) "
      "and the original.\nWithout --data, the model completes images that it has drawn itself.",
      "  linnet complete models/digits.safetensors --data data/mnist --out completed.png\n"
      "  linnet complete models/digits.safetensors --data data/mnist --rows-known 10 \\\n"
      "      --alternatives 4 --first 100 --out completed.png\n"
      "  linnet complete models/digits.safetensors --out own.png\n");
  auto options = std::make_shared<CompleteArguments>();
  AddModelArgument(verb, options->model);
  AddDatasetOptions(verb, options->from, "Folder of the data set");
  AddOption(verb, "-n,--count", options->count, "N", "Number of images", Between(1, 1000));
  AddOption(verb, "--first", options->first, "N", "Index of the first image, from 0",
            Between(0, 1'000'000'000));
  AddOption(verb, "--rows-known", options->rows_known, "N",
            "Number of given rows, from the top (default: half of the image)", Between(1, 65536));
  AddOption(verb, "--alternatives", options->alternatives, "N",
            "Number of completions of each image", Between(1, 1000));
  AddDrawingOptions(verb, options->drawing);
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddDeviceOption(verb, options->device);
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
