#include "linnet/plot/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numbers>
#include <utility>

#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/plot/canvas.h"
#include "linnet/plot/ticks.h"

namespace linnet::plot {
namespace {

// Colors that color-blind readers can tell apart (Okabe and Ito), in an order that suits the
// background.
using Palette = std::array<Color, 7>;
constexpr Palette kOnLight = {0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x4d4d4d};
constexpr Palette kOnDark = {0x56b4e9, 0xe69f00, 0x00b685, 0xcc79a7, 0xf0e442, 0xe36a0c, 0xcfd3d8};
struct Look {
  Color page, panel, grid, minor_grid, frame, text, quiet_text;
  Palette palette;
};
constexpr Look kLight = {0xffffff, 0xf7f8fa, 0xdde1e6, 0xebeef1,
                         0x9aa1a9, 0x1c2126, 0x5b636c, kOnLight};
constexpr Look kDark = {0x14171a, 0x1c2024, 0x363c43, 0x282d32,
                        0x6b737c, 0xe8eaed, 0xa9b0b8, kOnDark};

constexpr double kTitleSize = 20, kSubtitleSize = 14, kPanelTitleSize = 16;
constexpr double kAxisLabelSize = 16, kTickSize = 15, kLegendSize = 15;
constexpr double kLineWidth = 2.4, kFaintWidth = 1.5, kFaintOpacity = 0.5, kMarkerRadius = 4.2;
constexpr size_t kMostPanels = 14;  // so that a PNG is less than 16384 pixels wide
constexpr double kPixelScale = 2;   // PNG pixels per logical pixel
constexpr double kMargin = 18;      // around the figure and between its panels
constexpr double kTickGap = 7;      // from the frame to a tick label
// Minimum space per labeled tick along an axis; less on a logarithmic x axis, whose ticks are not
// equally spaced.
constexpr double kXLabelRoom = 80, kLogXLabelRoom = 55, kYLabelRoom = 48;
constexpr double kLegendRow = 23, kLegendSample = 30, kLegendPadding = 9, kLegendInset = 10;

struct Point {
  double x = 0, y = 0;
};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  double width() const { return right - left; }
  double height() const { return bottom - top; }
  bool Holds(Point p) const { return p.x >= left && p.x <= right && p.y >= top && p.y <= bottom; }
  Box Grown(double by) const { return {left - by, top - by, right + by, bottom + by}; }
};

// Whether the segment from a to b crosses the box: the segment does not lie entirely beyond one
// side of the box, and the line through a and b separates the box's corners.
bool Crosses(Point a, Point b, const Box& box) {
  if (std::max(a.x, b.x) < box.left || std::min(a.x, b.x) > box.right ||
      std::max(a.y, b.y) < box.top || std::min(a.y, b.y) > box.bottom) {
    return false;
  }
  const auto above = [&](double x, double y) {
    return (b.x - a.x) * (y - a.y) < (b.y - a.y) * (x - a.x);
  };
  const int corners = above(box.left, box.top) + above(box.right, box.top) +
                      above(box.left, box.bottom) + above(box.right, box.bottom);
  return corners > 0 && corners < 4;
}

// The points of a line from one gap to the next, in pixels.
using Stretch = std::vector<Point>;

// Thins points without visible change: keeps the first, the lowest, the highest and the last point
// of each column of half a pixel.
Stretch Thinned(const Stretch& points) {
  const auto column = [](Point p) { return std::floor(2 * p.x); };
  const auto lower = [](Point a, Point b) { return a.y < b.y; };
  Stretch thin;
  for (auto begin = points.begin(); begin != points.end();) {
    const auto end =
        std::find_if(begin, points.end(), [&](Point p) { return column(p) != column(*begin); });
    if (end - begin <= 4) {
      thin.insert(thin.end(), begin, end);
    } else {
      auto [low, high] = std::minmax_element(begin, end, lower);
      if (high < low) std::swap(low, high);
      thin.insert(thin.end(), {*begin, *low, *high, *(end - 1)});
    }
    begin = end;
  }
  return thin;
}

class Panel {
 public:
  // Throws InputError (beginning with `where`) if there is nothing to show.
  Panel(const Plot& plot, const Look& look, Canvas& canvas, const std::string& where)
      : plot_(plot), look_(look), canvas_(canvas), cr_(canvas.cairo()) {
    FindRanges(where);
    int next = 0;
    for (size_t i = 0; i < plot.series.size(); ++i) {
      const Series& series = plot.series[i];
      colors_.push_back(series.color >= 0 ? series.color : next++);
      if (plot.legend && !series.label.empty()) entries_.push_back(i);
    }
  }

