#include "linnet/plot/curves.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "linnet/error.h"
#include "linnet/plot/ticks.h"

namespace linnet::plot {
namespace {

namespace fs = std::filesystem;

const std::string kValidation = "validation_";

// A smoothed curve keeps about this many independent points.
constexpr size_t kSmoothPoints = 50;
constexpr size_t kMostSmooth = 101;  // maximum window, in records

// Whether the runs of every task record the metric.
bool IsOfEveryTask(const std::string& name) { return name == "lr" || name == "tokens_per_second"; }

// The axis label of a metric such as "validation_bits_per_dim".
std::string AxisLabel(std::string name) {
  std::string before;
  if (name.starts_with(kValidation)) {
    before = "validation ";
    name = name.substr(kValidation.size());
  }
  if (name == "bits_per_dim") return before + "bits/dim";
  if (name == "tokens_per_second") return before + "tokens/s";
  if (name == "lr") return "learning rate";
  std::replace(name.begin(), name.end(), '_', ' ');
  return before + name;
}

struct TimeUnit {
  const char* name;
  double seconds;
};
TimeUnit UnitFor(double longest) {
  if (longest < 150) return {"seconds", 1};
  if (longest < 2.5 * 3600) return {"minutes", 60};
  if (longest < 72 * 3600) return {"hours", 3600};
  return {"days", 86400};
}

// The part of the track between options.from and options.to, as a series with x in `unit`.
Series Between(const Track& track, const CurveOptions& options, double unit) {
  Series series;
  const std::vector<double>& x = options.time ? track.seconds : track.step;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] < options.from.value_or(x[i]) || x[i] > options.to.value_or(x[i])) continue;
    series.x.push_back(x[i] / unit);
    series.y.push_back(track.value[i]);
  }
  return series;
}

// The tracks of one run in one panel; at most one of them is null.
struct Shown {
  const Track* training = nullptr;
  const Track* validation = nullptr;
};

Shown Find(const RunLog& run, const std::string& metric) {
  const bool validation = metric.starts_with(kValidation);
  const Shown shown = {.training = validation ? nullptr : run.Find(metric),
                       .validation = run.Find(validation ? metric : kValidation + metric)};
  if (shown.training == nullptr && shown.validation == nullptr) {
    throw InputError(run.path, ": has no metric '", metric, "'; it has ", MetricNames(run));
  }
  return shown;
}

size_t Window(const CurveOptions& options, size_t points) {
  if (options.smooth > 0) return options.smooth;
  return std::clamp(points / kSmoothPoints, size_t{1}, kMostSmooth);
}

}  // namespace

std::string MainMetric(const RunLog& run) {
  const auto rank = [](const Track& track) {
    return IsOfEveryTask(track.name) ? 2 : track.name.starts_with(kValidation) ? 1 : 0;
  };
  const auto better = [&](const Track& a, const Track& b) { return rank(a) < rank(b); };
  return std::min_element(run.tracks.begin(), run.tracks.end(), better)->name;
}

std::string MetricNames(const RunLog& run) {
  std::string names;
  for (const Track& track : run.tracks) names += (names.empty() ? "" : ", ") + track.name;
  return names;
}

std::vector<std::string> ShortLabels(const std::vector<std::string>& runs) {
  std::vector<fs::path> paths;
  for (const std::string& run : runs) {
    std::error_code ignored;
    fs::path path = fs::absolute(run, ignored).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();  // "runs/digits/"
    if (path.filename() == "metrics.jsonl") path = path.parent_path();
    if (path.extension() == ".jsonl") path.replace_extension();
    paths.push_back(path);
  }
  std::vector<std::string> labels;
  for (const fs::path& path : paths) {
    fs::path label = path.filename(), above = path.parent_path();
    const auto is_shared = [&](const fs::path& other) {
      return other != path && other.string().ends_with("/" + label.string());
    };
    while (above.has_filename() && std::any_of(paths.begin(), paths.end(), is_shared)) {
      label = above.filename() / label;
      above = above.parent_path();
    }
    labels.push_back(label.empty() ? "/" : label.string());
  }
  return labels;
}

