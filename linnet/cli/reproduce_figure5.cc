// linnet reproduce figure5: how trainings go on (appendix B), against updates and against time, from what tables
// 1, 2 and 3 recorded.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/image_lab.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Options {
  std::string tables, out = ".";
  bool json = false;
};

const json* Find(const json& all, const std::string& method) {
  for (const json& run : all.at("runs")) {
    if (run.at("method") == method) return &run;
  }
  return nullptr;
}

plot::Figure DrawImages(const ImageSetup& setup, const json& all) {
  plot::Plot by_step{
      .title = "against updates", .x = {"updates", /*log=*/true}, .y = {"bits/dim of test images"}};
  plot::Plot by_time{
      .title = "against time", .x = {"minutes", /*log=*/true}, .y = {"bits/dim of test images"}};
  for (const ImageMethod& method : kImageMethods) {
    const json* run = Find(all, method.name);
    if (run == nullptr) continue;
    plot::Series series = MethodSeries(method.label, plot::Style::kLine);
    plot::Series timed = series;
    const double each = Positive(*run, "seconds_an_update");
    for (const json& point : run->at("curve")) {
      const double step = point.at(0);
      series.x.push_back(step), series.y.push_back(point.at(1));
      timed.x.push_back(step * each / 60), timed.y.push_back(point.at(1));
    }
    by_step.series.push_back(series), by_time.series.push_back(timed);
  }
  return {.title = StrCat(setup.title, " as training goes on"),
          .subtitle = StrCat(all.at("equal_time").get<bool>() ? "equal time" : "equal updates",
                             ", ", all.at("scale").get<std::string>(), " scale"),
          .panels = {by_step, by_time}};
}

plot::Figure DrawSpeech(const json& all) {
  struct {
    const char *method, *label;
  } constexpr kNetworks[] = {
      {"full", "softmax"}, {"reformer", "LSH-4"}, {"linear", "linear"}, {"lstm", "Bi-LSTM"}};
  plot::Plot by_step{
      .title = "against updates", .x = {"updates"}, .y = {"validation PER, %", /*log=*/true}};
  plot::Plot by_time{
      .title = "against time", .x = {"minutes"}, .y = {"validation PER, %", /*log=*/true}};
  for (const auto& network : kNetworks) {
    const json* run = Find(all, network.method);  // its first seed
    if (run == nullptr) continue;
    plot::Series series = MethodSeries(network.label, plot::Style::kLine);
    plot::Series timed = series;
    for (const json& point : run->at("curve")) {
      series.x.push_back(point.at(0)), timed.x.push_back(point.at(1).get<double>() / 60);
      series.y.push_back(100 * point.at(2).get<double>()), timed.y.push_back(series.y.back());
    }
    by_step.series.push_back(series), by_time.series.push_back(timed);
  }
  return {.title = "Speech as training goes on",
          .subtitle = "AN4, equal time, the first seed of each",
          .panels = {by_step, by_time}};
}

std::string EpochsAnHour(const ImageSetup& setup, const json& all, double images) {
  const json* softmax = Find(all, "softmax");
  std::string rows = StrCat("| ", setup.title,
                            " | ms an update | epochs an hour | times softmax's |\n"
                            "|---|---|---|---|\n");
  const auto rate = [&](const json& run) {
    return 3600 / Positive(run, "seconds_an_update") * setup.batch / images;
  };
  for (const ImageMethod& method : kImageMethods) {
    const json* run = Find(all, method.name);
    if (run == nullptr) continue;
    rows += StrCat(
        "| ", method.label, " | ", Digits(1e3 * run->at("seconds_an_update").get<double>()), " | ",
        Digits(rate(*run)), " | ", softmax ? Digits(rate(*run) / rate(*softmax)) : "–", " |\n");
  }
  return rows + "\n";
}

// A table's record, or null where it is missing.
json Table(const Options& options, const char* name) {
  const fs::path path = fs::path(options.tables.empty() ? options.out : options.tables) /
                        (std::string(name) + ".json");
  std::error_code error;
  if (!fs::exists(path, error)) return nullptr;
  return ReadRecord(name, ReadFile(path, size_t{1} << 26), path, [&](const json& record) {
    if (name == std::string("table3")) {
      DrawSpeech(record);
      for (const char* field : {"machine", "date"}) record.at(field).get<std::string>();
    } else {
      const ImageSetup& setup = name == std::string("table1") ? MnistSetup() : CifarSetup();
      DrawImages(setup, record);
      EpochsAnHour(setup, record, 1);
      DescribeScale(setup, record);
      for (const char* field : {"machine", "date"}) record.at(field).get<std::string>();
      record.at("validation_images").get<int>();
    }
  });
}