  void Draw(const Box& box) {
    Layout(box);
    Traces traces = Trace();
    Box legend = LegendInside(traces);
    if (!entries_.empty() && legend.width() == 0) {  // no free corner: to the right of the frame
      const double width = LegendWidth(0.35 * box.width());
      Layout({box.left, box.top, box.right - width - kLegendInset, box.bottom});
      traces = Trace();
      const double left = frame_.right + kLegendInset;
      legend = {left, frame_.top, left + width, frame_.bottom};
    }
    DrawFrame();
    for (const bool faint : {true, false}) {
      for (size_t i = 0; i < plot_.series.size(); ++i) {
        if (plot_.series[i].faint == faint) DrawSeries(i, traces[i]);
      }
    }
    if (!entries_.empty()) DrawLegend(legend);
  }

 private:
  using Traces = std::vector<std::vector<Stretch>>;  // per series

  void FindRanges(const std::string& where) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Range x = {kInfinity, -kInfinity}, y = x;
    for (const Series& series : plot_.series) {
      if (series.x.size() != series.y.size()) {
        throw InputError(where, ": the series '", series.label, "' has ", series.x.size(),
                         " values of x and ", series.y.size(),
                         " of y; give the same number of both");
      }
      for (size_t i = 0; i < series.x.size(); ++i) {
        const double at = Showable(series.x[i], plot_.x.log);
        const double value = Showable(series.y[i], plot_.y.log);
        if (std::isnan(at) || std::isnan(value)) continue;
        x = {std::min(x.low, at), std::max(x.high, at)};
        y = {std::min(y.low, value), std::max(y.high, value)};
      }
    }
    if (x.low > x.high) {
      throw InputError(where, ": nothing to show: no value of '", plot_.y.label,
                       "' is a number that these axes can show; check the data",
                       plot_.x.log || plot_.y.log ? ", or draw without logarithmic axes" : "");
    }
    x_range_ = FitRange(x, plot_.x.log);
    y_range_ = FitRange(y, plot_.y.log);
  }

  static double Position(double value, Range range, bool log) {  // 0 at range.low, 1 at range.high
    return log ? std::log10(value / range.low) / std::log10(range.high / range.low)
               : (value - range.low) / (range.high - range.low);
  }
  double X(double value) const {
    return frame_.left + frame_.width() * Position(value, x_range_, plot_.x.log);
  }
  double Y(double value) const {
    return frame_.bottom - frame_.height() * Position(value, y_range_, plot_.y.log);
  }

  // Computes the frame inside the box, and the ticks.
  void Layout(const Box& box) {
    frame_.top = box.top + (plot_.title.empty() ? 8 : 1.7 * kPanelTitleSize);
    frame_.bottom = box.bottom - kTickGap - 1.2 * kTickSize -
                    (plot_.x.label.empty() ? 0 : 1.6 * kAxisLabelSize);
    y_ticks_ = Ticks(y_range_, plot_.y.log, Room(frame_.height(), kYLabelRoom));
    y_tick_width_ = 0;
    for (const Tick& tick : y_ticks_) y_tick_width_ = std::max(y_tick_width_, Width(tick));
    frame_.left =
        box.left + (plot_.y.label.empty() ? 0 : 1.7 * kAxisLabelSize) + y_tick_width_ + kTickGap;
    frame_.right = box.right;
    // Makes room for the last tick label, twice: a narrower frame may have other ticks.
    for (int round = 0; round < 2; ++round) {
      FindXTicks();
      double right = box.right;
      for (const Tick& tick : x_ticks_) {
        right = std::min(right, frame_.right - (X(tick.value) + Width(tick) / 2 - box.right));
      }
      frame_.right = std::min(frame_.right, right);
    }
  }

  static size_t Room(double length, double each) {  // number of ticks that fit, at least 2
    return static_cast<size_t>(std::max(2.0, length / each));
  }
  double Width(const Tick& tick) const { return canvas_.TextWidth(tick.label, kTickSize); }

