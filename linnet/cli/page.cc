#include "linnet/cli/page.h"

#include <strings.h>

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "linnet/base/error.h"

namespace linnet::cli {

std::string Digits(double value) {
  char text[64];
  if (value > 0 && value < 0.00995) {
    std::snprintf(text, sizeof(text), "%.2g", value);
    return text;
  }
  if (value >= 999.5) {
    std::snprintf(text, sizeof(text), "%.0f", value);
    std::string digits = text;
    for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
    return digits;
  }
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : value >= 0.9995 ? 2 : 3;
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}
std::string Digits(long value) {
  return value < 1000 ? std::to_string(value) : Digits(static_cast<double>(value));
}

std::string Wrapped(const std::string& text) {
  constexpr size_t kWidth = 120;
  std::istringstream words(text);
  std::string wrapped, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      wrapped += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return wrapped + line + "\n";
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

plot::Series MethodSeries(const std::string& label, plot::Style style) {
  using plot::Marker;
  // Of six colors: those that share one stand in no figure together.
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

std::string PictureTag(const std::string& name, const std::string& alt) {
  return StrCat("<picture>\n<source media=\"(prefers-color-scheme: dark)\" srcset=\"", name,
                "-dark.svg\">\n<img alt=\"", alt, "\" src=\"", name, ".svg\">\n</picture>\n");
}

}  // namespace linnet::cli
