// PNG images of 8-bit gray or RGB pixels, and contact sheets of many small images.
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

// The bytes of a PNG file with this image. Throws InputError, with a message that begins with
// `name`, if the image is empty, if it has neither 1 nor 3 channels, or if the size of `pixels` is
// not width * height * channels.
std::string EncodePng(const Image& image, const std::string& name);

// Replaces the file `path` atomically with EncodePng(image, path). AtomicFile describes the errors.
void WritePng(const std::string& path, const Image& image);

// Reads any PNG: gray and RGB unchanged, others converted (16 bits to 8, palettes to RGB,
// transparency blended over black). Throws InputError if the file is missing, not a PNG or corrupt,
// or if its pixels take more than 256 MiB.
Image ReadPng(const std::string& path);

// Arranges equally sized images in rows of `columns` images. Each pixel becomes a square of scale x
// scale pixels; `gap` pixels of `background` surround and separate the images. Throws InputError if
// there are no images, if they differ in size or channels, if a number is out of range, or if the
// grid takes more than 256 MiB.
Image Grid(std::span<const Image> images, int columns, int scale, int gap, uint8_t background);

// Cuts a grid of scale 1 into its images, row by row; includes empty cells of the last row.
std::vector<Image> CutGrid(const Image& grid, int image_width, int image_height, int gap);

// The size of a grid: across and down in images, width and height in pixels.
struct GridSize {
  size_t across = 0, down = 0, width = 0, height = 0;
};
// The size of the grid that Grid() would make of `count` images. Throws like Grid().
GridSize MeasureGrid(int image_width, int image_height, int channels, size_t count, int columns,
                     int scale, int gap);

}  // namespace linnet

#endif  // LINNET_IO_PNG_H_
