// Figures of training curves, for `linnet plot`.
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
  std::vector<std::string> labels = {};      // one per run
  std::vector<std::string> y = {};           // metrics, one panel each; empty: MainMetric()
  bool time = false;                         // x is seconds of training instead of steps
  std::optional<double> from = {}, to = {};  // range of x, in steps or seconds
  bool log_x = false, log_y = false;
  size_t smooth = 0;  // window of the moving mean, in records; 0: chosen by the number of records
  std::string title = {};
};

// For a metric X, draws the training's values as a faint line behind validation_X or, if a run has
// no validation_X, as a normal line. Throws InputError for a metric that a run does not have, and
// if the range holds no data.
Figure RunCurves(const std::vector<RunLog>& runs, const CurveOptions& options);

// Returns the main metric of a run: the first training metric that is specific to the run's task,
// else the first such validation metric, else the first metric.
std::string MainMetric(const RunLog& run);

// The metrics of a run for error messages: "bits_per_dim, lr".
std::string MetricNames(const RunLog& run);

// Labels for runs: the shortest trailing parts of their paths that tell the runs apart.
std::vector<std::string> ShortLabels(const std::vector<std::string>& runs);

// The moving mean over `window` values. At the start the window shrinks on both sides, at the end
// only on the right. The stretches between NaNs are smoothed separately.
std::vector<double> Smooth(const std::vector<double>& values, size_t window);

}  // namespace linnet::plot

#endif  // LINNET_PLOT_CURVES_H_