void Run(const Options& options) {
  const json mnist = Table(options, "table1"), cifar = Table(options, "table2"),
             speech = Table(options, "table3");
  if (mnist.is_null() && cifar.is_null() && speech.is_null()) {
    throw InputError(options.tables.empty() ? options.out : options.tables,
                     ": holds none of table1.json, table2.json and table3.json, whose trainings "
                     "figure5 draws; run 'linnet reproduce table1 --out DIR' first");
  }
  std::vector<std::string> names;
  std::vector<plot::Figure> figures;
  std::string page = StrCat(
      "# Figure 5: how trainings go on\n\n```\nlinnet reproduce figure5",
      options.tables.empty() ? "" : " --tables " + options.tables, "\n```\n\n",
      Wrapped("Drawn from what tables 1, 2 and 3 recorded while they trained, so with their "
              "machines and dates. Time is that of updates, timed before the trainings, one method "
              "behind the other."),
      "\n");
  const auto images = [&](const ImageSetup& setup, const json& all, const char* name, double size) {
    if (all.is_null()) return;
    names.push_back(name), figures.push_back(DrawImages(setup, all));
    page += StrCat(
        "## ", setup.title, "\n\n",
        Wrapped(StrCat("From [", setup.table, "](", setup.table,
                       ".md): ", all.at("machine").get<std::string>(), ", ",
                       all.at("date").get<std::string>(), ". ", DescribeScale(setup, all),
                       " The first ", all.at("validation_images").get<int>(), " test images.")),
        "\n", PictureTag(name, StrCat("Bits/dim of ", setup.title, " against updates and time")),
        "\n", EpochsAnHour(setup, all, size));
  };
  images(MnistSetup(), mnist, "figure5-mnist", 60'000);
  images(CifarSetup(), cifar, "figure5-cifar10", 50'000);
  if (!speech.is_null()) {
    names.push_back("figure5-speech"), figures.push_back(DrawSpeech(speech));
    page += StrCat(
        "## Speech\n\n",
        Wrapped(StrCat("From [table 3](table3.md): ", speech.at("machine").get<std::string>(), ", ",
                       speech.at("date").get<std::string>(),
                       ". The eight held-out speakers; of several seeds the first. Seconds an "
                       "epoch are in table 3.")),
        "\n", PictureTag("figure5-speech", "Phone error rates against updates and time"), "\n");
  }
  page += Wrapped(
      "The paper, at its sizes: on MNIST linear converges on par with softmax and ahead of both "
      "Reformers; on CIFAR-10, in equal time, LSH-1 and linear complete far more epochs (linear "
      "three times softmax's) and end better; on speech softmax converges best, linear being three "
      "times faster an epoch, and both ahead of Reformer.");
  const json record = {{"table1", mnist}, {"table2", cifar}, {"table3", speech}};
  Results results("figure5", options.out, names);
  results.Write(record.dump(1) + "\n", page + "\nThe command wrote this page.\n", figures);
  results.Print(options.json);
}

void Add(CLI::App& verb) {
  auto options = std::make_shared<Options>();
  verb.add_option("--tables", options->tables,
                  "The folder of table1.json, table2.json and table3.json (default: --out)")
      ->type_name("DIR");
  verb.add_option("--out", options->out, "The folder for figure5.md, .json and the pictures")
      ->type_name("DIR")
      ->capture_default_str();
  AddJsonFlag(&verb, options->json);
  verb.callback([options] { Run(*options); });
}

}  // namespace

const Experiment kFigure5 = {"figure5",
                             "How trainings go on, against updates and time (appendix B)",
                             "Draws what table1, table2 and table3 recorded, of those that are "
                             "there, and how many epochs an\n"
                             "hour each method makes; trains nothing.",
                             "  linnet reproduce table1 --out docs/results\n"
                             "  linnet reproduce figure5 --out docs/results\n",
                             Add};

}  // namespace linnet::cli
