// The curves of training runs as a figure: what `linnet plot` draws.
//
//   const std::vector<RunLog> runs = {ReadRunLog("runs/a"), ReadRunLog("runs/b")};
//   Draw(RunCurves(runs, {.labels = ShortLabels({"runs/a", "runs/b"})}), "plot.png");
#ifndef LINNET_PLOT_CURVES_H_
#define LINNET_PLOT_CURVES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "linnet/plot/plot.h"
#include "linnet/plot/run_log.h"

namespace linnet::plot {

struct CurveOptions {
  std::vector<std::string> labels = {};  // one for each run
  std::vector<std::string> y = {};       // metrics, each in a panel of its own; none: MainMetric()
  bool time = false;                     // against seconds of training, not steps
  std::optional<double> from = {}, to = {};  // steps or seconds: what lies outside is left out
  bool log_x = false, log_y = false;
  size_t smooth = 0;  // records that a point of a training curve is the mean of; 0: by their number
  std::string title = {};
};

// Draws metric X of training as a faint line behind validation_X, or alone where a run has no
// validation. Throws InputError for a metric that a run does not have, and where nothing is left.
Figure RunCurves(const std::vector<RunLog>& runs, const CurveOptions& options);

// The metric that a run is about: the first of its records that tells of the task.
std::string MainMetric(const RunLog& run);

// "bits_per_dim, lr": the metrics of a run, for messages.
std::string MetricNames(const RunLog& run);

// Names that tell runs apart: the ends of their paths, as short as may be.
std::vector<std::string> ShortLabels(const std::vector<std::string>& runs);

// The mean of `window` values around each; fewer towards the ends, and where NaN breaks the row.
std::vector<double> Smooth(const std::vector<double>& values, size_t window);

}  // namespace linnet::plot

#endif  // LINNET_PLOT_CURVES_H_
