// Images out of an image model: new ones, completed ones, and how well given ones are predicted.
//
//   Engine engine(Model::Open("models/digits.safetensors"));
//   std::vector<uint8_t> digits = SampleImages(engine, 16, {.seed = 7});        // [16, pixels]
//   double bits = BitsPerDim(engine, test_images).mean;
#ifndef LINNET_TASKS_IMAGES_IMAGES_H_
#define LINNET_TASKS_IMAGES_IMAGES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "linnet/base/function_ref.h"
#include "linnet/runtime/engine.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet {

struct DatasetOptions;  // task.h

struct SampleOptions {
  uint64_t seed = 0;
  // Image i draws from stream first_stream + i of the seed, whatever batch it is made in.
  uint64_t first_stream = 0;
  // Scales the logistics' log-odds and the mixture's logits: 1 is the trained density, towards 0
  // the most likely.
  float temperature = 1.0f;
  // The reference library's sampler takes elu(s) + 1.0001 for the scale instead of exp(s).
  bool reference_scale = false;
  size_t batch = 64;  // images generated together
  // Called now and then with the images finished and in all; may be null.
  const FunctionRef<void(size_t done, size_t total)>* progress = nullptr;
};

// `count` new images, [count, width * height * channels], each begun with a byte of the model's
// first-value distribution. Throws InputError if the model is not of the task "images".
std::vector<uint8_t> SampleImages(Engine& engine, size_t count, const SampleOptions& options);

// Images [count, pixels] whose first `known` bytes are kept and whose rest is drawn; 1 <= known.
std::vector<uint8_t> CompleteImages(Engine& engine, std::span<const uint8_t> images, size_t known,
                                    const SampleOptions& options);

struct BitsPerDimResult {
  double mean = 0;            // bits per predicted byte, over all images
  std::vector<double> image;  // the same for each image
  std::vector<double> byte;   // and for each byte but the first, over all images: [pixels - 1]
};

// Loads the split of a data set and checks that its images have the size that the model was made for.
ImageSet LoadImagesFor(const ModelSpec& spec, const DatasetOptions& options);

// -log2 of the probability of bytes 1 .. pixels-1 given all before them, per byte (the first byte
// is an input, never a target).
BitsPerDimResult BitsPerDim(Engine& engine, std::span<const uint8_t> images,
                            const SampleOptions& options = {});

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_IMAGES_H_
