#include "linnet/plot/canvas.h"

#include <cairo-svg.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <utility>
#include <vector>

#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/io/png.h"

namespace linnet::plot {
namespace {

// Debian's default font. If it is missing, fontconfig substitutes a similar one.
constexpr const char* kFamily = "DejaVu Sans";
constexpr const char* kEllipsis = "…";

// Labels may come from file names, which can hold any bytes; Cairo requires UTF-8.
std::string Printable(const std::string& text) {
  std::string clean;
  for (char32_t c : CodePoints(text)) AppendUtf8(c < 0x20 || c == 0x7f ? ' ' : c, clean);
  return clean;
}

cairo_status_t Append(void* to, const unsigned char* data, unsigned length) noexcept {
  try {
    static_cast<std::string*>(to)->append(reinterpret_cast<const char*>(data), length);
    return CAIRO_STATUS_SUCCESS;
  } catch (...) {
    return CAIRO_STATUS_NO_MEMORY;
  }
}

cairo_surface_t* NewSurface(bool is_svg, double width, double height, int pixel_width,
                            int pixel_height, std::string* svg) {
  if (!is_svg) return cairo_image_surface_create(CAIRO_FORMAT_RGB24, pixel_width, pixel_height);
  cairo_surface_t* surface = cairo_svg_surface_create_for_stream(Append, svg, width, height);
  cairo_svg_surface_set_document_unit(surface, CAIRO_SVG_UNIT_PX);
  return surface;
}

}  // namespace

bool Canvas::IsSvg(const std::string& path) {
  if (path.ends_with(".svg")) return true;
  if (path.ends_with(".png")) return false;
  throw InputError(path, ": figures are PNG or SVG; name a file that ends in .png or .svg");
}

Canvas::Canvas(double width, double height, double scale, const std::string& path)
    : path_(path),
      pixel_width_(static_cast<int>(std::lround(width * scale))),
      pixel_height_(static_cast<int>(std::lround(height * scale))),
      surface_(NewSurface(IsSvg(path), width, height, pixel_width_, pixel_height_, &svg_),
               cairo_surface_destroy),
      cairo_(cairo_create(surface_.get()), cairo_destroy) {
  Check();
  if (!IsSvg(path)) cairo_scale(cairo(), scale, scale);
  // Makes text widths independent of the scale, so that PNG and SVG have the same layout.
  const std::unique_ptr<cairo_font_options_t, decltype(&cairo_font_options_destroy)> options(
      cairo_font_options_create(), cairo_font_options_destroy);
  cairo_font_options_set_hint_metrics(options.get(), CAIRO_HINT_METRICS_OFF);
  cairo_font_options_set_hint_style(options.get(), CAIRO_HINT_STYLE_NONE);
  cairo_font_options_set_antialias(options.get(), CAIRO_ANTIALIAS_GRAY);
  cairo_set_font_options(cairo(), options.get());
  // Without any font Cairo falls back to its built-in stroke font, which covers ASCII only.
  SetFont(14, false);
  if (cairo_scaled_font_get_type(cairo_get_scaled_font(cairo())) == CAIRO_FONT_TYPE_USER) {
    throw RuntimeError(path, ": cannot be drawn: this machine has no font; install one (Debian's ",
                       "package fonts-dejavu-core)");
  }
  Check();
}

void Canvas::SetColor(Color color, double opacity) {
  const auto part = [&](int shift) { return (color >> shift & 255) / 255.0; };
  cairo_set_source_rgba(cairo(), part(16), part(8), part(0), opacity);
}

void Canvas::SetFont(double size, bool bold) {
  cairo_select_font_face(cairo(), kFamily, CAIRO_FONT_SLANT_NORMAL,
                         bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(cairo(), size);
}

double Canvas::TextWidth(const std::string& text, double size, bool bold) {
  SetFont(size, bold);
  cairo_text_extents_t extents;
  cairo_text_extents(cairo(), Printable(text).c_str(), &extents);
  return extents.x_advance;
}

std::string Canvas::Fit(const std::string& text, const TextStyle& style) {
  const auto fits = [&](const std::string& cut) {
    return TextWidth(cut, style.size, style.bold) <= style.most_width;
  };
  if (text.empty() || fits(text)) return text;
  // Labels may differ at either end, so the middle is cut. Bisection works because the width grows
  // with the number of characters kept.
  const std::string clean = Printable(text);
  std::vector<size_t> starts;  // byte offsets of the characters
  for (size_t at = 0; at < clean.size(); at += NextCodePoint(clean, at)->bytes)
    starts.push_back(at);
  const auto keep = [&](size_t characters) {
    const size_t tail = characters / 2, head = characters - tail;
    return clean.substr(0, starts[head]) + kEllipsis +
           (tail > 0 ? clean.substr(starts[starts.size() - tail]) : "");
  };
  size_t enough = 0, too_many = starts.size();
  while (enough + 1 < too_many) {
    const size_t middle = (enough + too_many) / 2;
    (fits(keep(middle)) ? enough : too_many) = middle;
  }
  return keep(enough);
}

void Canvas::Text(double x, double y, const std::string& whole, const TextStyle& style) {
  const std::string text = Fit(whole, style);
  const double width = TextWidth(text, style.size, style.bold);
  SetColor(style.color);
  cairo_save(cairo());
  cairo_translate(cairo(), x, y);
  if (style.upwards) cairo_rotate(cairo(), -std::numbers::pi / 2);
  cairo_move_to(cairo(),
                style.align == Align::kLeft     ? 0
                : style.align == Align::kCenter ? -width / 2
                                                : -width,
                0);
  cairo_show_text(cairo(), Printable(text).c_str());
  cairo_restore(cairo());
}

void Canvas::Check() const {
  cairo_status_t status = cairo_surface_status(surface_.get());
  if (status == CAIRO_STATUS_SUCCESS && cairo_) status = cairo_status(cairo_.get());
  if (status == CAIRO_STATUS_SUCCESS) return;
  throw RuntimeError(path_, ": cannot be drawn (", cairo_status_to_string(status), ")");
}

std::string Canvas::Encode() {
  Check();
  cairo_surface_flush(surface_.get());
  if (IsSvg(path_)) {
    cairo_.reset();
    cairo_surface_finish(surface_.get());
    Check();
    return std::move(svg_);
  }
  Image image{pixel_width_, pixel_height_, 3, {}};
  image.pixels.resize(3 * static_cast<size_t>(pixel_width_) * static_cast<size_t>(pixel_height_));
  uint8_t* to = image.pixels.data();
  const unsigned char* row = cairo_image_surface_get_data(surface_.get());
  for (int y = 0; y < pixel_height_; ++y, row += cairo_image_surface_get_stride(surface_.get())) {
    for (int x = 0; x < pixel_width_; ++x) {
      uint32_t pixel = 0;
      std::memcpy(&pixel, row + 4 * static_cast<size_t>(x), 4);
      for (int shift : {16, 8, 0}) *to++ = static_cast<uint8_t>(pixel >> shift);
    }
  }
  return EncodePng(image, path_);
}

}  // namespace linnet::plot
