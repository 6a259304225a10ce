// A drawing surface for PNG and SVG: Cairo with a fixed font, colors and error handling.
//
//   Canvas canvas(800, 500, /*scale=*/2, "out.svg");
//   canvas.Text(20, 40, "loss", {.size = 15, .color = 0x222222});
//   cairo_t* cr = canvas.cairo();  // draw lines with Cairo directly
//   WriteFileAtomically("out.svg", canvas.Encode());
#ifndef LINNET_PLOT_CANVAS_H_
#define LINNET_PLOT_CANVAS_H_

#include <cairo.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

namespace linnet::plot {

using Color = uint32_t;  // the CSS color #1f77b4 is 0x1f77b4

enum class Align { kLeft, kCenter, kRight };

struct TextStyle {
  double size = 14;
  Color color = 0;
  bool bold = false;
  Align align = Align::kLeft;
  bool upwards = false;  // rotated by 90 degrees, read from bottom to top
  // Text wider than this keeps its two ends; an ellipsis replaces its middle.
  double most_width = std::numeric_limits<double>::infinity();
};

class Canvas {
 public:
  // Throws InputError unless `path` ends in .png or .svg.
  static bool IsSvg(const std::string& path);

  // A PNG has `scale` pixels per unit of width and height. Throws RuntimeError without a font.
  Canvas(double width, double height, double scale, const std::string& path);

  cairo_t* cairo() const { return cairo_.get(); }
  void SetColor(Color color, double opacity = 1);

  // Draws text with its baseline at y. style.align says whether it starts at x, is centered at x or
  // ends at x.
  void Text(double x, double y, const std::string& text, const TextStyle& style);
  double TextWidth(const std::string& text, double size, bool bold = false);

  // Returns the file's bytes. Call it once, after all drawing.
  std::string Encode();

 private:
  std::string Fit(const std::string& text, const TextStyle& style);
  void SetFont(double size, bool bold);
  void Check() const;

  std::string path_;
  int pixel_width_ = 0, pixel_height_ = 0;
  std::string svg_;  // Cairo's output. Must outlive the surface, which writes here until destroyed
  std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)> surface_;
  std::unique_ptr<cairo_t, decltype(&cairo_destroy)> cairo_;
};

}  // namespace linnet::plot

#endif  // LINNET_PLOT_CANVAS_H_
