// Draws sequences of bytes, on the CPU or on a GPU: the interface between the image task and the
// engines.
//
//   generator.Draw(images, /*known=*/1, {.seed = 7});     // [count, bytes per image]
#ifndef LINNET_RUNTIME_GENERATOR_H_
#define LINNET_RUNTIME_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "linnet/model.h"

namespace linnet {

// Options of draws from the distributions that a model predicts. SampleOptions (linnet/images.h)
// explains the fields.
struct ImageDraws {
  uint64_t seed = 0;
  uint64_t first_stream = 0;
  float temperature = 1;
  bool reference_scale = false;
};

class Generator {
 public:
  virtual ~Generator() = default;
  virtual const Model& model() const = 0;
  // Maximum number of sequences per call of Draw().
  virtual size_t batch() const = 0;
  // Keeps the first `known` bytes of each image and draws the others: images [count, bytes] with
  // count <= batch(). known >= 1, or for models that read whole pixels a multiple of 3. Byte p (or
  // pixel p) of image i is drawn with the first numbers of Philox(seed, first_stream + i, p): one
  // for a categorical head, two for a mixture of logistics, four for a pixel. So draws do not
  // depend on the other images.
  virtual void Draw(std::span<uint8_t> images, size_t known, const ImageDraws& draws) = 0;
};

}  // namespace linnet

#endif  // LINNET_RUNTIME_GENERATOR_H_
