// Draws images with any Generator, and loads a data set for a model. (The functions of the same
// names in linnet/images.h draw with an Engine.)
//
//   auto generator = MakeGenerator(engine, /*batch=*/64);
//   std::vector<uint8_t> digits = SampleImages(*generator, 16, {.seed = 7});        // [16, pixels]
#ifndef LINNET_TASKS_IMAGES_IMAGES_H_
#define LINNET_TASKS_IMAGES_IMAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "linnet/images.h"
#include "linnet/runtime/generator.h"
#include "linnet/tasks/images/image_set.h"

namespace linnet {

struct DatasetOptions;  // task.h

// Like the functions of linnet/images.h, but with a Generator in place of the Engine.
std::vector<uint8_t> SampleImages(Generator& generator, size_t count, const SampleOptions& options);
std::vector<uint8_t> CompleteImages(Generator& generator, std::span<const uint8_t> images,
                                    size_t known, const SampleOptions& options);

// A generator that uses `engine` to draw up to `batch` images at a time. `engine` must outlive it.
std::unique_ptr<Generator> MakeGenerator(Engine& engine, size_t batch);

// Loads the data set and split that `options` names. Throws InputError for the split "validation",
// on a missing or invalid file, and if the images do not have the size that the model expects.
ImageSet LoadImagesFor(const ModelSpec& spec, const DatasetOptions& options);

}  // namespace linnet

#endif  // LINNET_TASKS_IMAGES_IMAGES_H_
