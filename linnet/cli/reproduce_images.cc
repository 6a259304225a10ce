// linnet reproduce table1, table2: images byte by byte (§4.2) by softmax, LSH and linear attention: bits/dim
// and images a second.
#include <algorithm>
#include <cmath>
#include <cstdio>
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
#include "linnet/cli/image_lab.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"

namespace linnet::cli {
namespace {

using nlohmann::json;

struct Options : ExperimentOptions {
  ImageLabOptions lab;
};

// Images made together: as many as help. Without a state each thread reads one.
constexpr int kLinearBatch = 64;
// What measuring the paper's networks takes, whole images included: only with a budget beyond it.
constexpr double kPaperSeconds = 600;

int Threads(const ImageLabOptions& options) {
  return options.threads > 0 ? options.threads : ThreadPool::AvailableProcessors();
}

// 'linnet bench generate' of a trained model, or ("") of the paper's with random weights.
json Throughput(const ImageSetup& setup, const ImageLabOptions& options, const ImageMethod& method,
                const std::string& model, bool whole) {
  const bool linear = method.name == std::string("linear");
  std::vector<std::string> arguments = {"bench", "generate", "--precision", "f32", "--json"};
  const auto add = [&](const auto&... values) { (arguments.push_back(StrCat(values)), ...); };
  if (model.empty()) {
    add("--random", setup.dataset, "--attention", method.attention);
    if (method.attention == std::string("reformer")) {
      add("--lsh-rounds", method.rounds, "--lsh-chunk", setup.chunk);
    }
  } else {
    add(model);
  }
  add("--batch", linear ? kLinearBatch : Threads(options));
  if (!linear) add("--stateless");
  if (whole) add("--whole");
  if (options.threads > 0) add("--threads", options.threads);
  const json records = RunVerbJson(setup.table, arguments);
  for (const json& record : records) {
    if (record.at("name") != "generate") continue;
    json result = {{"method", method.name},
                   {"images_per_second", record.at("images_per_second")},
                   {"batch", record.at("batch")},
                   {"threads", record.at("threads")},
                   {"isa", record.at("isa")}};
    if (whole) {
      result["seconds"] = record.at("value").get<double>() / 1e3;
      result["whole_seconds"] = record.at("whole_ms_per_image").get<double>() / 1e3;
    }
    return result;
  }
  throw RuntimeError(setup.table, ": 'linnet bench generate' wrote no record; nothing is written");
}

json Measure(const ImageSetup& setup, const Options& options) {
  ImageLab lab(setup.table, setup, options.lab);
  json all = {{"machine", MachineName()}, {"date", Today()}, {"runs", lab.Train()}};
  all.update(lab.Settings());
  all["command"] = StrCat("linnet reproduce ", setup.table, lab.CommandFlags());
  all["threads"] = Threads(options.lab);
  all["throughput"] = json::array(), all["paper_throughput"] = json::array();
  for (const ImageMethod& method : kImageMethods) {
    std::cerr << "timing images of " << method.label << "\n";
    all["throughput"].push_back(
        Throughput(setup, options.lab, method, lab.ModelOf(method), /*whole=*/false));
  }
  if (lab.SecondsLeft() > kPaperSeconds && all.at("scale") != "tiny") {
    for (const ImageMethod& method : kImageMethods) {
      std::cerr << "timing images of " << method.label << ", the paper's network\n";
      // The estimate of what takes days is checked where it takes a minute.
      const bool whole = !setup.equal_time && method.name == std::string("softmax");
      all["paper_throughput"].push_back(Throughput(setup, options.lab, method, "", whole));
    }
  }
  return all;
}

const json* Find(const json& records, const ImageMethod& method) {
  for (const json& record : records) {
    if (record.at("method") == method.name) return &record;
  }
  return nullptr;
}

plot::Figure DrawTable(const ImageSetup& setup, const json& all) {
  plot::Plot ours{.title = "here", .x = {"images a second", /*log=*/true}, .y = {"bits/dim"}};
  plot::Plot paper{
      .title = "the paper, on its GPU", .x = {"images a second", /*log=*/true}, .y = {"bits/dim"}};
  for (size_t m = 0; m < kImageMethods.size(); ++m) {
    plot::Series series = MethodSeries(kImageMethods[m].label, plot::Style::kPoints);
    plot::Series theirs = series;
    theirs.x = {setup.paper_images[m]}, theirs.y = {setup.paper_bits[m]};
    paper.series.push_back(theirs);
    const json* run = Find(all.at("runs"), kImageMethods[m]);
    const json* speed = Find(all.at("throughput"), kImageMethods[m]);
    if (run == nullptr || speed == nullptr) continue;
    series.x = {Positive(*speed, "images_per_second")};
    series.y = {Positive(*run, "bits_per_dim")};
    ours.series.push_back(series);
  }
  return {.title = StrCat(setup.title, ": how well, and how fast"),
          .subtitle = "better is lower, faster is further right",
          .panels = {ours, paper}};
}

// Four digits, as the paper's tables have them of bits.
std::string Bits(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", value);
  return text;
}

// Where all were to take the same time: what they took. Neighbours come and go.
std::string TimesTaken(const json& all) {
  if (!all.at("equal_time").get<bool>()) return "";
  std::string seconds;
  for (const ImageMethod& method : kImageMethods) {
    const json* run = Find(all.at("runs"), method);
    if (run == nullptr || !run->contains("training_seconds")) return "";  // an earlier record
    seconds += StrCat(seconds.empty() ? "" : ", ", method.label, " ",
                      Digits(Positive(*run, "training_seconds")), " s");
  }
  return "\n" + Wrapped(StrCat(
                    "The trainings were given the same time by that; they took: ", seconds, "."));
}

std::string Page(const ImageSetup& setup, const json& all) {
  const bool paper_speed = !all.at("paper_throughput").empty();
  const json& first = all.at("throughput").at(0);
  std::string page = StrCat(
      "# Table ", setup.equal_time ? 2 : 1, ": ", setup.title, "\n\n```\n",
      CommandOf(setup.table, all), "\n```\n\n",
      Wrapped(StrCat(all.at("machine").get<std::string>(), ", ", all.at("threads").get<int>(),
                     all.at("threads") == 1 ? " thread, " : " threads, ",
                     first.at("isa").get<std::string>(), ", ", all.at("date").get<std::string>(),
                     ". Trained here: ", DescribeScale(setup, all), " ",
                     "Bits/dim are of the first ", Digits(all.at("test_images").get<long>()),
                     " test images, by `linnet eval`. The paper trained its ", setup.layers,
                     setup.equal_time ? " layers of 8 heads of 32 for a week on a GPU"
                                      : " layers of 8 heads of 32 for 250 epochs",
                     ": what compares is the order and the factors, not the bits.")),
      "\n| | bits/dim | against softmax | updates | epochs | ms an update | images/s | times "
      "softmax's | ",
      paper_speed ? "paper's size: images/s | times softmax's | " : "",
      "paper: bits/dim | images/s | times softmax's |\n|---|---|---|---|---|---|---|---|",
      paper_speed ? "---|---|" : "", "---|---|---|\n");
  const json* softmax_run = Find(all.at("runs"), kImageMethods[0]);
  const json* softmax_speed = Find(all.at("throughput"), kImageMethods[0]);
  const json* softmax_paper = Find(all.at("paper_throughput"), kImageMethods[0]);
  if (softmax_run == nullptr || softmax_speed == nullptr)
    throw InputError("it holds no run of softmax");
  for (size_t m = 0; m < kImageMethods.size(); ++m) {
    const ImageMethod& method = kImageMethods[m];
    const json *run = Find(all.at("runs"), method), *speed = Find(all.at("throughput"), method);
    if (run == nullptr || speed == nullptr) continue;
    const double bits = Positive(*run, "bits_per_dim");
    const double more = 100 * (bits / Positive(*softmax_run, "bits_per_dim") - 1);
    char against[32];
    std::snprintf(against, sizeof(against), "%+.1f%%", std::abs(more) < 0.05 ? 0 : more);
    const double images = speed->at("images_per_second");
    page +=
        StrCat("| ", method.label, " | ", Bits(bits), " | ", m == 0 ? "–" : against, " | ",
               Digits(run->at("steps").get<long>()), " | ", Digits(run->at("epochs").get<double>()),
               " | ", Digits(1e3 * Positive(*run, "seconds_an_update")), " | ", Digits(images),
               " | ", Digits(images / softmax_speed->at("images_per_second").get<double>()), " | ");
    if (paper_speed) {
      const json* at_size = Find(all.at("paper_throughput"), method);
      if (at_size == nullptr || softmax_paper == nullptr) {
        page += "– | – | ";
      } else {
        const double rate = at_size->at("images_per_second");
        page += StrCat(Digits(rate), " | ",
                       Digits(rate / softmax_paper->at("images_per_second").get<double>()), " | ");
      }
    }
    page += StrCat(Bits(setup.paper_bits[m]), " | ", setup.paper_images[m], " | ",
                   Digits(setup.paper_images[m] / setup.paper_images[0]), " |\n");
  }
  page += "\n" + PictureTag(setup.table, "Bits per dimension against images a second") + "\n";
  page += Wrapped(StrCat(
      "Images a second are of the engine in f32 (`linnet bench generate`), with weights as "
      "trained",
      paper_speed ? " and, for the paper's size, random ones; " : "; ", "linear: ", kLinearBatch,
      " images together, sampling included. Softmax and LSH read everything again for each byte, "
      "as in the paper, an image on each thread; their time is integrated over nine lengths, "
      "without sampling. Softmax "
      "that "
      "keeps keys and values is in table 4."));
  for (const json& record : all.at("paper_throughput")) {
    if (!record.contains("whole_seconds")) continue;
    page +=
        "\n" + Wrapped(StrCat("That sum, checked on a whole image of the paper's size: ",
                              Digits(record.at("seconds").get<double>()), " s by nine lengths, ",
                              Digits(record.at("whole_seconds").get<double>()),
                              " s in full, every byte."));
  }
  page +=
      "\n" +
      Wrapped(StrCat(
          "LSH sorts the whole sequence into chunks, so which keys a byte sees depends a little "
          "on the bytes behind it; while an image is drawn these are not there yet. Its bits/dim "
          "are of whole images. ",
          "Milliseconds of an update were timed before the trainings, one method behind the "
          "other."));
  return page + TimesTaken(all) + "\nThe command wrote this page.\n";
}

void Run(const ImageSetup& setup, const Options& options) {
  Results results(setup.table, options.out, {setup.table});
  const json all = Obtain(
      setup.table, options, "", [&] { return Measure(setup, options); },
      [&](const json& record) {
        Page(setup, record);
        DrawTable(setup, record);
      });
  results.Write(all.dump(1) + "\n", Page(setup, all), {DrawTable(setup, all)});
  results.Print(options.json);
}

void Add(CLI::App& verb, const ImageSetup& setup) {
  auto options = std::make_shared<Options>();
  AddImageLabOptions(verb, setup, options->lab);
  AddExperimentOptions(verb, setup.table, *options);
  verb.callback([options, &setup, &verb] {
    CheckFrom(verb);
    Run(setup, *options);
  });
}

}  // namespace

const Experiment kTable1 = {
    "table1", "MNIST byte by byte: bits/dim and images a second of four attentions (section 4.2.1)",
    "Trains softmax, LSH-1, LSH-4 and linear attention with equal updates, measures bits/dim on "
    "test\n"
    "images, and times how fast each makes new ones. Stopped, it goes on where it was.",
    "  linnet reproduce table1 --out docs/results\n"
    "  linnet reproduce table1 --scale small --budget 10m\n"
    "  linnet reproduce table1 --scale paper --budget 12h --work runs/table1-paper\n",
    [](CLI::App& verb) { Add(verb, MnistSetup()); }};

const Experiment kTable2 = {
    "table2",
    "CIFAR-10 byte by byte: bits/dim and images a second of four attentions (section 4.2.2)",
    "Trains softmax, LSH-1, LSH-4 and linear attention for the same time each, measures bits/dim "
    "on\n"
    "test images, and times how fast each makes new ones. Stopped, it goes on where it was.",
    "  linnet reproduce table2 --out docs/results\n"
    "  linnet reproduce table2 --scale small --budget 30m\n",
    [](CLI::App& verb) { Add(verb, CifarSetup()); }};

}  // namespace linnet::cli
