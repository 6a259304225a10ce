#include "linnet/io/png.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "linnet/io/file.h"
#include "linnet/io/test_util.h"

namespace linnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Image Ramp(int width, int height, int channels) {
  Image image{width, height, channels, {}};
  for (int i = 0; i < width * height * channels; ++i) {
    image.pixels.push_back(static_cast<uint8_t>(i * 7));
  }
  return image;
}

TEST(Png, RoundTrip) {
  TempDir dir;
  for (int channels : {1, 3}) {
    for (auto [width, height] : {std::pair{1, 1}, {28, 28}, {3, 50}, {101, 2}}) {
      const Image image = Ramp(width, height, channels);
      WritePng(dir / "a.png", image);
      const Image read = ReadPng(dir / "a.png");
      EXPECT_EQ(read.width, width);
      EXPECT_EQ(read.height, height);
      EXPECT_EQ(read.channels, channels);
      EXPECT_EQ(read.pixels, image.pixels);
    }
  }
}

TEST(Png, RefusesInvalidImages) {
  TempDir dir;
  EXPECT_THAT(ErrorOf([&] { WritePng(dir / "a.png", Image{}); }), HasSubstr("cannot hold"));
  EXPECT_THAT(ErrorOf([&] {
                WritePng(dir / "a.png", Image{2, 2, 1, {1, 2, 3}});
              }),
              HasSubstr("2 x 2 x 1 (width x height x channels) with 3 bytes of pixels"));
  EXPECT_THAT(ErrorOf([&] { WritePng(dir / "no/a.png", Ramp(2, 2, 1)); }),
              HasSubstr("does not exist"));
  EXPECT_EQ(dir.Entries(), 0);

  WriteFileAtomically(dir / "text.png", "not a picture");
  EXPECT_THAT(ErrorOf([&] { ReadPng(dir / "text.png"); }), HasSubstr("not a PNG image"));
  WriteFileAtomically(dir / "empty.png", "");
  EXPECT_THAT(ErrorOf([&] { ReadPng(dir / "empty.png"); }), HasSubstr("not a PNG image"));
}

TEST(Png, DamageIsRefusedOrHarmless) {
  TempDir dir;
  WritePng(dir / "a.png", Ramp(9, 5, 3));
  const std::string whole = ReadFile(dir / "a.png");
  const size_t pixels_end = whole.size() - 12;  // readers do not need the end marker
  for (size_t size = 0; size < pixels_end; ++size) {
    WriteFileAtomically(dir / "b.png", whole.substr(0, size));
    EXPECT_THAT(ErrorOf([&] { ReadPng(dir / "b.png"); }), Not("")) << size;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] ^= 0x20;
    WriteFileAtomically(dir / "b.png", flipped);
    ErrorOf([&] { ReadPng(dir / "b.png"); });
  }
}

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

std::string Chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const uLong crc =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return BigEndian(static_cast<uint32_t>(data.size())) + body +
         BigEndian(static_cast<uint32_t>(crc));
}

// A header alone can claim a million by a million pixels: nothing may be allocated for them.
TEST(Png, RefusesAnAbsurdSize) {
  TempDir dir;
  const std::string rgb8("\x08\x02\0\0\0", 5);
  WriteFileAtomically(dir / "a.png",
                      "\x89PNG\r\n\x1a\n" +
                          Chunk("IHDR", BigEndian(1000000) + BigEndian(1000000) + rgb8) +
                          Chunk("IDAT", "") + Chunk("IEND", ""));
  EXPECT_THAT(ErrorOf([&] { ReadPng(dir / "a.png"); }),
              HasSubstr("1000000 x 1000000 pixels are more than linnet reads"));
}

TEST(Grid, ScalesAndPads) {
  const std::vector<Image> images = {{2, 1, 1, {1, 2}}, {2, 1, 1, {3, 4}}, {2, 1, 1, {5, 6}}};
  const Image grid = Grid(images, /*columns=*/2, /*scale=*/2, /*gap=*/1, /*background=*/9);
  EXPECT_EQ(grid.width, 11);
  EXPECT_EQ(grid.height, 7);
  EXPECT_THAT(grid.pixels, ElementsAre(9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,  //
                                       9, 1, 1, 2, 2, 9, 3, 3, 4, 4, 9,  //
                                       9, 1, 1, 2, 2, 9, 3, 3, 4, 4, 9,  //
                                       9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,  //
                                       9, 5, 5, 6, 6, 9, 9, 9, 9, 9, 9,  //
                                       9, 5, 5, 6, 6, 9, 9, 9, 9, 9, 9,  //
                                       9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9));
}

TEST(Grid, KeepsColorsTogether) {
  const std::vector<Image> images = {{1, 1, 3, {1, 2, 3}}, {1, 1, 3, {4, 5, 6}}};
  EXPECT_THAT(Grid(images, 5, 1, 0, 0).pixels, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(Grid(images, 1, 1, 0, 0).pixels, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(Grid, RefusesUnequalAndAbsurd) {
  const std::vector<Image> unequal = {Ramp(2, 2, 1), Ramp(2, 3, 1)};
  EXPECT_THAT(ErrorOf([&] { Grid(unequal, 1, 1, 0, 0); }), HasSubstr("the same size"));
  const std::vector<Image> one = {Ramp(2, 2, 1)};
  EXPECT_THAT(ErrorOf([&] { Grid(one, 1, 2000000000, 0, 0); }), HasSubstr("larger than"));
  EXPECT_THAT(ErrorOf([&] { Grid({}, 1, 1, 0, 0); }), HasSubstr("needs images"));
}

}  // namespace
}  // namespace linnet