  // Finds as many ticks as fit without overlapping labels.
  void FindXTicks() {
    for (size_t most = Room(frame_.width(), plot_.x.log ? kLogXLabelRoom : kXLabelRoom); most >= 2;
         --most) {
      x_ticks_ = Ticks(x_range_, plot_.x.log, most);
      bool touch = false;
      double end = -std::numeric_limits<double>::infinity();
      for (const Tick& tick : x_ticks_) {
        if (tick.label.empty()) continue;
        const double half = Width(tick) / 2;
        touch |= X(tick.value) - half < end + kTickSize;
        end = X(tick.value) + half;
      }
      if (!touch) return;
    }
  }

  // Returns the lines of each series, in pixels of the current frame.
  Traces Trace() const {
    Traces traces;
    for (const Series& series : plot_.series) {
      std::vector<Stretch>& stretches = traces.emplace_back(1);
      for (size_t i = 0; i < series.x.size(); ++i) {
        const double x = Showable(series.x[i], plot_.x.log);
        const double y = Showable(series.y[i], plot_.y.log);
        if (!std::isnan(x) && !std::isnan(y)) {
          stretches.back().push_back({X(x), Y(y)});
        } else if (!stretches.back().empty()) {
          stretches.emplace_back();
        }
      }
      if (series.style == Style::kPoints) continue;
      for (Stretch& stretch : stretches) stretch = Thinned(stretch);
    }
    return traces;
  }

  Color ColorOf(size_t series) const {
    return look_.palette[static_cast<size_t>(colors_[series]) % look_.palette.size()];
  }

  void Line(Point from, Point to, double width, Color color) const {
    canvas_.SetColor(color);
    cairo_set_line_width(cr_, width);
    cairo_move_to(cr_, from.x, from.y);
    cairo_line_to(cr_, to.x, to.y);
    cairo_stroke(cr_);
  }

  void DrawFrame() const {
    canvas_.SetColor(look_.panel);
    cairo_rectangle(cr_, frame_.left, frame_.top, frame_.width(), frame_.height());
    cairo_fill(cr_);
    cairo_set_line_cap(cr_, CAIRO_LINE_CAP_BUTT);
    cairo_set_dash(cr_, nullptr, 0, 0);          // resets the dashes of the previous panel
    for (const bool labelled : {false, true}) {  // grid lines of labeled ticks on top
      const Color color = labelled ? look_.grid : look_.minor_grid;
      for (const Tick& tick : x_ticks_) {
        if (tick.label.empty() == labelled) continue;
        const double x = X(tick.value);
        Line({x, frame_.top}, {x, frame_.bottom}, 1, color);
      }
      for (const Tick& tick : y_ticks_) {
        if (tick.label.empty() == labelled) continue;
        const double y = Y(tick.value);
        Line({frame_.left, y}, {frame_.right, y}, 1, color);
      }
    }
    canvas_.SetColor(look_.frame);
    cairo_set_line_width(cr_, 1);
    cairo_rectangle(cr_, frame_.left, frame_.top, frame_.width(), frame_.height());
    cairo_stroke(cr_);

    const double baseline = frame_.bottom + kTickGap + 0.85 * kTickSize;
    for (const Tick& tick : x_ticks_) {
      canvas_.Text(X(tick.value), baseline, tick.label,
                   {.size = kTickSize, .color = look_.text, .align = Align::kCenter});
    }
    for (const Tick& tick : y_ticks_) {
      canvas_.Text(frame_.left - kTickGap, Y(tick.value) + 0.36 * kTickSize, tick.label,
                   {.size = kTickSize, .color = look_.text, .align = Align::kRight});
    }
    TextStyle label = {.size = kAxisLabelSize,
                       .color = look_.quiet_text,
                       .align = Align::kCenter,
                       .most_width = frame_.width()};
    canvas_.Text((frame_.left + frame_.right) / 2, baseline + 1.5 * kAxisLabelSize, plot_.x.label,
                 label);
    label.upwards = true, label.most_width = frame_.height();
    canvas_.Text(frame_.left - kTickGap - y_tick_width_ - 0.7 * kAxisLabelSize,
                 (frame_.top + frame_.bottom) / 2, plot_.y.label, label);
    canvas_.Text(
        frame_.left, frame_.top - 0.6 * kPanelTitleSize, plot_.title,
        {.size = kPanelTitleSize, .color = look_.text, .bold = true, .most_width = frame_.width()});
  }

