// Options and output shared by the image verbs: the data set, sampling, and the PNG sheet of
// results.
//
//   AddDatasetOptions(verb, options->from, "Folder of the data set");
//   AddDrawingOptions(verb, options->drawing);
//   ImageSet images = LoadImagesFor(model->spec(), options.from);
//   WriteSheet(model->spec(), pixels, /*columns=*/4, options.drawing);
#ifndef LINNET_CLI_IMAGE_OPTIONS_H_
#define LINNET_CLI_IMAGE_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "linnet/base/function_ref.h"
#include "linnet/cli/verbs.h"
#include "linnet/model/spec.h"
#include "linnet/tasks/images/images.h"
#include "linnet/tasks/task.h"

namespace linnet::cli {

// Adds --data, with the help text `data_help`, --dataset and --split.
void AddDatasetOptions(CLI::App* verb, DatasetOptions& options, const std::string& data_help);

struct DrawingOptions {
  std::string out;
  std::string sampler = "density";    // or "reference" (--sampler)
  std::optional<uint64_t> seed = {};  // if missing, ToSampleOptions() sets a random one
  float temperature = 1.0f;
  size_t batch = 64;  // images drawn at the same time
  int scale = 4;      // an image pixel becomes scale x scale pixels of the PNG
};
void AddDrawingOptions(CLI::App* verb, DrawingOptions& options);
void AddBatchOption(CLI::App* verb, size_t& batch);

SampleOptions ToSampleOptions(DrawingOptions& options,
                              const FunctionRef<void(size_t, size_t)>& progress);

// A model that draws images on the CPU or on a GPU.
struct Drawer {
  std::shared_ptr<const Model> model;
  std::unique_ptr<Engine> engine;  // null if a GPU draws
  std::unique_ptr<Generator> generator;
  std::string device;  // the GPU's name, or "cpu"

  int threads() const { return engine ? engine->threads() : 0; }
};
struct DrawerOptions {
  std::string verb;  // for error messages
  std::optional<Precision> precision;
  DeviceKind device = DeviceKind::kCpu;
  int threads = 0;
  size_t batch = 64;
};
// Opens an image model. On a GPU, this allocates the memory for a whole batch.
Drawer OpenDrawer(const std::string& path, const DrawerOptions& options);

// Checks the output before any image is drawn. Throws if a sheet of `count` images would be too
// large for a PNG, or if the output file is not a .png, cannot be written, or is the model itself.
void CheckSheet(const ModelSpec& spec, const std::string& model, size_t count, int columns,
                const DrawingOptions& options);

// Prints a summary of the sampling: one line, or JSON that begins with the fields of `record`.
// `what`: what was drawn, for the line, such as "images". `file`: the model's file.
void PrintDrawn(nlohmann::ordered_json record, const std::string& what, size_t count,
                double seconds, const std::string& file, const Drawer& drawer,
                const DrawingOptions& options, bool json);

// Writes raw pixels [count, height, width, channels] as one PNG, a grid with `columns` columns.
void WriteSheet(const ModelSpec& spec, std::span<const uint8_t> pixels, int columns,
                const DrawingOptions& options);

}  // namespace linnet::cli

#endif  // LINNET_CLI_IMAGE_OPTIONS_H_
