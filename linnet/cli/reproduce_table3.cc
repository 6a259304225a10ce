// linnet reproduce table3: phones from speech (§4.3), by linear, softmax and Reformer attention and by a
// bidirectional LSTM, each trained for the same time; and what a second of sound costs as utterances grow.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kName[] = "table3";

struct Options : ExperimentOptions {
  std::string data, work = "runs/table3", lengths, precision = "fp32";
  double minutes = 8;
  int seeds = 3, threads = 0;
};

struct Method {
  const char* name;
  const char* label;
  std::vector<std::string> flags;
  bool seeds;        // several, where there are
  double paper_per;  // WSJ, validation, percent
  double paper_epoch;
};
// The paper's 1e-4 is for far longer trainings.
constexpr const char* kRate = "3e-4";

const std::vector<Method>& Methods() {
  static const std::vector<Method> methods = {
      {"lstm", "Bi-LSTM", {"--preset", "lstm"}, true, 10.94, 1047},
      {"full",
       "softmax",
       {"--preset", "paper", "--lr", kRate, "--attention", "full"},
       false,
       5.12,
       2711},
      {"reformer",
       "LSH-4",
       {"--preset", "paper", "--lr", kRate, "--attention", "reformer"},
       false,
       9.33,
       2250},
      {"linear", "linear", {"--preset", "paper", "--lr", kRate}, true, 8.08, 824},
  };
  return methods;
}

std::vector<std::string> TrainFlags(const Options& options, const Method& method, int seed) {
  std::vector<std::string> flags = {"speech"};
  flags.insert(flags.end(), method.flags.begin(), method.flags.end());
  const bool lstm = std::string(method.name) == "lstm";
  for (const std::string& flag : std::vector<std::string>{
           "--data", options.data, "--seed", std::to_string(seed), "--precision",
           lstm ? "fp32" : options.precision, "--checkpoint-every", "200"}) {
    flags.push_back(flag);
  }
  if (options.threads > 0) {
    flags.insert(flags.end(), {"--threads", std::to_string(options.threads)});
  }
  return flags;
}

// Updates that fit into the budget.
int64_t StepsOf(const Options& options, Lab& lab, const Method& method) {
  const double each =
      lab.SecondsAnUpdate(method.label, method.name, TrainFlags(options, method, 1));
  return std::max<int64_t>(1, std::llround(60 * options.minutes / each));
}

json Train(const Options& options, Lab& lab, const Method& method, int seed) {
  const int64_t steps = StepsOf(options, lab, method);
  const json trained =
      lab.Train(StrCat(method.label, ", seed ", seed), StrCat(method.name, "-", seed),
                TrainFlags(options, method, seed), steps);
  json result = {{"method", method.name}, {"seed", seed}, {"steps", steps}};
  json curve = json::array();
  double memory = 0;
  for (const json& record : trained.at("metrics")) {
    if (record.contains("validation_phone_error_rate")) {
      const double share = record.at("step").get<double>() / static_cast<double>(steps);
      curve.push_back({record.at("step"), 60 * options.minutes * share,
                       record.at("validation_phone_error_rate")});
    } else {
      memory = std::max(memory, record.value("peak_memory", 0.0));
    }
  }
  result["peak_memory"] = memory, result["curve"] = curve;
  result["epochs"] = trained.at("info").at("training").at("epochs");
  // As timed before the trainings: those of later ones may have had company.
  result["seconds"] = 60 * options.minutes;
  result["parameters"] = trained.at("info").at("parameters");
  const std::string model = fs::path(trained.at("run").get<std::string>()) / "model.safetensors";
  for (const char* split : {"validation", "test"}) {
    const json eval =
        RunVerbJson(kName, {"eval", model, "--data", options.data, "--split", split, "--json"});
    if (eval.at("left_out") != 0) {
      throw InputError(options.data, ": ", eval.at("left_out").dump(), " recordings of its ", split,
                       " set cannot be heard (above); mend them, and the same command goes on");
    }
    result[split] = eval.at("phone_error_rate");
    result["real_time_factor"] = eval.at("real_time_factor");
  }
  return result;
}

