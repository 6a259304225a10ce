// The windows of the causal stem of images (StemSpec), shared by training and the engine: which
// inputs a convolution has, and in which order.
//
//   const StemWindow bytes = StemBytes(spec);            // of the first convolution
//   bytes.ForEach(n, [&](int64_t m) { in.push_back(m < 0 ? 0 : Value(m)); });
//
// "Byte" means token here: with whole_pixels it is a pixel, an image has one color, and a pixel is
// three inputs of the first convolution.
#ifndef LINNET_MODEL_STEM_H_
#define LINNET_MODEL_STEM_H_

#include <cstdint>
#include <string>

#include "linnet/error.h"
#include "linnet/spec.h"

namespace linnet {

// The window of byte n: pixels in raster order, up to the pixel of byte n, which is in the middle
// of the last row. The inputs of the first convolution are the bytes of these pixels that come
// before n. The second convolution (same_color) reads the features of one byte of each pixel: the
// byte with n's color, n itself included.
struct StemWindow {
  int rows, columns;  // of the window
  int width, colors;  // of the image
  bool same_color;

  // Number of bytes that the convolution of color k reads or, with same_color, number of bytes
  // whose features it reads.
  int Inputs(int k) const { return same_color ? Before() + 1 : Before() * colors + k; }
  // Number of pixels of the window before the pixel of byte n.
  int Before() const { return (rows - 1) * columns + columns / 2; }
  // Largest distance in bytes from the first byte of a window to byte n - 1, the current token.
  // With same_color: to byte n.
  int Reach() const {
    const int pixels = (rows - 1) * width + columns / 2;
    return same_color ? pixels * colors : pixels * colors + colors - 2;
  }

  // Calls visit(m) for each input of byte n's window in turn. m is the index of a byte, or -1 for a
  // byte outside the image.
  template <class Visit>
  void ForEach(int64_t n, Visit visit) const {
    const auto color = static_cast<int>(n % colors);
    const int64_t pixel = n / colors, y = pixel / width, x = pixel % width;
    const auto visit_pixel = [&](int64_t row, int64_t column, int from, int to) {
      const bool inside = row >= 0 && column >= 0 && column < width;
      for (int k = from; k < to; ++k) visit(inside ? (row * width + column) * colors + k : -1);
    };
    const int from = same_color ? color : 0, to = same_color ? color + 1 : colors;
    for (int64_t row = y - rows + 1; row <= y; ++row) {
      const int64_t end = row < y ? x + columns / 2 + 1 : x;
      for (int64_t column = x - columns / 2; column < end; ++column) {
        visit_pixel(row, column, from, to);
      }
    }
    visit_pixel(y, x, from, same_color ? to : color);
  }
};

// The window of the first convolution.
inline StemWindow StemBytes(const ModelSpec& spec) {
  const StemSpec& stem = spec.input.stem;
  return {stem.rows, stem.columns, spec.image()->width, spec.PixelTokens(), false};
}
// The window of the second convolution.
inline StemWindow StemFeatures(const ModelSpec& spec) {
  const StemSpec& stem = spec.input.stem;
  return {stem.second_rows, stem.second_columns, spec.image()->width, spec.PixelTokens(), true};
}
// Numbers that a token is for the first convolution, and the inputs of its color k.
inline int StemValues(const ModelSpec& spec) { return spec.input.whole_pixels ? 3 : 1; }
inline int StemInputs(const ModelSpec& spec, int k) {
  return StemBytes(spec).Inputs(k) * StemValues(spec);
}
// Position of the token of byte 0: a model that reads whole pixels first reads kBeginPixel.
inline int StemFirst(const ModelSpec& spec) { return spec.input.whole_pixels ? 1 : 0; }

// The input of the first convolution for a byte; exact in bf16. Bytes outside the image give 0.
inline float StemInput(int32_t byte) { return static_cast<float>(byte) / 128 - 1; }

// The names of the two convolutions of color k, without ".weight" and ".bias".
inline std::string StemFeaturesName(int k) { return StrCat("stem.features.", k); }
inline std::string StemOutputName(int k) { return StrCat("stem.output.", k); }

}  // namespace linnet

#endif  // LINNET_MODEL_STEM_H_
