// Figures that a description (pages/NAME.json) specifies. In "figures", a list:
//
//   {"name": "table1", "title": T, "subtitle": T, "panels": [
//      {"title": T, "x": T, "y": T, "log": "xy",        // titles of axes; the logarithmic ones
//       "series": [{"each": "rows", "label": E, "x": E, "y": E, "style": "points"}]}]}
//
// T is a template and E an expression (page.h). A figure, panel or series with "each" is drawn once
// for each element at that path, as a section of a page. A series without points is left out.
// Further fields of a series: "style" ("line", "points", "both"), "color" (of the palette), "pale",
// "dotted", and "legend": false. A label that an earlier series has is not repeated in the legend.
#ifndef EXPERIMENTS_FIGURES_H_
#define EXPERIMENTS_FIGURES_H_

#include <string>
#include <vector>

#include "experiments/page.h"
#include "linnet/plot/plot.h"

namespace linnet::experiments {

struct NamedFigure {
  std::string name;
  plot::Figure figure;
};
std::vector<NamedFigure> DescribedFigures(const nlohmann::json& figures, const Scope& scope);

// NAME.png and .svg, NAME-dark.png and .svg.
std::vector<std::string> PictureFiles(const std::string& folder, const std::string& name);
void DrawPictures(plot::Figure figure, const std::string& folder, const std::string& name);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_FIGURES_H_