  void SetStroke(size_t i) const {
    const Series& series = plot_.series[i];
    cairo_set_line_width(cr_, series.faint ? kFaintWidth : kLineWidth);
    cairo_set_line_join(cr_, CAIRO_LINE_JOIN_ROUND);
    cairo_set_line_cap(cr_, CAIRO_LINE_CAP_ROUND);
    // Dash patterns, one per pass through the palette; the first is solid. Dotted lines use {1, 5}.
    constexpr double kDashes[][2] = {{0, 0}, {9, 6}, {1, 5}, {16, 6}};
    const size_t pass = static_cast<size_t>(colors_[i]) / look_.palette.size();
    const auto& dashes = kDashes[series.dotted ? 2 : (pass + series.dashed) % std::size(kDashes)];
    cairo_set_dash(cr_, dashes, dashes[0] > 0 ? 2 : 0, 0);
    canvas_.SetColor(ColorOf(i), series.faint ? kFaintOpacity : 1);
  }

  void Mark(size_t i, Point p) const {
    const Series& series = plot_.series[i];
    const double r = kMarkerRadius * (series.faint ? 0.7 : 1);
    // For each Marker: corners (0: a circle), size, and rotation in steps from corner to corner.
    constexpr struct {
      int corners;
      double size, turn;
    } kShapes[] = {{0, 1, 0}, {4, 1.25, 0.5}, {4, 1.45, 0}, {3, 1.45, 0}};
    const auto [corners, size, turn] = kShapes[static_cast<size_t>(series.marker)];
    cairo_set_dash(cr_, nullptr, 0, 0);
    cairo_new_path(cr_);
    if (corners == 0) cairo_arc(cr_, p.x, p.y, r, 0, 2 * std::numbers::pi);
    for (int c = 0; c < corners; ++c) {
      const double angle = 2 * std::numbers::pi * (c + turn) / corners;
      cairo_line_to(cr_, p.x + size * r * std::sin(angle), p.y - size * r * std::cos(angle));
    }
    cairo_close_path(cr_);
    // A rim in the background color separates a marker from its neighbors and from the line.
    canvas_.SetColor(look_.panel);
    cairo_set_line_width(cr_, 2);
    cairo_stroke_preserve(cr_);
    canvas_.SetColor(ColorOf(i), series.faint ? kFaintOpacity : 1);
    cairo_fill(cr_);
  }

  void DrawSeries(size_t i, const std::vector<Stretch>& stretches) const {
    const Series& series = plot_.series[i];
    if (series.style != Style::kPoints) {
      cairo_save(cr_);
      const Box clip = frame_.Grown(1);
      cairo_rectangle(cr_, clip.left, clip.top, clip.width(), clip.height());
      cairo_clip(cr_);
      cairo_new_path(cr_);
      for (const Stretch& stretch : stretches) {
        if (stretch.size() < 2) continue;  // drawn as a marker below
        for (const Point& p : stretch) {
          (&p == &stretch.front() ? cairo_move_to : cairo_line_to)(cr_, p.x, p.y);
        }
      }
      SetStroke(i);
      cairo_stroke(cr_);
      cairo_restore(cr_);
    }

    const double apart = series.style == Style::kPoints ? 0.5 : 1.4 * kMarkerRadius;
    Point last = {-1e9, 0};
    for (const Stretch& stretch : stretches) {
      // An isolated point has no line, so it gets a marker.
      if (series.style == Style::kLine && stretch.size() != 1) continue;
      for (const Point& p : stretch) {
        // Leaves out markers that would overlap on a line, or coincide without a line.
        if (std::hypot(p.x - last.x, p.y - last.y) < apart && &p != &stretch.back()) continue;
        Mark(i, p);
        last = p;
      }
    }
  }

  double LegendWidth(double most) const {
    double width = 0;
    for (size_t i : entries_) {
      width = std::max(width, canvas_.TextWidth(plot_.series[i].label, kLegendSize));
    }
    return std::min(most, width + kLegendSample + 8 + 2 * kLegendPadding);
  }

  // Returns a box for the legend in a corner without data, or an empty box if no corner is free.
  Box LegendInside(const Traces& traces) const {
    const double width = LegendWidth(std::numeric_limits<double>::infinity());
    const double height = kLegendRow * static_cast<double>(entries_.size()) + kLegendPadding;
    if (width > 0.6 * frame_.width() || height > 0.6 * frame_.height()) return {};
    const double left = frame_.left + kLegendInset, right = frame_.right - kLegendInset;
    const double top = frame_.top + kLegendInset, bottom = frame_.bottom - kLegendInset;
    const Box corners[] = {{right - width, top, right, top + height},
                           {left, top, left + width, top + height},
                           {right - width, bottom - height, right, bottom},
                           {left, bottom - height, left + width, bottom}};
    for (const Box& corner : corners) {
      if (IsEmpty(corner.Grown(kMarkerRadius + 3), traces)) return corner;
    }
    return {};
  }

