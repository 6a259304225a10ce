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
  // Scales the logistics' log-odds and the mixture's logits: 1 gives the trained density, values
  // near 0 the most likely bytes.
  float temperature = 1.0f;
  // Use elu(s) + 1.0001 as the scale instead of exp(s), as fast-transformers' sampler does.
  bool reference_scale = false;
  size_t batch = 64;  // images generated together
  // Called from time to time with the numbers of finished and of all images; may be null.
  const FunctionRef<void(size_t done, size_t total)>* progress = nullptr;
};

// `count` new images, [count, width * height * channels]; first bytes are drawn from the model's
// first-value distribution. Throws InputError if the model is not of the task "images".
std::vector<uint8_t> SampleImages(Generator& generator, size_t count, const SampleOptions& options);
std::vector<uint8_t> SampleImages(Engine& engine, size_t count, const SampleOptions& options);

// Keeps the first `known` >= 1 bytes of each of the images [count, pixels] and draws the rest.
std::vector<uint8_t> CompleteImages(Generator& generator, std::span<const uint8_t> images,
                                    size_t known, const SampleOptions& options);
std::vector<uint8_t> CompleteImages(Engine& engine, std::span<const uint8_t> images, size_t known,
                                    const SampleOptions& options);

// Draws with the engine, up to `batch` images together. The engine must outlive it.
std::unique_ptr<Generator> MakeGenerator(Engine& engine, size_t batch);

struct BitsPerDimResult {
  double mean = 0;            // bits per predicted byte, over all images
  std::vector<double> image;  // the same for each image
  std::vector<double> byte;   // and for each byte except the first, over all images: [pixels - 1]
};

// Loads the split of a data set and checks that its images have the model's image size.
ImageSet LoadImagesFor(const ModelSpec& spec, const DatasetOptions& options);

// -log2 of the probability of bytes 1 .. pixels - 1 given all bytes before them, per byte. The
// first byte is an input, never a target.
BitsPerDimResult BitsPerDim(Engine& engine, std::span<const uint8_t> images,
                            const SampleOptions& options = {});

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_IMAGES_H_