json Lengths(const Options& options) {
  if (!options.lengths.empty()) {
    const json lengths = ParseRecord(ReadFile(options.lengths, size_t{1} << 24), options.lengths);
    const auto whole = [](const json& record) {
      for (const char* field : {"seconds", "value", "loss", "threads"}) {
        if (!record.is_object() || !record.contains(field) || !record[field].is_number())
          return false;
      }
      for (const char* field : {"method", "machine", "date"}) {
        if (!record.contains(field) || !record[field].is_string()) return false;
      }
      return true;
    };
    if (!lengths.is_array() || lengths.empty() ||
        !std::all_of(lengths.begin(), lengths.end(), whole)) {
      throw InputError(options.lengths, ": is not what 'linnet bench speech --json' writes");
    }
    return lengths;
  }
  std::cerr << "timing updates against the length of utterances\n";
  std::vector<std::string> bench = {"bench", "speech", "--precision", options.precision, "--json"};
  if (options.threads > 0) {
    bench.insert(bench.end(), {"--threads", std::to_string(options.threads)});
  }
  return RunVerbJson(kName, bench);
}

json Measure(const Options& options) {
  json all = {
      {"machine", MachineName()},
      {"date", Today()},
      {"minutes", options.minutes},
      {"precision", options.precision},
      {"threads", options.threads > 0 ? options.threads : ThreadPool::AvailableProcessors()},
      {"runs", json::array()}};
  // One behind the other, so that what else the machine does falls on all of them.
  // A mistake in it is told before the trainings, not behind them.
  const json lengths = options.lengths.empty() ? json() : Lengths(options);
  Lab lab(kName, options.work);
  for (const Method& method : Methods()) StepsOf(options, lab, method);
  for (const Method& method : Methods()) {
    for (int seed = 1; seed <= (method.seeds ? options.seeds : 1); ++seed) {
      all["runs"].push_back(Train(options, lab, method, seed));
    }
  }
  all["lengths"] = lengths.is_null() ? Lengths(options) : lengths;
  return all;
}

// The runs of a method; the mean of a field over them, and how far they lie apart.
struct Summary {
  std::vector<const json*> runs;

  double Mean(const char* field) const {
    double sum = 0;
    for (const json* run : runs) sum += run->at(field).get<double>();
    return sum / static_cast<double>(runs.size());
  }
  double Spread(const char* field) const {
    double least = 1e300, most = -1e300;
    for (const json* run : runs) {
      least = std::min(least, run->at(field).get<double>());
      most = std::max(most, run->at(field).get<double>());
    }
    return most - least;
  }
};
Summary Of(const json& all, const Method& method) {
  Summary summary;
  for (const json& run : all.at("runs")) {
    if (run.at("method") == method.name) summary.runs.push_back(&run);
  }
  return summary;
}

plot::Figure DrawCurves(const json& all) {
  plot::Plot by_time{
      .title = "against time", .x = {"minutes of training"}, .y = {"validation PER, %"}};
  plot::Plot by_step{.title = "against updates", .x = {"updates"}, .y = {"validation PER, %"}};
  for (const Method& method : Methods()) {
    bool first = true;
    for (const json* run : Of(all, method).runs) {
      plot::Series series = MethodSeries(method.label, plot::Style::kLine);
      if (!first) series.label.clear();
      plot::Series steps = series;
      for (const json& point : run->at("curve")) {
        series.x.push_back(point.at(1).get<double>() / 60);
        steps.x.push_back(point.at(0));
        series.y.push_back(100 * point.at(2).get<double>());
        steps.y.push_back(series.y.back());
      }
      by_time.series.push_back(series);
      by_step.series.push_back(steps);
      first = false;
    }
  }
  return {.title = "Phones from speech as training goes on",
          .subtitle = "AN4; a line a seed; of figure 5, the part on speech",
          .panels = {by_time, by_step}};
}