  bool IsEmpty(const Box& box, const Traces& traces) const {
    for (size_t i = 0; i < traces.size(); ++i) {
      for (const Stretch& stretch : traces[i]) {
        for (size_t p = 0; p < stretch.size(); ++p) {
          if (box.Holds(stretch[p])) return false;
          if (p == 0 || plot_.series[i].style == Style::kPoints) continue;
          if (Crosses(stretch[p - 1], stretch[p], box)) return false;
        }
      }
    }
    return true;
  }

  void DrawLegend(const Box& box) const {
    const size_t rows = static_cast<size_t>(std::max(1.0, box.height() / kLegendRow));
    if (box.right <= frame_.right) {  // inside the frame: hides the grid behind the text
      canvas_.SetColor(look_.panel);
      cairo_rectangle(cr_, box.left, box.top, box.width(), box.height());
      cairo_fill(cr_);
    }
    const double left = box.left + kLegendPadding, text = left + kLegendSample + 8;
    double middle = box.top + kLegendPadding / 2 + kLegendRow / 2;
    for (size_t e = 0; e < entries_.size(); ++e, middle += kLegendRow) {
      const size_t i = entries_[e];
      const bool cut = e + 1 == rows && entries_.size() > rows;  // this row says "and N more"
      if (!cut) {
        if (plot_.series[i].style != Style::kPoints) {
          SetStroke(i);
          cairo_move_to(cr_, left, middle);
          cairo_line_to(cr_, left + kLegendSample, middle);
          cairo_stroke(cr_);
        }
        if (plot_.series[i].style != Style::kLine) Mark(i, {left + kLegendSample / 2, middle});
      }
      const std::string label =
          cut ? StrCat("and ", entries_.size() - e, " more") : plot_.series[i].label;
      canvas_.Text(text, middle + 0.36 * kLegendSize, label,
                   {.size = kLegendSize, .color = look_.text, .most_width = box.right - text});
      if (cut) return;
    }
  }

  const Plot& plot_;
  const Look& look_;
  Canvas& canvas_;
  cairo_t* cr_;
  std::vector<int> colors_;      // per series: palette index; it may exceed the palette's size
  std::vector<size_t> entries_;  // series in the legend
  Range x_range_, y_range_;
  Box frame_;
  std::vector<Tick> x_ticks_, y_ticks_;
  double y_tick_width_ = 0;  // of the widest label
};

}  // namespace

void CheckFormat(const std::string& path) { Canvas::IsSvg(path); }

std::string Encode(const Figure& figure, const std::string& path) {
  if (figure.panels.empty()) throw InputError(path, ": a figure without panels; add at least one");
  const size_t panels = figure.panels.size();
  if (panels > kMostPanels) {
    throw InputError(path, ": a figure of ", panels, " panels; draw at most ", kMostPanels);
  }
  const double width = panels == 1 ? 800 : 560 * static_cast<double>(panels);
  const double height = panels == 1 ? 500 : 440;
  const Look& look = figure.theme == Theme::kDark ? kDark : kLight;
  Canvas canvas(width, height, kPixelScale, path);
  canvas.SetColor(look.page);
  cairo_paint(canvas.cairo());
  double top = kMargin;
  const auto head = [&](const std::string& text, double size, Color color, bool bold) {
    if (text.empty()) return;
    top += size;
    canvas.Text(kMargin, top, text,
                {.size = size, .color = color, .bold = bold, .most_width = width - 2 * kMargin});
    top += 0.45 * size;
  };
  head(figure.title, kTitleSize, look.text, /*bold=*/true);
  head(figure.subtitle, kSubtitleSize, look.quiet_text, /*bold=*/false);

  const double each =
      (width - kMargin * static_cast<double>(panels + 1)) / static_cast<double>(panels);
  for (size_t i = 0; i < panels; ++i) {
    const double left = kMargin + (each + kMargin) * static_cast<double>(i);
    Panel(figure.panels[i], look, canvas, path).Draw({left, top, left + each, height - kMargin});
  }
  return canvas.Encode();
}

void Draw(const Figure& figure, const std::string& path) {
  WriteFileAtomically(path, Encode(figure, path));
}

}  // namespace linnet::plot