std::vector<double> Smooth(const std::vector<double>& values, size_t window) {
  if (window <= 1) return values;
  std::vector<double> smooth = values;
  for (size_t begin = 0; begin < values.size();) {
    size_t end = begin;
    while (end < values.size() && !std::isnan(Showable(values[end], false))) ++end;
    for (size_t i = begin; i < end; ++i) {
      // At the start the window shrinks on the right too: a one-sided mean would bend the steep
      // start of the curve. At the end it keeps its left half: a shrinking window would end in
      // noise.
      const size_t left = std::min((window - 1) / 2, i - begin);
      const size_t right = std::min({window / 2, i - begin, end - 1 - i});
      double sum = 0;
      for (size_t j = i - left; j <= i + right; ++j) sum += values[j];
      smooth[i] = sum / static_cast<double>(left + right + 1);
    }
    begin = end + 1;
  }
  return smooth;
}

Figure RunCurves(const std::vector<RunLog>& runs, const CurveOptions& options) {
  std::vector<std::string> metrics = options.y;
  if (metrics.empty() && !runs.empty()) metrics.push_back(MainMetric(runs.front()));
  double longest = 0;
  for (const RunLog& run : runs) {
    for (const Track& track : run.tracks) {
      for (double seconds : track.seconds) {
        if (seconds <= options.to.value_or(seconds)) longest = std::max(longest, seconds);
      }
    }
  }
  const TimeUnit unit = options.time ? UnitFor(longest) : TimeUnit{"", 1};

  Figure figure;
  // A single run needs no legend: its label becomes the title.
  const bool alone = runs.size() == 1 && options.title.empty();
  figure.title = alone ? options.labels.at(0) : options.title;
  bool trained = false, validated = false, faint = false, smoothed = false;  // for the subtitle
  for (const std::string& metric : metrics) {
    Plot& plot = figure.panels.emplace_back();
    plot.x = {.label = options.time ? StrCat("training time (", unit.name, ")") : "step",
              .log = options.log_x};
    plot.y = {.label = AxisLabel(metric), .log = options.log_y};
    plot.legend = figure.panels.size() == 1;  // first panel only: all panels share its colors
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto [training, validation] = Find(runs[i], metric);
      const auto add = [&](const Track& track, bool behind) -> Series& {
        Series& series = plot.series.emplace_back(Between(track, options, unit.seconds));
        if (!alone && !behind) series.label = options.labels.at(i);
        series.color = static_cast<int>(i);
        series.faint = behind;
        return series;
      };
      if (training != nullptr) {
        Track smooth = *training;
        const size_t window = Window(options, smooth.value.size());
        smooth.value = Smooth(smooth.value, window);
        add(smooth, /*behind=*/validation != nullptr);
        trained = true, faint |= validation != nullptr, smoothed |= window > 1;
      }
      if (validation != nullptr) {
        add(*validation, /*behind=*/false).style = Style::kLineAndPoints;
        validated = true;
      }
    }
    const bool any = std::any_of(plot.series.begin(), plot.series.end(),
                                 [](const Series& series) { return !series.x.empty(); });
    if (!any && (options.from || options.to)) {
      throw InputError(runs.front().path, ": no record of '", metric,
                       "' lies between --from and --to; the run's steps go from ",
                       runs.front().first_step, " to ", runs.front().last_step,
                       "; choose another --from or --to");
    }
  }

  std::string training = faint ? "faint: training" : "training";
  if (smoothed && options.smooth > 0) training += StrCat(", mean of ", options.smooth, " records");
  if (smoothed && options.smooth == 0) training += ", smoothed";
  if (validated) figure.subtitle = trained ? "points: validation; " : "points: validation";
  if (trained && (validated || smoothed)) figure.subtitle += training;
  return figure;
}

}  // namespace linnet::plot
