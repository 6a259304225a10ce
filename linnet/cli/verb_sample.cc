// linnet sample: draws new images from an image model, on one sheet.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linnet/cli/image_options.h"
#include "linnet/cli/verbs.h"
#include "linnet/program/program.h"
#include "linnet/tasks/images/images.h"

namespace linnet::cli {
namespace {

struct SampleArguments {
  std::string model;
  size_t count = 16;
  int columns = 0;  // of the sheet; 0: about as many as rows
  DrawingOptions drawing;
  std::optional<Precision> precision;
  int threads = 0;
  DeviceKind device = DeviceKind::kCpu;
  bool json = false;
};

void Run(SampleArguments& options) {
  const int square = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(options.count))));
  const int columns = options.columns > 0 ? options.columns : square;
  const Drawer drawer =
      OpenDrawer(options.model, {.verb = "sample",
                                 .precision = options.precision,
                                 .device = options.device,
                                 .threads = options.threads,
                                 .batch = std::min(options.drawing.batch, options.count)});
  const ModelSpec& spec = drawer.model->spec();
  CheckSheet(spec, options.model, options.count, columns, options.drawing);

  const Stopwatch watch;
  std::vector<uint8_t> pixels;
  WithProgress("drawing images", [&](const auto& report) {
    pixels =
        SampleImages(*drawer.generator, options.count, ToSampleOptions(options.drawing, report));
  });
  const double seconds = watch.Seconds();

  WriteSheet(spec, pixels, columns, options.drawing);
  PrintDrawn({{"images", options.count}}, "images", options.count, seconds, options.model, drawer,
             options.drawing, options.json);
}

}  // namespace

void AddSample(CLI::App& app) {
  CLI::App* verb =
      AddVerb(app, "sample", "Draw new images from an image model, on one PNG sheet", "",
              "  linnet sample models/digits.safetensors --out digits.png\n"
              "  linnet sample models/digits.safetensors --out one.png --count 1 --scale 10\n"
              "  linnet sample models/digits.safetensors --out wall.png --count 400 --seed 7\n"
              "  linnet sample models/digits.safetensors --out wall.png --count 4000 --batch 4000 "
              "--device cuda\n");
  auto options = std::make_shared<SampleArguments>();
  AddModelArgument(verb, options->model);
  AddOption(verb, "-n,--count", options->count, "N", "Number of images", Between(1, 100'000));
  AddOption(verb, "--columns", options->columns, "N",
            "Number of columns of the sheet (default: about as many as rows)", Between(1, 100'000));
  AddDrawingOptions(verb, options->drawing);
  AddPrecisionOption(verb, options->precision);
  AddThreadsOption(verb, options->threads);
  AddDeviceOption(verb, options->device);
  AddJsonFlag(verb, options->json);
  verb->callback([options] { Run(*options); });
}

}  // namespace linnet::cli
