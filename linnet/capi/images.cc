#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "linnet/capi/capi.h"
#include "linnet/images.h"
#include "linnet/tasks/task.h"

namespace linnet::capi {
namespace {

constexpr linnet_image_options kImageOptions = {.size = sizeof(linnet_image_options),
                                                .seed = 0,
                                                .first_stream = 0,
                                                .temperature = 1,
                                                .reference_scale = 0,
                                                .batch = 64,
                                                .progress = nullptr,
                                                .progress_data = nullptr};

SampleOptions Converted(const linnet_image_options* options) {
  const linnet_image_options given = Read(options, kImageOptions, "linnet_image_options");
  std::function<void(size_t, size_t)> progress;
  if (given.progress != nullptr) {
    progress = [call = given.progress, data = given.progress_data](size_t done, size_t total) {
      if (call(data, done, total) != 0) throw Cancelled();
    };
  }
  return {.seed = given.seed,
          .first_stream = given.first_stream,
          .temperature = given.temperature,
          .reference_scale = given.reference_scale != 0,
          .batch = given.batch,
          .progress = std::move(progress)};
}

// Calls body(engine, options) with a caller's options converted to SampleOptions.
template <class Body>
int WithOptions(linnet_engine* engine, const linnet_image_options* options, const Body& body) {
  return StatusOf([&] {
    const SampleOptions converted = Converted(options);
    body(Given(engine, "the engine").engine, converted);
  });
}

// A caller's array of the model's outputs for byte `position` of an image. Empty at position 0: the
// distribution of the first byte is Model::first_value().
std::span<const float> Outputs(const Model& model, const float* outputs, size_t position) {
  if (position == 0) return {};
  return Array(outputs, static_cast<size_t>(model.spec().OutputSize()), "outputs");
}

// A caller's `count` images. Throws InputError unless the engine's model is an image model.
std::span<const uint8_t> Images(const Engine& engine, const uint8_t* images, size_t count) {
  const ModelSpec& spec = engine.model().spec();
  if (!spec.image()) {
    throw InputError(engine.model().path(), ": a model of the task '", spec.task,
                     "', not of images");
  }
  const auto bytes = static_cast<size_t>(spec.image()->height * spec.image()->RowBytes());
  return Array(images, Product({count, bytes}), "images");
}

}  // namespace
}  // namespace linnet::capi

using namespace linnet::capi;

extern "C" {

int linnet_image_options_init(linnet_image_options* options, size_t size) {
  return StatusOf([&] { Initialize(options, size, kImageOptions, "linnet_image_options"); });
}

int linnet_sample_images(linnet_engine* engine, size_t count, const linnet_image_options* options,
                         uint8_t* pixels) {
  return WithOptions(engine, options, [&](linnet::Engine& runs, const auto& own) {
    Given(pixels, "pixels");
    Images(runs, pixels, count);
    const std::vector<uint8_t> drawn = linnet::SampleImages(runs, count, own);
    std::copy(drawn.begin(), drawn.end(), pixels);
  });
}

int linnet_complete_images(linnet_engine* engine, const uint8_t* images, size_t count, size_t known,
                           const linnet_image_options* options, uint8_t* pixels) {
  return WithOptions(engine, options, [&](linnet::Engine& runs, const auto& own) {
    Given(pixels, "pixels");
    const std::vector<uint8_t> drawn =
        linnet::CompleteImages(runs, Images(runs, images, count), known, own);
    std::copy(drawn.begin(), drawn.end(), pixels);
  });
}

int linnet_draw_byte(const linnet_model* model, const float* outputs, size_t image, size_t position,
                     const linnet_image_options* options, uint8_t* byte) {
  return StatusOf([&] {
    const linnet::Model& drawn = *Given(model, "the model").model;
    Given(byte, "the byte") = linnet::DrawByte(drawn, Outputs(drawn, outputs, position), image,
                                               position, Converted(options));
  });
}

int linnet_draw_pixel(const linnet_model* model, const float* outputs, size_t image, size_t pixel,
                      const linnet_image_options* options, uint8_t* rgb) {
  return StatusOf([&] {
    const linnet::Model& drawn = *Given(model, "the model").model;
    Given(rgb, "rgb");
    const auto from = Array(outputs, static_cast<size_t>(drawn.spec().OutputSize()), "outputs");
    const auto colors = linnet::DrawPixel(drawn, from, image, pixel, Converted(options));
    std::copy(colors.begin(), colors.end(), rgb);
  });
}

int linnet_pixel_nats(const linnet_model* model, const float* outputs, const uint8_t* rgb,
                      double* nats) {
  return StatusOf([&] {
    const linnet::Model& read = *Given(model, "the model").model;
    Given(rgb, "rgb");
    const auto from = Array(outputs, static_cast<size_t>(read.spec().OutputSize()), "outputs");
    Given(nats, "nats") = linnet::PixelNats(read, from, {rgb[0], rgb[1], rgb[2]});
  });
}

int linnet_byte_nats(const linnet_model* model, const float* outputs, uint8_t byte, size_t position,
                     double* nats) {
  return StatusOf([&] {
    const linnet::Model& read = *Given(model, "the model").model;
    Given(nats, "nats") = linnet::ByteNats(read, Outputs(read, outputs, position), byte, position);
  });
}

int linnet_bits_per_dim(linnet_engine* engine, const uint8_t* images, size_t count,
                        const linnet_image_options* options, double* mean, double* each) {
  return WithOptions(engine, options, [&](linnet::Engine& runs, const auto& own) {
    Given(mean, "the mean");
    const linnet::BitsPerDimResult result =
        linnet::BitsPerDim(runs, Images(runs, images, count), own);
    CheckMean(runs.model(), result.mean);
    *mean = result.mean;
    if (each != nullptr) std::copy(result.image.begin(), result.image.end(), each);
  });
}

}  // extern "C"
