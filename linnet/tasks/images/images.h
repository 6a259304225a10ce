// Image models: generation and completion of images, and the likelihood of given images.
//
//   Engine engine(Model::Open("models/digits.safetensors"));
//   std::vector<uint8_t> digits = SampleImages(engine, 16, {.seed = 7});        // [16, pixels]
//   double bits = BitsPerDim(engine, test_images).mean;
#ifndef LINNET_TASKS_IMAGES_IMAGES_H_
#define LINNET_TASKS_IMAGES_IMAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/runtime/engine.h"
#include "linnet/runtime/generator.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet {

struct DatasetOptions;  // task.h

struct SampleOptions {
  uint64_t seed = 0;
  // Image i draws from stream first_stream + i of the seed, independent of its batch.
  uint64_t first_stream = 0;
  // Divides the mixture's logits and multiplies the logistics' scales: 1 gives the trained density,
  // values near 0 the mean of the most likely component.
  float temperature = 1.0f;
  // Use elu(s) + 1.0001 as the scale instead of exp(s), as fast-transformers' sampler does.
  bool reference_scale = false;
  size_t batch = 64;  // images generated together
  // Called after each batch with the number of finished images and of all images; may be null.
  const FunctionRef<void(size_t done, size_t total)>* progress = nullptr;
};

// `count` new images, [count, width * height * channels]. First bytes are drawn from
// Model::first_value(). Throws InputError for a model of another task.
std::vector<uint8_t> SampleImages(Generator& generator, size_t count, const SampleOptions& options);
std::vector<uint8_t> SampleImages(Engine& engine, size_t count, const SampleOptions& options);

// Keeps the first `known` >= 1 bytes of each of the images [count, pixels] and draws the rest.
std::vector<uint8_t> CompleteImages(Generator& generator, std::span<const uint8_t> images,
                                    size_t known, const SampleOptions& options);
std::vector<uint8_t> CompleteImages(Engine& engine, std::span<const uint8_t> images, size_t known,
                                    const SampleOptions& options);

// A generator that runs `engine`, up to `batch` images together. The engine must outlive it.
std::unique_ptr<Generator> MakeGenerator(Engine& engine, size_t batch);

struct BitsPerDimResult {
  double mean = 0;            // bits per predicted byte, mean over all images
  std::vector<double> image;  // bits per predicted byte of each image
  std::vector<double> byte;   // [pixels - 1], bits of each byte except the first, mean over images
};

// Loads the split of a data set and checks that its images have the model's image size.
ImageSet LoadImagesFor(const ModelSpec& spec, const DatasetOptions& options);

// -log2 of the probability of bytes 1 .. pixels - 1, each given all bytes before it. The first byte
// is never predicted.
BitsPerDimResult BitsPerDim(Engine& engine, std::span<const uint8_t> images,
                            const SampleOptions& options = {});

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_IMAGES_H_
