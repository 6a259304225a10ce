// Figures of experiments: what methods look like, and curves of trainings.
#ifndef EXPERIMENTS_FIGURES_H_
#define EXPERIMENTS_FIGURES_H_

#include <string>
#include <vector>

#include "linnet/plot/plot.h"

namespace linnet::experiments {

// A series of this label, without points: a method ("linear", "LSH-4") looks alike in every figure; other
// labels take the next color.
plot::Series MethodSeries(const std::string& label, plot::Style style);

// A training: a value that was measured at these updates and minutes.
struct Curve {
  std::string label;
  std::vector<double> step = {}, minutes = {}, value = {};
};
// The curves against updates and against time, side by side.
plot::Figure DrawCurves(const std::string& title, const std::string& subtitle, const plot::Axis& y,
                        const std::vector<Curve>& curves, bool log_x = false);

// NAME.png and .svg, NAME-dark.png and .svg.
std::vector<std::string> PictureFiles(const std::string& folder, const std::string& name);
void DrawPictures(plot::Figure figure, const std::string& folder, const std::string& name);

}  // namespace linnet::experiments

#endif  // EXPERIMENTS_FIGURES_H_
