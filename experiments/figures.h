// Figures specified by a description (pages/NAME.json). "figures" is a list of
//
//   {"name": T, "title": T, "subtitle": T, "panels": [
//      {"title": T, "x": T, "y": T, "log": "xy",        // axis labels; which axes are logarithmic
//       "series": [{"each": "rows", "label": E, "x": E, "y": E, "style": "points"}]}]}
//
// T is a template and E an expression (page.h). A figure, panel or series with "each" is drawn once
// for each element at that path; the element's fields are then in scope ("each" may also be a list,
// see ForEach). A series without points is left out. Further fields of a series: "style" ("line",
// "points" or "both"; default: "line"), "color" (index into the palette), "pale" (thin, in a pale
// color), "dotted", and "legend": false.
//
// "looks" in scope (pages/looks.json: {label: [color, marker]}) gives a method the same color and
// marker in every figure. Two methods may share a look if no figure shows both. If several series
// have the label of such a method, the legend shows the label once.
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

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_FIGURES_H_
