// linnet reproduce figure2: the copy task (§4.1.1): how softmax, linear and Reformer attention learn to repeat
// a sequence.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::cli {
namespace {

using nlohmann::json;

constexpr char kName[] = "figure2";

struct Options : ExperimentOptions {
  std::string scale = "small", work = "runs/figure2", budget;
  int64_t steps = 0;  // 0: the scale's
  int seed = 1, threads = 0;
  int max_length = 0;  // 0: the scale's
};

struct Method {
  const char* name;
  const char* label;
  const char* attention;
};
constexpr Method kMethods[] = {{"softmax", "softmax", "full"},
                               {"lsh-4", "LSH-4", "reformer"},
                               {"linear", "linear", "causal-linear"}};

struct Scale {
  const char* name;
  const char* says;
  std::vector<std::string> flags;
  int max_length;
  int64_t steps, drop_at;
};
const std::vector<Scale>& Scales() {
  // Of the rate a tenth is left behind the paper's 3,000 updates, and behind three quarters of the small ones.
  static const std::vector<Scale> scales = {
      // The sequences shrink with the model: half the heads tell fewer places apart.
      {"small",
       "4 layers of 4 heads of 32, a quarter of the paper's weights",
       {"--d-model", "128", "--heads", "4"},
       32,
       8000,
       6000},
      {"paper", "4 layers of 8 heads of 32", {}, 128, 10000, 3000},
  };
  return scales;
}
const Scale& ScaleNamed(const std::string& name) {
  for (const Scale& scale : Scales()) {
    if (scale.name == name) return scale;
  }
  throw InputError("no scale ", name);
}

int MaxLength(const Options& options, const Scale& scale) {
  return options.max_length > 0 ? options.max_length : scale.max_length;
}

// Of Reformer: nine chunks, of 32 at the paper's length, and 16 buckets, the next power of two.
constexpr int kBuckets = 16;
int Chunk(int max_length) { return (max_length + 3) / 4; }

std::vector<std::string> Flags(const Options& options, const Scale& scale, const Method& method) {
  std::vector<std::string> flags = {"copy", "--preset", "paper", "--attention", method.attention};
  flags.insert(flags.end(), scale.flags.begin(), scale.flags.end());
  const int max_length = MaxLength(options, scale);
  flags.insert(flags.end(),
               {"--lsh-buckets", std::to_string(kBuckets), "--lsh-chunk",
                std::to_string(Chunk(max_length)), "--max-length", std::to_string(max_length),
                "--seed", std::to_string(options.seed), "--checkpoint-every", "500"});
  if (options.threads > 0) {
    flags.insert(flags.end(), {"--threads", std::to_string(options.threads)});
  }
  return flags;
}

json Measure(const Options& options) {
  const Scale& scale = ScaleNamed(options.scale);
  const double budget = options.budget.empty() ? 0 : ParseSeconds(options.budget);
  Lab lab(kName, options.work);
  double together = 0;
  std::vector<double> seconds;
  for (const Method& method : kMethods) {
    seconds.push_back(
        lab.SecondsAnUpdate(method.label, method.name, Flags(options, scale, method)));
    together += seconds.back();
  }
  int64_t steps = options.steps > 0 ? options.steps : scale.steps;
  if (!options.budget.empty()) {
    // Equal updates for all; a tenth is left for validations.
    const auto fit = static_cast<int64_t>(std::min(0.9 * budget / together, 1e7));
    constexpr int64_t kLeast = 100;
    if (fit < kLeast) {
      throw InputError("--budget ", options.budget, " is too little: ", kLeast,
                       " updates of each method take ",
                       FormatSeconds(static_cast<double>(kLeast) * together / 0.9));
    }
    steps = std::min(steps, fit);
  }
  std::cerr << steps << " updates of each: about "
            << FormatSeconds(static_cast<double>(steps) * together / 0.9) << " in all\n";
  const int64_t drop_at =
      std::max<int64_t>(1, std::min(scale.drop_at, steps * scale.drop_at / scale.steps));
  json all = {{"machine", MachineName()},
              {"date", Today()},
              {"scale", scale.name},
              {"steps", steps},
              {"drop_at", drop_at},
              {"seed", options.seed},
              {"max_length", MaxLength(options, scale)},
              {"runs", json::array()}};
  for (size_t m = 0; m < std::size(kMethods); ++m) {
    const Method& method = kMethods[m];
    std::vector<std::string> flags = Flags(options, scale, method);
    flags.insert(flags.end(), {"--lr-drop-at", std::to_string(drop_at), "--log-every", "20",
                               "--validate-every", "100"});
    const json trained = lab.Train(method.label, method.name, flags, steps);
    json curve = json::array();
    for (const json& record : trained.at("metrics")) {
      if (!record.contains("validation_loss")) continue;
      curve.push_back(
          {record.at("step"), record.at("validation_loss"), record.at("validation_accuracy")});
    }
    const json& info = trained.at("info");
    all["runs"].push_back({{"method", method.name},
                           {"seconds_an_update", seconds[m]},
                           {"parameters", info.at("parameters")},
                           {"curve", curve}});
  }
  all["threads"] = options.threads;
  return all;
}

const json* Find(const json& all, const Method& method) {
  for (const json& run : all.at("runs")) {
    if (run.at("method") == method.name) return &run;
  }
  return nullptr;
}

plot::Figure Draw(const json& all) {
  plot::Plot by_step{.title = "against updates",
                     .x = {"updates"},
                     .y = {"validation loss, nats a symbol", /*log=*/true}};
  plot::Plot by_time{.title = "against time",
                     .x = {"minutes"},
                     .y = {"validation loss, nats a symbol", /*log=*/true}};
  for (const Method& method : kMethods) {
    const json* run = Find(all, method);
    if (run == nullptr) continue;
    plot::Series series = MethodSeries(method.label, plot::Style::kLine);
    plot::Series timed = series;
    for (const json& point : run->at("curve")) {
      series.x.push_back(point.at(0));
      series.y.push_back(point.at(1));
      timed.x.push_back(point.at(0).get<double>() * Positive(*run, "seconds_an_update") / 60);
      timed.y.push_back(point.at(1));
    }
    by_step.series.push_back(series), by_time.series.push_back(timed);
  }
  return {.title = StrCat("Repeating up to ", all.at("max_length").get<int>() - 1, " symbols"),
          .subtitle = StrCat("the copy task, ", ScaleNamed(all.at("scale")).says),
          .panels = {by_step, by_time}};
}

// The first update at which the loss was below, or a dash.
std::string First(const json& run, double below) {
  for (const json& point : run.at("curve")) {
    if (point.at(1).get<double>() < below) return Digits(point.at(0).get<long>());
  }
  return "–";
}

std::string Page(const json& all) {
  const Scale& scale = ScaleNamed(all.at("scale"));
  std::string page = StrCat(
      "# Figure 2: the copy task\n\n```\n", CommandOf(kName, all), "\n```\n\n",
      Wrapped(StrCat(all.at("machine").get<std::string>(), ", ", all.at("date").get<std::string>(),
                     ", fp32, one seed. Sequences of 10 to ", all.at("max_length").get<int>() - 1,
                     " symbols out of 10, a separator, and "
                     "the same again; "
                     "batches of 64; RAdam at 1e-3, a tenth of it from update ",
                     Digits(all.at("drop_at").get<long>()), " on (the paper: 3,000); ", scale.says,
                     ". LSH-4 hashes in four rounds into ", kBuckets,
                     " buckets and attends within chunks of ", Chunk(all.at("max_length")),
                     ". The loss is that of 256 sequences that no "
                     "training sees.")),
      "\n", PictureTag("figure2", "Loss of the copy task against updates and time"), "\n",
      "| | loss at the end | lowest | copied rightly, % | updates until 1e-2 | until 1e-3 | "
      "milliseconds an update | parameters |\n|---|---|---|---|---|---|---|---|\n");
  for (const Method& method : kMethods) {
    const json* run = Find(all, method);
    if (run == nullptr) continue;
    const json& curve = run->at("curve");
    double lowest = 1e300;
    for (const json& point : curve) lowest = std::min(lowest, point.at(1).get<double>());
    char last[32], least[32];
    std::snprintf(last, sizeof(last), "%.2e", curve.back().at(1).get<double>());
    std::snprintf(least, sizeof(least), "%.2e", lowest);
    page += StrCat("| ", method.label, " | ", last, " | ", least, " | ",
                   Digits(100 * curve.back().at(2).get<double>()), " | ", First(*run, 1e-2), " | ",
                   First(*run, 1e-3), " | ", Digits(1e3 * Positive(*run, "seconds_an_update")),
                   " | ", FormatCount(run->at("parameters").get<double>()), " |\n");
  }
  return page + "\n" +
         Wrapped(
             "The paper draws no numbers into its figure; it says that linear attention converges "
             "smoothly and reaches a lower loss than LSH, which the noise of hashing holds back, "
             "and "
             "that it comes down to softmax's. Updates were timed before the trainings, one method "
             "behind the other.") +
         "\nThe command wrote this page.\n";
}

void Run(const Options& options) {
  Results results(kName, options.out, {"figure2"});
  std::string command = "linnet reproduce figure2 --scale " + options.scale;
  if (options.steps > 0) command += StrCat(" --steps ", options.steps);
  if (!options.budget.empty()) command += " --budget " + options.budget;
  if (options.max_length > 0) command += StrCat(" --max-length ", options.max_length);
  if (options.seed != 1) command += StrCat(" --seed ", options.seed);
  if (options.threads > 0) command += StrCat(" --threads ", options.threads);
  const json all = Obtain(
      kName, options, command, [&] { return Measure(options); },
      [](const json& record) {
        for (const json& run : record.at("runs")) {
          if (run.at("curve").empty()) throw InputError("it holds a run without a validation");
        }
        if (record.at("runs").empty()) throw InputError("it holds no run");
        Page(record);
        Draw(record);
      });
  results.Write(all.dump(1) + "\n", Page(all), {Draw(all)});
  results.Print(options.json);
}

void Add(CLI::App& verb) {
  auto options = std::make_shared<Options>();
  verb.add_option("--scale", options->scale,
                  "small: 128 wide, lengths to 32, 8,000 updates; paper: 256, 128 and 10,000")
      ->type_name("NAME")
      ->check(CLI::IsMember({"small", "paper"}))
      ->capture_default_str();
  verb.add_option("--steps", options->steps, "Updates of each method (default: the scale's)")
      ->type_name("N")
      ->check(Between(100, 1e7));
  verb.add_option("--budget", options->budget,
                  "Time for all of it, as 30m or 2h: fewer updates, as many of each method")
      ->type_name("TIME");
  verb.add_option("--max-length", options->max_length,
                  "Sequences of fewer than so many symbols (default: the scale's)")
      ->type_name("N")
      ->check(Between(12, 4096));
  verb.add_option("--seed", options->seed, "Of weights and data")
      ->type_name("N")
      ->check(Between(0, 1e9))
      ->capture_default_str();
  AddThreadsOption(&verb, options->threads);
  verb.add_option("--work", options->work,
                  "Folder for the trainings; a command that was stopped goes on with what is there")
      ->type_name("DIR")
      ->capture_default_str();
  AddExperimentOptions(verb, kName, *options);
  verb.callback([options, &verb] {
    CheckFrom(verb);
    Run(*options);
  });
}

}  // namespace

const Experiment kFigure2 = {"figure2",
                             "The copy task: loss against updates and time, by three attentions",
                             "Trains softmax, LSH-4 and linear attention to repeat sequences, "
                             "as many updates each.\n"
                             "Stopped, it goes on where it was.",
                             "  linnet reproduce figure2 --out docs/results\n"
                             "  linnet reproduce figure2 --scale paper --budget 2h\n",
                             Add};

}  // namespace linnet::cli
