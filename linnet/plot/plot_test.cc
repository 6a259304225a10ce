#include "linnet/plot/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "linnet/io/file.h"
#include "linnet/io/png.h"
#include "linnet/io/test_util.h"

namespace linnet::plot {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Rgb = std::array<int, 3>;
constexpr Rgb kBlue = {0x00, 0x72, 0xb2}, kRed = {0xd5, 0x5e, 0x00};

Plot TwoLines() {
  return {.title = "two lines",
          .x = {.label = "step"},
          .y = {.label = "loss"},
          .series = {
              {.label = "falling", .x = {0, 1, 2}, .y = {3, 2, 1}},
              {.label = "rising", .x = {0, 1, 2}, .y = {1, 2, 3}, .style = Style::kLineAndPoints}}};
}

// Counts pixels of the color in the columns [from, to), given as fractions of the width.
int Count(const Image& image, Rgb color, double from = 0, double to = 1) {
  int count = 0;
  for (int y = 0; y < image.height; ++y) {
    const int end = static_cast<int>(to * image.width);
    for (int x = static_cast<int>(from * image.width); x < end; ++x) {
      const uint8_t* p = image.pixels.data() + 3 * (static_cast<size_t>(y) * image.width + x);
      count += p[0] == color[0] && p[1] == color[1] && p[2] == color[2];
    }
  }
  return count;
}

Image DrawPng(const Figure& figure) {
  TempDir dir;
  Draw(figure, dir / "a.png");
  EXPECT_EQ(dir.Entries(), 1);
  return ReadPng(dir / "a.png");
}

TEST(Draw, Png) {
  const Image image = DrawPng({.title = "A title", .subtitle = "and more", .panels = {TwoLines()}});
  EXPECT_EQ(image.width, 1600);
  EXPECT_EQ(image.height, 1000);
  EXPECT_GT(Count(image, kBlue), 3000);
  EXPECT_GT(Count(image, kRed), 3000);
  EXPECT_GT(Count(image, {255, 255, 255}), 100'000);
}

TEST(Draw, SizeAndTheme) {
  const Image image = DrawPng({.panels = {TwoLines(), TwoLines()}, .theme = Theme::kDark});
  EXPECT_EQ(image.width, 2240);
  EXPECT_EQ(image.height, 880);
  EXPECT_EQ(Count(image, {255, 255, 255}), 0);
  EXPECT_GT(Count(image, {0x14, 0x17, 0x1a}), 10'000);
  const Rgb sky = {0x56, 0xb4, 0xe9};
  EXPECT_GT(Count(image, sky, 0, 0.5), 200);
  EXPECT_GT(Count(image, sky, 0.5, 1), 200);
}

// Checks that XML tags pair up. Cairo writes the XML, so no stricter check is needed.
bool TagsPair(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; (at = xml.find('<', at)) != std::string::npos; ++at) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag[0] == '?' || tag.back() == '/') continue;
    if (tag[0] != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || "/" + open.back() != tag) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

TEST(Draw, Svg) {
  TempDir dir;
  Draw({.title = "<A & B>", .panels = {TwoLines()}}, dir / "a.svg");
  const std::string svg = ReadFile(dir / "a.svg");
  EXPECT_THAT(svg, AllOf(StartsWith("<?xml"), HasSubstr("width=\"800"), EndsWith("</svg>\n")));
  EXPECT_THAT(svg, HasSubstr("rgb(0%,44.7"));  // the blue 0072b2
  EXPECT_TRUE(TagsPair(svg));
  EXPECT_EQ(dir.Entries(), 1);
}

TEST(Draw, WhatNoAxisCanShowBreaksTheLine) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (double gap : {std::nan(""), kInfinity, -kInfinity, 1e300, -1e300}) {
    Plot plot{.series = {{.x = {0, 1, 2, 3, 4}, .y = {1, 1, gap, 1, 1}}}};
    const Image image = DrawPng({.panels = {plot}});
    // At least one row of pixels is pure blue; the line's edges are blended with the background.
    EXPECT_GE(Count(image, kBlue, 0.1, 0.2), 59);
    EXPECT_EQ(Count(image, kBlue, 0.45, 0.55), 0) << gap;
    EXPECT_GE(Count(image, kBlue, 0.8, 0.9), 59);
  }
  Plot log{.x = {.log = true},
           .y = {.log = true},
           .series = {{.x = {-1, 1, 10, 100, 1000}, .y = {1, 1, 0, 1, 2}}}};
  EXPECT_GT(Count(DrawPng({.panels = {log}}), kBlue), 100);
}

TEST(Draw, ManyPointsMakeASmallFile) {
  Series series;
  for (int i = 0; i < 300'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i % 7);
  }
  TempDir dir;
  Draw({.panels = {{.series = {series}}}}, dir / "a.svg");
  EXPECT_LT(ReadFile(dir / "a.svg").size(), 500'000u);
}

TEST(Draw, TheLegendAvoidsTheData) {
  // Data in every corner: the legend goes to the right of a narrower frame.
  Plot plot = TwoLines();
  plot.title = "";
  const Image outside = DrawPng({.panels = {plot}});
  EXPECT_GT(Count(outside, kBlue, 0.83, 0.9), 50);  // the legend's sample line
  const auto top = [](const Image& image, int y) {  // the last blue column of row y
    int last = 0;
    for (int x = 0; x < image.width; ++x) {
      const uint8_t* p = image.pixels.data() + 3 * (static_cast<size_t>(y) * image.width + x);
      if (p[0] == kBlue[0] && p[1] == kBlue[1] && p[2] == kBlue[2]) last = x;
    }
    return last;
  };
  plot.legend = false;
  const Image none = DrawPng({.panels = {plot}});
  EXPECT_GT(top(none, 800), 1400);
  EXPECT_LT(top(outside, 800), 1400);
  // With one free corner the legend goes inside.
  plot.legend = true;
  plot.series.pop_back();
  const Image inside = DrawPng({.panels = {plot}});
  EXPECT_EQ(top(inside, 800), top(none, 800));
}

TEST(Draw, AnyTextWillDo) {
  Plot plot = TwoLines();
  plot.title = std::string(5000, 'w');
  plot.x.label = "two\nlines\x01 and \xff\xfe no UTF-8 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf";
  plot.y.label = "τραγούδι — 歌";
  plot.series[0].label = std::string(300, 'l');
  for (int i = 0; i < 60; ++i) {
    plot.series.push_back(
        {.label = StrCat("run ", i), .x = {1}, .y = {2}, .marker = Marker::kSquare});
  }
  TempDir dir;
  Draw({.title = "\xe2\x82", .subtitle = plot.title, .panels = {plot, plot}}, dir / "a.svg");
  EXPECT_TRUE(TagsPair(ReadFile(dir / "a.svg")));
  Draw({.panels = std::vector<Plot>(14, plot)}, dir / "a.png");
}

TEST(Draw, Refusals) {
  TempDir dir;
  const auto refusal = [&](const Figure& figure, const char* name = "a.png") {
    const std::string error = ErrorOf([&] { Draw(figure, dir / name); });
    EXPECT_EQ(dir.Entries(), 0) << error;
    return error;
  };
  for (const char* name : {"a.pdf", "a", "png", "a.PNG", ".svg.txt"}) {
    EXPECT_THAT(refusal({.panels = {TwoLines()}}, name), HasSubstr(".png or .svg"));
  }
  EXPECT_THAT(refusal({.panels = {TwoLines()}}, "no/a.svg"), HasSubstr("does not exist"));
  EXPECT_THAT(refusal({}), HasSubstr("without panels"));
  EXPECT_THAT(refusal({.panels = std::vector<Plot>(15, TwoLines())}), HasSubstr("at most 14"));
  EXPECT_THAT(refusal({.panels = {TwoLines(), {.y = {.label = "mood"}}}}),
              AllOf(HasSubstr("nothing to show"), HasSubstr("mood")));
  EXPECT_THAT(refusal({.panels = {{.y = {.log = true}, .series = {{.x = {1}, .y = {-1}}}}}}),
              HasSubstr("logarithmic"));
  EXPECT_THAT(refusal({.panels = {{.series = {{.label = "a", .x = {1, 2}, .y = {1}}}}}}),
              HasSubstr("'a' has 2 values of x and 1 of y"));
}

}  // namespace
}  // namespace linnet::plot
