#include "linnet/cli/image_options.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>
#include <vector>

#include "linnet/base/units.h"
#include "linnet/cli/verbs.h"
#include "linnet/error.h"
#include "linnet/io/png.h"
#include "linnet/kernels/isa.h"
#include "linnet/program/program.h"
#include "linnet/runtime/cuda/cuda_engine.h"

namespace linnet::cli {

void AddDatasetOptions(CLI::App* verb, DatasetOptions& options, const std::string& data_help) {
  AddOption(verb, "--data", options.dir, "PATH", data_help);
  AddOption(verb, "--dataset", options.name, "NAME",
            "Name of an image data set (default: detected from its files)");
  AddOption(verb, "--split", options.split, "NAME", "Part of the data set",
            CLI::IsMember({"train", "validation", "test"}));
}

void AddDrawingOptions(CLI::App* verb, DrawingOptions& options) {
  verb->add_option("-o,--out", options.out, "The PNG file to write")->type_name("FILE")->required();
  AddOption(verb, "--scale", options.scale, "N", "Size of an image pixel in the PNG: N x N pixels",
            Between(1, 100));
  AddSeedOption(verb, options.seed);
  AddOption(verb, "--temperature", options.temperature, "N",
            "Sampling temperature (below 1: closer to the most likely image)", Between(0.0, 10.0));
  AddOption(
      verb, "--sampler", options.sampler, "NAME",
      "Distribution to sample from. density: the predicted one; reference: a wider one, as in "
      "fast-transformers, for heads of logistics (scale of each logistic: elu(s) + 1.0001 "
      "instead of exp(s), with s from the network)",
      CLI::IsMember({"density", "reference"}));
  AddBatchOption(verb, options.batch);
}

void AddBatchOption(CLI::App* verb, size_t& batch) {
  AddOption(verb, "--batch", batch, "N", "Images per batch", Between(1, 65536));
}

SampleOptions ToSampleOptions(DrawingOptions& options,
                              const FunctionRef<void(size_t, size_t)>& progress) {
  SampleOptions sample;
  if (!options.seed) options.seed = DrawnSeed();
  sample.seed = *options.seed;
  sample.temperature = options.temperature;
  sample.reference_scale = options.sampler == "reference";
  sample.batch = options.batch;
  sample.progress = progress;
  return sample;
}

Drawer OpenDrawer(const std::string& path, const DrawerOptions& options) {
  Drawer drawer;
  if (options.device == DeviceKind::kCpu) {
    drawer.model = OpenModel(path, kImagesTask, options.verb, {options.precision});
    drawer.engine =
        std::make_unique<Engine>(drawer.model, EngineOptions{.threads = options.threads});
    drawer.generator = MakeGenerator(*drawer.engine, options.batch);
    drawer.device = "cpu";
    return drawer;
  }
  const Checkpoint checkpoint = Checkpoint::Open(path);
  auto engine = std::make_unique<CudaEngine>(
      checkpoint, CudaOptions{.batch = options.batch, .precision = options.precision});
  drawer.model = engine->shared_model();
  CheckTask(*drawer.model, kImagesTask, options.verb);
  drawer.device = engine->device();
  drawer.generator = std::move(engine);
  return drawer;
}

void CheckSheet(const ModelSpec& spec, const std::string& model, size_t count, int columns,
                const DrawingOptions& options) {
  std::string ending = std::filesystem::path(options.out).extension();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (ending != ".png") {
    throw InputError(options.out, ": only PNG files are written; choose a name that ends in .png");
  }
  MeasureGrid(spec.image()->width, spec.image()->height, spec.image()->channels, count, columns,
              options.scale,
              /*gap=*/options.scale);
  std::error_code ignored;
  if (std::filesystem::equivalent(options.out, model, ignored)) {
    throw InputError(options.out, ": is the model itself; choose another --out");
  }
  CheckWritable(options.out);
}

void PrintDrawn(nlohmann::ordered_json record, const std::string& what, size_t count,
                double seconds, const std::string& file, const Drawer& drawer,
                const DrawingOptions& options, bool json) {
  const double images = static_cast<double>(count);
  if (json) {
    record.update({{"seconds", seconds},
                   {"images_per_second", images / seconds},
                   {"ms_per_image", 1e3 * seconds / images},
                   {"seed", *options.seed},
                   {"batch", options.batch},
                   {"device", drawer.device},
                   {"threads", drawer.threads()},
                   {"isa", kernels::ActiveIsa()},
                   {"precision", PrecisionName(drawer.model->precision())},
                   {"model", file},
                   {"out", options.out}});
    return PrintJson(record);
  }
  std::cout << StrCat(options.out, ": ", count, " ", what, " in ", FormatSeconds(seconds), ", ",
                      FormatCount(images / seconds), " images/s, ",
                      FormatCount(1e3 * seconds / images), " ms an image (seed ", *options.seed,
                      ")\n");
}

void WriteSheet(const ModelSpec& spec, std::span<const uint8_t> pixels, int columns,
                const DrawingOptions& options) {
  constexpr uint8_t kBetween = 64;  // dark gray: neither a digit's background nor its stroke
  const size_t bytes = static_cast<size_t>(spec.image()->width) *
                       static_cast<size_t>(spec.image()->height) *
                       static_cast<size_t>(spec.image()->channels);
  std::vector<Image> images;
  for (size_t at = 0; at + bytes <= pixels.size(); at += bytes) {
    const auto image = pixels.subspan(at, bytes);
    images.push_back({spec.image()->width,
                      spec.image()->height,
                      spec.image()->channels,
                      {image.begin(), image.end()}});
  }
  WritePng(options.out, Grid(images, columns, options.scale, /*gap=*/options.scale, kBetween));
}

}  // namespace linnet::cli
