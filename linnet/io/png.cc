#include "linnet/io/png.h"

#include <png.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"

namespace linnet {
namespace {

// Maximum size of an image's pixels, 256 MiB: far above any contact sheet, far below a harmful
// allocation.
constexpr uint64_t kMaxImageBytes = uint64_t{1} << 28;

// The size in bytes of an image of positive dimensions; 0 if larger than kMaxImageBytes.
uint64_t ImageBytes(uint64_t width, uint64_t height, uint64_t channels) {
  if (width > kMaxImageBytes || height > kMaxImageBytes / width / channels) return 0;
  return width * height * channels;
}

// Frees libpng's memory for an image on every exit path.
struct PngImage {
  PngImage() {
    std::memset(&image, 0, sizeof(image));
    image.version = PNG_IMAGE_VERSION;
  }
  ~PngImage() { png_image_free(&image); }
  png_image image;
};

}  // namespace

std::string EncodePng(const Image& image, const std::string& name) {
  if (image.width < 1 || image.height < 1 || (image.channels != 1 && image.channels != 3) ||
      image.pixels.size() != static_cast<uint64_t>(image.width) *
                                 static_cast<uint64_t>(image.height) *
                                 static_cast<uint64_t>(image.channels)) {
    throw InputError(name, ": cannot hold an image of ", image.width, " x ", image.height, " x ",
                     image.channels, " (width x height x channels) with ", image.pixels.size(),
                     " bytes of pixels");
  }
  PngImage png;
  png.image.width = static_cast<png_uint_32>(image.width);
  png.image.height = static_cast<png_uint_32>(image.height);
  png.image.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;

  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png.image);
  std::string file(size, '\0');
  if (!png_image_write_to_memory(&png.image, file.data(), &size, /*convert_to_8_bit=*/0,
                                 image.pixels.data(), /*row_stride=*/0, /*colormap=*/nullptr)) {
    throw RuntimeError(name, ": cannot be encoded as PNG (", png.image.message, ")");
  }
  file.resize(size);
  return file;
}

void WritePng(const std::string& path, const Image& image) {
  WriteFileAtomically(path, EncodePng(image, path));
}

Image ReadPng(const std::string& path) {
  const MappedFile file(path);
  PngImage png;
  if (!png_image_begin_read_from_memory(&png.image, file.bytes().data(), file.bytes().size())) {
    throw InputError(path, ": not a PNG image (", png.image.message, ")");
  }
  Image image;
  image.channels = (png.image.format & PNG_FORMAT_FLAG_COLOR) ? 3 : 1;
  png.image.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  const uint64_t bytes = ImageBytes(png.image.width, png.image.height, image.channels);
  if (bytes == 0) {
    throw InputError(path, ": ", png.image.width, " x ", png.image.height,
                     " pixels are more than linnet reads; shrink the image first");
  }
  image.width = static_cast<int>(png.image.width);
  image.height = static_cast<int>(png.image.height);
  image.pixels.resize(bytes);  // black; libpng blends transparent pixels over it
  if (!png_image_finish_read(&png.image, /*background=*/nullptr, image.pixels.data(),
                             /*row_stride=*/0, /*colormap=*/nullptr)) {
    throw InputError(path, ": corrupt PNG image (", png.image.message,
                     "); copy or download it again");
  }
  return image;
}

GridSize MeasureGrid(int image_width, int image_height, int channels, size_t count, int columns,
                     int scale, int gap) {
  if (count == 0 || columns < 1 || scale < 1 || gap < 0) {
    throw InputError("a grid needs at least one image and one column, a scale >= 1 and a gap >= 0");
  }
  GridSize size;
  size.across = std::min(static_cast<size_t>(columns), count);
  size.down = (count + size.across - 1) / size.across;
  const size_t zoom = static_cast<size_t>(scale), space = static_cast<size_t>(gap);
  size.width = size.across * (static_cast<size_t>(image_width) * zoom + space) + space;
  size.height = size.down * (static_cast<size_t>(image_height) * zoom + space) + space;
  if (size.width == 0 || size.height == 0 ||
      ImageBytes(size.width, size.height, static_cast<size_t>(channels)) == 0) {
    throw InputError("a grid of ", size.across, " x ", size.down, " images of ", image_width, " x ",
                     image_height, " at scale ", scale, " is larger than ",
                     FormatBytes(static_cast<double>(kMaxImageBytes)),
                     "; show fewer or smaller images");
  }
  return size;
}

Image Grid(std::span<const Image> images, int columns, int scale, int gap, uint8_t background) {
  if (images.empty()) throw InputError("a grid needs images");
  const GridSize size = MeasureGrid(images[0].width, images[0].height, images[0].channels,
                                    images.size(), columns, scale, gap);
  const size_t width = static_cast<size_t>(images[0].width);
  const size_t height = static_cast<size_t>(images[0].height);
  const size_t channels = static_cast<size_t>(images[0].channels);
  for (const Image& image : images) {
    if (image.width != images[0].width || image.height != images[0].height ||
        image.channels != images[0].channels || image.pixels.size() != width * height * channels) {
      throw InputError("the images of a grid must have the same size: ", images[0].width, " x ",
                       images[0].height, " x ", channels, " is followed by ", image.width, " x ",
                       image.height, " x ", image.channels, " with ", image.pixels.size(),
                       " bytes of pixels");
    }
  }
  const size_t zoom = static_cast<size_t>(scale), space = static_cast<size_t>(gap);
  const size_t cell_width = width * zoom + space, cell_height = height * zoom + space;
  Image grid{static_cast<int>(size.width), static_cast<int>(size.height), images[0].channels, {}};
  const size_t stride = size.width * channels;
  grid.pixels.assign(size.height * stride, background);
  for (size_t i = 0; i < images.size(); ++i) {
    uint8_t* corner = grid.pixels.data() + (space + i / size.across * cell_height) * stride +
                      (space + i % size.across * cell_width) * channels;
    for (size_t y = 0; y < height * zoom; ++y) {
      const uint8_t* from = images[i].pixels.data() + y / zoom * width * channels;
      uint8_t* to = corner + y * stride;
      for (size_t x = 0; x < width * zoom; ++x) {
        std::copy_n(from + x / zoom * channels, channels, to + x * channels);
      }
    }
  }
  return grid;
}

std::vector<Image> CutGrid(const Image& grid, int image_width, int image_height, int gap) {
  std::vector<Image> images;
  for (int top = gap; top + image_height <= grid.height; top += image_height + gap) {
    for (int left = gap; left + image_width <= grid.width; left += image_width + gap) {
      Image& image = images.emplace_back(Image{image_width, image_height, grid.channels, {}});
      for (int y = top; y < top + image_height; ++y) {
        const ptrdiff_t at = (ptrdiff_t{y} * grid.width + left) * grid.channels;
        const auto row = grid.pixels.begin() + at;
        image.pixels.insert(image.pixels.end(), row, row + ptrdiff_t{image_width} * grid.channels);
      }
    }
  }
  return images;
}

}  // namespace linnet