plot::Figure DrawLengths(const json& all) {
  plot::Plot panel{.x = {"seconds of an utterance", /*log=*/true},
                   .y = {"milliseconds of training a second of sound", /*log=*/true}};
  for (const Method& method : Methods()) {
    plot::Series series = MethodSeries(method.label, plot::Style::kLineAndPoints);
    for (const json& record : all.at("lengths")) {
      if (record.at("method") != method.name) continue;
      series.x.push_back(record.at("seconds"));
      series.y.push_back(record.at("value"));
    }
    if (!series.x.empty()) panel.series.push_back(series);
  }
  return {.title = "What a second of sound costs in training",
          .subtitle = "batches of 240 s in utterances of 8 s to 4 minutes",
          .panels = {panel}};
}

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", 100 * share);
  return text;
}

std::string Page(const json& all) {
  std::string page = StrCat(
      "# Table 3: phones from speech\n\n```\n", CommandOf(kName, all), "\n```\n\n",
      Wrapped(StrCat(
          all.at("machine").get<std::string>(), ", ", all.at("threads").get<int>(), " threads, ",
          all.at("precision").get<std::string>(), ", ", all.at("date").get<std::string>(),
          ". Each run trained for about ", Digits(all.at("minutes").get<double>()),
          " minutes: the paper's networks (9 layers of 6 heads of 32; the LSTM 3 layers of 320 "
          "in both directions), their optimisers and schedules, but for the transformers' rate (",
          kRate,
          " in place of "
          "1e-4: the paper's trainings are far longer), on CMU AN4, 38 minutes of speech "
          "by 66 people, eight others held "
          "out for validation, the test set (130 utterances, 10 more people) heard once by each "
          "final model. **The paper's figures are of another corpus**, WSJ with 80 hours, and of "
          "trainings to the end: what compares is the order and the time.")),
      "\n| | test PER, % | validation PER, % | s an epoch | updates | epochs | times faster than "
      "real time | memory of training | parameters | paper, WSJ: validation PER, % | s an epoch |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Method& method : Methods()) {
    const Summary summary = Of(all, method);
    if (summary.runs.empty()) continue;
    const auto rate = [&](const char* field) {
      return summary.runs.size() == 1
                 ? Percent(summary.Mean(field))
                 : StrCat(Percent(summary.Mean(field)), " (", summary.runs.size(), " seeds, ",
                          Percent(summary.Spread(field)), " apart)");
    };
    page += StrCat(
        "| ", method.label, " | ", rate("test"), " | ", rate("validation"), " | ",
        Digits(summary.Mean("seconds") / summary.Mean("epochs")), " | ",
        Digits(std::lround(summary.Mean("steps"))), " | ", Digits(summary.Mean("epochs")), " | ",
        Digits(1 / summary.Mean("real_time_factor")), " | ",
        FormatBytes(summary.Mean("peak_memory")), " | ", FormatCount(summary.Mean("parameters")),
        " | ", method.paper_per, " | ", Digits(method.paper_epoch), " |\n");
  }
  page += "\n" + PictureTag("table3", "Phone error rates against time and updates") + "\n";
  page += "## The length of utterances\n\n" +
          PictureTag("table3-length", "Training time a second of sound, against the length") + "\n";
  page += "| seconds of an utterance |";
  std::string line = "|---|";
  for (const Method& method : Methods()) page += StrCat(" ", method.label, " |"), line += "---|";
  page += "\n" + line + "\n";
  std::vector<double> lengths;
  for (const json& record : all.at("lengths")) {
    const double seconds = record.at("seconds");
    if (std::find(lengths.begin(), lengths.end(), seconds) == lengths.end()) {
      lengths.push_back(seconds);
    }
  }
  for (const double seconds : lengths) {
    page += StrCat("| ", seconds, " |");
    for (const Method& method : Methods()) {
      std::string cell = "–";
      for (const json& record : all.at("lengths")) {
        if (record.at("method") == method.name && record.at("seconds") == seconds) {
          cell = Digits(record.at("value").get<double>());
        }
      }
      page += StrCat(" ", cell, " |");
    }
    page += "\n";
  }
  page += "| the loss |";
  for (const Method& method : Methods()) {
    double least = 1e300, most = 0;
    for (const json& record : all.at("lengths")) {
      if (record.at("method") != method.name) continue;
      const double loss = record.at("loss");
      least = std::min(least, loss), most = std::max(most, loss);
    }
    page += most > 0 ? StrCat(" ", Digits(least), " to ", Digits(most), " |") : " – |";
  }
  const json& first = all.at("lengths").at(0);
  return page + "\n\n" +
         Wrapped(StrCat(
             "Milliseconds of an update (forward, backward, optimiser) a second of sound, by "
             "'linnet bench speech', which checks gradients first: ",
             first.at("machine").get<std::string>(), ", ", first.at("threads").get<int>(),
             " threads, ", first.at("date").get<std::string>(),
             ". Beside it the loss, least and most, which are the shortest utterances' and the "
             "longest's: CTC fills a table "
             "of positions times phones, whose part of a second grows with the utterance, whatever "
             "the network. The LSTM goes through a batch position by position: the fewer "
             "utterances "
             "there are, the smaller its products.")) +
         "\n" +
         Wrapped(
             "Times of updates in the first table (and so of epochs, and how many updates fit into "
             "the budget) were taken before the trainings, one network behind the other. How fast "
             "a model hears is measured by 'linnet eval', from samples to phones. "
             "Memory is that of the whole process, all utterances at three speeds included.") +
         "\nThe command wrote this page.\n";
}

