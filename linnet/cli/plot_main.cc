// linnet-plot: draws the curves of training runs as PNG and SVG. `linnet plot` runs it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/plot/curves.h"
#include "linnet/program/program.h"

namespace linnet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using plot::RunLog;

constexpr const char* kMetrics = "metrics.jsonl";

struct Options {
  std::vector<std::string> runs, out;
  std::string x = "step", from, to, theme = "light";
  bool list = false, json = false;
  plot::CurveOptions curves;
};

// Parses a value of the x axis: a step or, if `time`, a time with its unit. Returns nullopt for "".
std::optional<double> ParsePlace(const std::string& text, bool time) {
  if (text.empty()) return std::nullopt;
  if (time) return ParseSeconds(text);
  double step = 0;
  if (!CLI::detail::lexical_cast(text, step) || !(step >= 0) || !std::isfinite(step)) {
    throw InputError("'", text, "' is not a step; write a number, e.g. 5000");
  }
  return step;
}

void PrintList(const std::vector<RunLog>& runs, bool json) {
  ordered_json list = ordered_json::array();
  for (const RunLog& run : runs) {
    ordered_json& entry = list.emplace_back();
    entry = {{"path", run.path},
             {"records", run.records},
             {"first_step", run.first_step},
             {"last_step", run.last_step},
             {"metrics", ordered_json::array()}};
    for (const plot::Track& track : run.tracks) entry["metrics"].push_back(track.name);
    if (!json) {
      std::cout << StrCat(run.path, ": ", run.records, " records, steps ", run.first_step, " to ",
                          run.last_step, ": ", MetricNames(run), "\n");
    }
  }
  if (json) std::cout << list.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n";
}

// Replaces each folder without a metrics.jsonl of its own by the runs in it, sorted by name.
std::vector<std::string> ExpandFolders(const std::vector<std::string>& paths) {
  std::vector<std::string> runs;
  std::error_code error;
  for (const std::string& path : paths) {
    std::vector<std::string> inside;
    if (fs::is_directory(path, error) && !fs::exists(fs::path(path) / kMetrics, error)) {
      for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
        if (fs::exists(entry.path() / kMetrics, error)) inside.push_back(entry.path());
      }
    }
    std::sort(inside.begin(), inside.end());
    if (inside.empty()) inside = {path};
    runs.insert(runs.end(), inside.begin(), inside.end());
  }
  return runs;
}

void Run(Options& options) {
  plot::CurveOptions& curves = options.curves;
  options.runs = ExpandFolders(options.runs);
  if (!curves.labels.empty() && curves.labels.size() != options.runs.size()) {
    throw InputError(curves.labels.size(), " labels for ", options.runs.size(),
                     " runs; repeat --label once per run, in their order, or omit it");
  }
  curves.time = options.x == "time";
  curves.from = ParsePlace(options.from, curves.time);
  curves.to = ParsePlace(options.to, curves.time);
  if (curves.labels.empty()) curves.labels = plot::ShortLabels(options.runs);
  for (const std::string& out : options.out) {  // check all before writing any
    plot::CheckFormat(out);
    if (!options.list) AtomicFile probe(out);
  }

  std::vector<RunLog> runs;
  for (const std::string& run : options.runs) runs.push_back(plot::ReadRunLog(run));
  if (options.list) return PrintList(runs, options.json);
  plot::Figure figure = RunCurves(runs, curves);
  if (options.theme == "dark") figure.theme = plot::Theme::kDark;
  for (const std::string& out : options.out) Draw(figure, out);

  if (options.json) {
    ordered_json result = {{"out", options.out}, {"x", options.x}, {"y", curves.y}};
    if (curves.y.empty()) result["y"] = {plot::MainMetric(runs[0])};
    for (size_t i = 0; i < runs.size(); ++i) {
      result["runs"].push_back(
          {{"path", runs[i].path}, {"label", curves.labels[i]}, {"records", runs[i].records}});
    }
    // Paths are as the user typed them; they need not be UTF-8.
    std::cout << result.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n";
  } else {
    for (const std::string& out : options.out) std::cout << "wrote " << out << "\n";
  }
}

// Adds an option that may be repeated; each occurrence takes one value.
CLI::Option* AddRepeated(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                         const std::string& help) {
  return app.add_option(name, values, help)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("RUN", options.runs,
                 "Runs of linnet train: their folders, a folder of runs, or metrics.jsonl files")
      ->type_name("")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->required();
  options.out = {"plot.png"};
  AddRepeated(app, "--out", options.out, "A .png or .svg file to write; may be repeated")
      ->type_name("FILE")
      ->default_str("plot.png");
  AddRepeated(app, "--y", options.curves.y,
              "The metric to draw (default: the run's main metric); each further --y adds a panel")
      ->type_name("NAME");
  AddOption(&app, "--x", options.x, "NAME", "The x axis: steps, or the time spent in training",
            CLI::IsMember({"step", "time"}));
  AddOption(&app, "--from", options.from, "X",
            "Start of the x range: a step, or a time such as 90s or 2h");
  AddOption(&app, "--to", options.to, "X", "End of the x range, in the same form as --from");
  app.add_flag("--log-x", options.curves.log_x, "A logarithmic x axis");
  app.add_flag("--log-y", options.curves.log_y, "A logarithmic y axis");
  AddOption(&app, "--smooth", options.curves.smooth, "N",
            "Smooth training curves over N records (1: not at all; default: depends on the number "
            "of records)",
            CLI::Range(1, 10'000).description(""));
  AddOption(&app, "--title", options.curves.title, "TEXT", "Title of the figure");
  AddRepeated(
      app, "--label", options.curves.labels,
      "Name of a run in the legend; repeat it for each run (default: from the folders' names)")
      ->type_name("NAME");
  AddOption(&app, "--theme", options.theme, "NAME", "Colors for a light page or a dark one",
            CLI::IsMember({"light", "dark"}));
  app.add_flag("--list", options.list, "List the runs' metrics and exit");
  app.add_flag("--json", options.json, "Print JSON for machines, and nothing else, on stdout");
  app.footer(
      "\nThe line with points is validation; the faint line behind it is training. A run in "
      "progress\ncan be drawn at any time.\n\n"
      "Examples:\n"
      "  linnet plot runs/digits\n"
      "  linnet plot runs/a runs/b --label plain --label 'pixel above' --out ab.svg --out ab.png\n"
      "  linnet plot runs/digits --x time --from 10m --y bits_per_dim --y tokens_per_second\n");
}

}  // namespace
}  // namespace linnet::cli

int main(int argc, char** argv) {
  CLI::App app("Draw the curves of training runs", "linnet plot");
  linnet::cli::SetUp(app);
  linnet::cli::Options options;
  linnet::cli::AddOptions(app, options);
  app.callback([&options] { linnet::cli::Run(options); });
  return linnet::cli::RunProgram(app, argc, argv);
}
