// PNG images of eight-bit gray or RGB pixels, and contact sheets of many small ones.
//
//   WritePng("digits.png", Grid(images, /*columns=*/8, /*scale=*/3, /*gap=*/4, /*background=*/64));
#ifndef LINNET_IO_PNG_H_
#define LINNET_IO_PNG_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace linnet {

struct Image {
  int width = 0;
  int height = 0;
  int channels = 1;             // 1: gray, 3: RGB interleaved
  std::vector<uint8_t> pixels;  // [height, width, channels], top row first
};

// Replaces `path` in one step (see AtomicFile, also for its errors). Throws InputError when the
// image is empty or its fields disagree.
void WritePng(const std::string& path, const Image& image);

// Reads any PNG: gray and RGB as they are, others converted (sixteen bits to eight, palettes to
// RGB, transparency laid over black). Throws InputError when it is no PNG, corrupt or huge.
Image ReadPng(const std::string& path);

// Lays equal-sized images out row by row, `columns` to a row, each pixel drawn as scale x scale,
// with `gap` pixels of `background` around and between them. Throws InputError when the images
// differ in size or channels,
// or the grid gets too large for a PNG.
Image Grid(std::span<const Image> images, int columns, int scale, int gap, uint8_t background);

// The size of that grid, in images and in pixels; throws as Grid() would, before there is anything
// to show.
struct GridSize {
  size_t across = 0, down = 0, width = 0, height = 0;
};
GridSize MeasureGrid(int image_width, int image_height, int channels, size_t count, int columns,
                     int scale, int gap);

}  // namespace linnet

#endif  // LINNET_IO_PNG_H_