void Run(const Options& options) {
  Results results(kName, options.out, {"table3", "table3-length"});
  std::string command = "linnet reproduce table3 --data an4";
  if (options.minutes != 8) command += StrCat(" --minutes ", options.minutes);
  if (options.seeds != 3) command += StrCat(" --seeds ", options.seeds);
  if (options.precision != "fp32") command += " --precision " + options.precision;
  if (options.threads > 0) command += StrCat(" --threads ", options.threads);
  if (options.from.empty() && options.data.empty()) {
    throw InputError("--data is missing: name AN4's folder");
  }
  json all = Obtain(
      kName, options, command, [&] { return Measure(options); },
      [](const json& record) {
        if (record.at("runs").empty()) throw InputError("it holds no run");
        Page(record);
        DrawCurves(record), DrawLengths(record);
      });
  if (!options.from.empty() && !options.lengths.empty()) all["lengths"] = Lengths(options);
  results.Write(all.dump(1) + "\n", Page(all), {DrawCurves(all), DrawLengths(all)});
  results.Print(options.json);
}

void Add(CLI::App& verb) {
  auto options = std::make_shared<Options>();
  verb.add_option("--data", options->data, "AN4's folder, with etc/ and wav/")->type_name("DIR");
  verb.add_option("--minutes", options->minutes, "Time for each training")
      ->type_name("M")
      ->check(Between(0.01, 10'000))
      ->capture_default_str();
  verb.add_option("--seeds", options->seeds, "Trainings of linear attention and of the LSTM")
      ->type_name("N")
      ->check(Between(1, 20))
      ->capture_default_str();
  verb.add_option("--precision", options->precision, "Of the transformers: fp32 or bf16")
      ->type_name("P")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  AddThreadsOption(&verb, options->threads);
  verb.add_option("--work", options->work,
                  "Folder for the trainings; a command that was stopped goes on with what is there")
      ->type_name("DIR")
      ->capture_default_str();
  verb.add_option(
          "--lengths", options->lengths,
          "What 'linnet bench speech --json' wrote, in place of timing updates against the length")
      ->type_name("FILE");
  AddExperimentOptions(verb, kName, *options);
  verb.callback([options, &verb] {
    CheckFrom(verb, {"--lengths"});
    Run(*options);
  });
}

}  // namespace

const Experiment kTable3 = {
    "table3", "Phones from speech: error rates and times of four networks (section 4.3)",
    "Trains the paper's encoder with linear, softmax and Reformer attention and its LSTM on AN4, "
    "for\n"
    "eight minutes each, from several seeds (64 minutes in all, and some for timing); then times\n"
    "updates against the length of utterances. Stopped, it goes on where it was.",
    "  linnet reproduce table3 --data data/an4 --out docs/results\n"
    "  linnet reproduce table3 --data data/an4 --minutes 1 --seeds 1\n",
    Add};

}  // namespace linnet::cli
