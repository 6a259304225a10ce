// Image models: generation and completion of images, and the likelihood of given images.
//
//   linnet::Engine engine(linnet::Model::Open("models/digits.safetensors"));
//   std::vector<uint8_t> digits = linnet::SampleImages(engine, 16, {.seed = 7});   // [16, 28, 28]
//   double bits = linnet::BitsPerDim(engine, digits).mean;
#ifndef LINNET_IMAGES_H_
#define LINNET_IMAGES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "linnet/engine.h"
#include "linnet/export.h"

namespace linnet {

struct SampleOptions {
  uint64_t seed = 0;
  // Image i draws from stream first_stream + i of the seed, whatever batch it is in.
  uint64_t first_stream = 0;
  // 1 draws from the distribution that the model predicts. The temperature divides the logits of a
  // categorical head, or those of a mixture of logistics, whose scales it multiplies. So values
  // near 0 give the likeliest byte, or the mean of the likeliest component.
  float temperature = 1.0f;
  // True: a logistic with log-scale s has the scale elu(s) + 1.0001 instead of exp(s), as in
  // fast-transformers' sampler. Not for categorical heads.
  bool reference_scale = false;
  size_t batch = 64;  // images generated together
  // Called after each batch with the numbers of finished images and of all images; may be empty.
  std::function<void(size_t done, size_t total)> progress = {};
};

// Draws `count` new images, [count, height, width, channels]. First bytes are drawn from
// Model::first_value(), unless the model reads whole pixels. Throws InputError for a model of
// another task.
LINNET_API std::vector<uint8_t> SampleImages(Engine& engine, size_t count,
                                             const SampleOptions& options = {});

// Keeps the first `known` >= 1 bytes of each of the images [count, height, width, channels] and
// draws the rest. If the model reads whole pixels, `known` must be a multiple of 3.
LINNET_API std::vector<uint8_t> CompleteImages(Engine& engine, std::span<const uint8_t> images,
                                               size_t known, const SampleOptions& options = {});

// A program that shows an image while it is drawn calls DrawByte() and an engine's Step() for each
// byte:
//
//   std::vector<uint8_t> image = {DrawByte(model, {}, 0, 0, options)};
//   while (image.size() < bytes) {
//     engine.Step(state, std::array<int32_t, 1>{image.back()}, outputs);
//     image.push_back(DrawByte(model, outputs, 0, image.size(), options));
//   }
//
// Draws byte `position` of image number `image`: at position 0 from Model::first_value(), later
// from the outputs [output_size] that the engine gave for the byte before it. From the same
// outputs, SampleImages() draws the same byte. Throws InputError for a model of another task, and
// for one that reads whole pixels, which needs DrawPixel().
LINNET_API uint8_t DrawByte(const Model& model, std::span<const float> outputs, size_t image,
                            size_t position, const SampleOptions& options = {});
// -ln p of a byte, where p is its probability given the bytes before it. Arguments as for
// DrawByte().
LINNET_API double ByteNats(const Model& model, std::span<const float> outputs, uint8_t byte,
                           size_t position);

// For a model that reads whole pixels (InputSpec::whole_pixels): draws the colors of pixel `pixel`
// of image number `image` from the outputs that the engine gave for the pixel before it, or for
// kBeginPixel. The next token is red << 16 | green << 8 | blue.
LINNET_API std::array<uint8_t, 3> DrawPixel(const Model& model, std::span<const float> outputs,
                                            size_t image, size_t pixel,
                                            const SampleOptions& options = {});
// -ln p of the colors of a pixel, given the pixels before it. Arguments as for DrawPixel().
LINNET_API double PixelNats(const Model& model, std::span<const float> outputs,
                            const std::array<uint8_t, 3>& rgb);

struct BitsPerDimResult {
  double mean = 0;            // mean of `image`
  std::vector<double> image;  // each image's mean number of bits per predicted byte
  // Bits of each predicted byte, mean over the images: byte 1, 2, ..., or if the model reads whole
  // pixels, byte 0, 1, ...
  std::vector<double> byte;
};

// Evaluates -log2 p of the bytes of images, where p is a byte's probability given all bytes before
// it. Unless the model reads whole pixels, it does not predict the first byte of an image, which
// then does not count.
LINNET_API BitsPerDimResult BitsPerDim(Engine& engine, std::span<const uint8_t> images,
                                       const SampleOptions& options = {});

}  // namespace linnet

#endif  // LINNET_IMAGES_H_
