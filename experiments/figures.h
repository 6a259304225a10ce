// Figures shared by experiments: the look of each method, and training curves.
#ifndef EXPERIMENTS_FIGURES_H_
#define EXPERIMENTS_FIGURES_H_

#include <string>
#include <vector>

#include "linnet/plot/plot.h"

namespace linnet::experiments {

// An empty series with this label. A known method ("linear", "LSH-4") looks the same in every
// figure; other labels take the next color.
plot::Series MethodSeries(const std::string& label, plot::Style style);

// The curve of a training: values measured at these updates and minutes.
struct Curve {
  std::string label;
  std::vector<double> step = {}, minutes = {}, value = {};
};
// Draws the curves against updates and against time, side by side.
plot::Figure DrawCurves(const std::string& title, const std::string& subtitle, const plot::Axis& y,
                        const std::vector<Curve>& curves, bool log_x = false);

// NAME.png and .svg, NAME-dark.png and .svg.
std::vector<std::string> PictureFiles(const std::string& folder, const std::string& name);
void DrawPictures(plot::Figure figure, const std::string& folder, const std::string& name);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_FIGURES_H_
