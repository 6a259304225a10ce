// Figures: curves and points against axes, drawn as PNG or SVG.
//
//   plot::Plot time{.x = {"sequence length", /*log=*/true}, .y = {"ms per sample", /*log=*/true}};
//   time.series.push_back({.label = "linear", .x = {512, 1024}, .y = {1.1, 2.2}});
//   time.series.push_back(
//       {.label = "the paper's", .x = {512}, .y = {1.3}, .style = plot::Style::kPoints});
//   plot::Draw({.title = "Forward and backward", .panels = {time}}, "scaling.svg");
//
// Ranges, ticks, colors and the legend's position are chosen automatically; a caller's colors take
// precedence. Data may hold any values: those that an axis cannot show (NaN, 0 on a
// logarithmic axis) break the line.
#ifndef LINNET_PLOT_PLOT_H_
#define LINNET_PLOT_PLOT_H_

#include <string>
#include <vector>

namespace linnet::plot {

enum class Style { kLine, kPoints, kLineAndPoints };
enum class Marker { kCircle, kSquare, kDiamond, kTriangle };
enum class Theme { kLight, kDark };

struct Series {
  std::string label = {};              // "": not in the legend
  std::vector<double> x = {}, y = {};  // of the same length
  Style style = Style::kLine;
  Marker marker = Marker::kCircle;
  int color = -1;  // index into the palette; -1: the next one. Series may share a color
  bool dashed = false;
  bool dotted = false;  // a guide line
  bool faint = false;   // thin and pale, behind the others
};

struct Axis {
  std::string label = {};
  bool log = false;
};

struct Plot {
  std::string title = {};
  Axis x = {}, y = {};
  std::vector<Series> series = {};
  bool legend = true;  // shows labeled series: in an empty corner, else on the right
};

struct Figure {
  std::string title = {}, subtitle = {};
  std::vector<Plot> panels = {};  // side by side
  Theme theme = Theme::kLight;
};

// Throws InputError unless `path` ends in .png or .svg.
void CheckFormat(const std::string& path);

// Returns a PNG or SVG file as bytes; the extension of `path` selects the format. Throws InputError
// for another extension, a panel without data, too many panels or inconsistent fields; RuntimeError
// if no font is installed.
std::string Encode(const Figure& figure, const std::string& path);

// Writes the bytes of Encode() to the file, which is replaced atomically.
void Draw(const Figure& figure, const std::string& path);

}  // namespace linnet::plot

#endif  // LINNET_PLOT_PLOT_H_
