#include "experiments/figures.h"

#include <strings.h>

#include <algorithm>

namespace linnet::experiments {
namespace {

using nlohmann::json;

std::string Text(const json& described, const char* field, const Scope& scope) {
  return Fill(described.value(field, ""), scope);
}

// Sets the color and marker that "looks" has for the series' label, if any.
void SetLook(const Scope& scope, plot::Series& series) {
  const std::vector<std::string> markers = {"circle", "square", "diamond", "triangle"};
  const json looks = Find("looks", scope).value_or(json::object());
  for (const auto& [label, look] : looks.items()) {
    if (strcasecmp(label.c_str(), series.label.c_str()) != 0) continue;
    series.color = look.at(0);
    const auto marker = std::ranges::find(markers, look.at(1).get<std::string>());
    series.marker = static_cast<plot::Marker>(marker - markers.begin());
  }
}

// Evaluates the expression in a field: the numbers of a list, without its nulls, or one number.
std::vector<double> Numbers(const json& described, const char* field, const Scope& scope) {
  const json value = Evaluate(described.at(field).get<std::string>(), scope);
  std::vector<double> numbers;
  for (const json& number : value.is_array() ? value : json::array({value})) {
    if (!number.is_null()) numbers.push_back(number);
  }
  return numbers;
}

plot::Series DescribedSeries(const json& described, const Scope& scope) {
  const std::string style = described.value("style", "line");
  plot::Series series{.label = Evaluate(described.at("label").get<std::string>(), scope),
                      .x = Numbers(described, "x", scope),
                      .y = Numbers(described, "y", scope),
                      .style = style == "line"     ? plot::Style::kLine
                               : style == "points" ? plot::Style::kPoints
                                                   : plot::Style::kLineAndPoints};
  SetLook(scope, series);
  series.color = described.value("color", series.color);
  series.dotted = described.value("dotted", false);
  series.faint = described.value("pale", false);
  if (!described.value("legend", true)) series.label.clear();
  return series;
}

plot::Plot DescribedPanel(const json& described, const Scope& scope) {
  const std::string log = described.value("log", "");
  plot::Plot panel{.title = Text(described, "title", scope),
                   .x = {Text(described, "x", scope), log.find('x') != log.npos},
                   .y = {Text(described, "y", scope), log.find('y') != log.npos}};
  for (const json& of_series : described.at("series")) {
    ForEach(of_series.value("each", json()), scope, [&](const Scope& inner) {
      plot::Series series = DescribedSeries(of_series, inner);
      if (series.x.empty()) return;
      for (const plot::Series& earlier : panel.series) {  // seeds of a method share a legend entry
        if (series.color >= 0 && earlier.label == series.label) series.label.clear();
      }
      panel.series.push_back(std::move(series));
    });
  }
  return panel;
}

}  // namespace

std::vector<NamedFigure> DescribedFigures(const json& figures, const Scope& scope) {
  std::vector<NamedFigure> drawn;
  for (const json& described : figures) {
    ForEach(described.value("each", json()), scope, [&](const Scope& inner) {
      plot::Figure figure{.title = Text(described, "title", inner),
                          .subtitle = Text(described, "subtitle", inner)};
      for (const json& panel : described.at("panels")) {
        ForEach(panel.value("each", json()), inner, [&](const Scope& innermost) {
          figure.panels.push_back(DescribedPanel(panel, innermost));
        });
      }
      drawn.push_back({Text(described, "name", inner), std::move(figure)});
    });
  }
  return drawn;
}

}  // namespace linnet::experiments
