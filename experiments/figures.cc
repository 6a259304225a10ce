#include "experiments/figures.h"

#include <strings.h>

#include <filesystem>

namespace linnet::experiments {

plot::Series MethodSeries(const std::string& label, plot::Style style) {
  using plot::Marker;
  // There are six colors; methods that share one never appear in the same figure.
  constexpr struct {
    const char* label;
    int color;
    Marker marker;
  } kLooks[] = {{"linear", 0, Marker::kCircle},           {"softmax", 1, Marker::kSquare},
                {"lsh-4", 2, Marker::kDiamond},           {"lsh-1", 3, Marker::kTriangle},
                {"stateful softmax", 4, Marker::kSquare}, {"softmax-plain", 4, Marker::kSquare},
                {"lsh-8", 5, Marker::kTriangle},          {"bi-lstm", 3, Marker::kTriangle}};
  plot::Series series{.label = label, .style = style};
  for (const auto& look : kLooks) {
    if (strcasecmp(look.label, label.c_str()) != 0) continue;
    series.color = look.color, series.marker = look.marker;
  }
  return series;
}

plot::Figure DrawCurves(const std::string& title, const std::string& subtitle, const plot::Axis& y,
                        const std::vector<Curve>& curves, bool log_x) {
  plot::Plot by_step{.title = "against updates", .x = {"updates", log_x}, .y = y};
  plot::Plot by_time{.title = "against time", .x = {"minutes", log_x}, .y = y};
  for (const Curve& curve : curves) {
    plot::Series series = MethodSeries(curve.label, plot::Style::kLine);
    for (const plot::Series& earlier : by_step.series) {  // another seed of the same method
      if (earlier.label == series.label) series.label.clear();
    }
    series.y = curve.value;
    series.x = curve.step;
    by_step.series.push_back(series);
    series.x = curve.minutes;
    by_time.series.push_back(series);
  }
  return {.title = title, .subtitle = subtitle, .panels = {by_step, by_time}};
}

std::vector<std::string> PictureFiles(const std::string& folder, const std::string& name) {
  const std::string path = std::filesystem::path(folder) / name;
  return {path + ".png", path + ".svg", path + "-dark.png", path + "-dark.svg"};
}

void DrawPictures(plot::Figure figure, const std::string& folder, const std::string& name) {
  const std::vector<std::string> files = PictureFiles(folder, name);
  Draw(figure, files[0]);
  Draw(figure, files[1]);
  figure.theme = plot::Theme::kDark;
  Draw(figure, files[2]);
  Draw(figure, files[3]);
}

}  // namespace linnet::experiments
