// The rows of an embedding of whole pixels (InputSpec::whole_pixels): 257 rows for each color, the
// last of which is for kBeginPixel. The embedding of a token is the sum of three rows.
//
//   for (size_t row : PixelRows(PixelToken(rgb))) ...
#ifndef LINNET_MODEL_PIXELS_H_
#define LINNET_MODEL_PIXELS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "linnet/spec.h"

namespace linnet {

inline constexpr int kColorRows = 257, kPixelRows = 3 * kColorRows;

// The token of the pixel with the bytes rgb[0 .. 2].
constexpr int32_t PixelToken(const uint8_t* rgb) { return rgb[0] << 16 | rgb[1] << 8 | rgb[2]; }

constexpr std::array<size_t, 3> PixelRows(int32_t token) {
  if (token == kBeginPixel) return {kColorRows - 1, 2 * kColorRows - 1, 3 * kColorRows - 1};
  return {static_cast<size_t>(token >> 16 & 255),
          static_cast<size_t>(token >> 8 & 255) + kColorRows,
          static_cast<size_t>(token & 255) + 2 * kColorRows};
}

// Rows of a model's value_embedding and above_embedding, and the token that stands for "nothing
// above" in an image's first row.
inline int EmbeddingRows(const ModelSpec& spec) {
  return spec.input.whole_pixels ? kPixelRows : spec.input.vocabulary;
}
inline int AboveRows(const ModelSpec& spec) {
  return spec.input.whole_pixels ? kPixelRows : spec.input.vocabulary + 1;
}
inline int32_t NothingAbove(const ModelSpec& spec) {
  return spec.input.whole_pixels ? kBeginPixel : spec.input.vocabulary;
}

}  // namespace linnet

#endif  // LINNET_MODEL_PIXELS_H_
