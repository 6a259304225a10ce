// linnet reproduce table1, table2: byte-wise image models (§4.2) with softmax, LSH and linear
// attention: bits/dim and images per second. figure5: the training curves of these tables and of
// table 3.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "experiments/experiment.h"
#include "experiments/figures.h"
#include "experiments/image_lab.h"
#include "experiments/page.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/machine.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"

namespace linnet::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Batch size of generation, large enough for full speed. Without a state each thread makes one
// image.
constexpr int kLinearBatch = 64;
// The paper's networks are measured, whole images included, only if this much of the budget is
// left.
constexpr double kPaperSeconds = 600;

const json* Find(const json& records, const ImageMethod& method) {
  return FindRecord(records, "method", method.name);
}

class ImageTable : public Experiment {
 public:
  explicit ImageTable(const ImageSetup& setup) : setup_(setup) {}

  void AddOptions(CLI::App& verb) override { options_.Add(verb, setup_); }
  std::string Page(const std::string&) const override { return "images"; }
  std::vector<std::string> Pictures() const override { return {setup_.table}; }

  json Measure(const Lab& lab) override {
    ImageLab images(lab, setup_, options_);
    json record = {{"machine", cli::MachineName()},
                   {"date", cli::Today()},
                   {"runs", images.Train()},
                   {"command", StrCat("linnet reproduce ", setup_.table, images.CommandOptions())},
                   {"threads", Threads()},
                   {"throughput", json::array()},
                   {"paper_throughput", json::array()}};
    record.update(images.Settings());
    for (const ImageMethod& method : kImageMethods) {
      std::cerr << "timing images of " << method.label << "\n";
      record["throughput"].push_back(
          Throughput(lab, method, images.ModelOf(method), /*whole=*/false));
    }
    if (images.SecondsLeft() > kPaperSeconds && record.at("scale") != "tiny") {
      for (const ImageMethod& method : kImageMethods) {
        std::cerr << "timing images of " << method.label << ", the paper's network\n";
        // MNIST's softmax: also times a whole image, to verify the estimate where that takes a
        // minute only.
        const bool whole = !setup_.equal_time && &method == &kSoftmaxImages;
        record["paper_throughput"].push_back(Throughput(lab, method, "", whole));
      }
    }
    return record;
  }

  Drawing Draw(const json& record) const override {
    const json &runs = record.at("runs"), &speeds = record.at("throughput"),
               &paper_speeds = record.at("paper_throughput");
    const json *softmax = Find(runs, kSoftmaxImages), *softmax_speed = Find(speeds, kSoftmaxImages);
    if (softmax == nullptr || softmax_speed == nullptr) throw InputError("holds no run of softmax");
    plot::Plot ours{.title = "here", .x = {"images a second", /*log=*/true}, .y = {"bits/dim"}};
    plot::Plot paper{.title = "the paper, on its GPU",
                     .x = {"images a second", /*log=*/true},
                     .y = {"bits/dim"}};
    json rows = json::array(), times = json::array();
    for (size_t m = 0; m < kImageMethods.size(); ++m) {
      const ImageMethod& method = kImageMethods[m];
      plot::Series series = MethodSeries(method.label, plot::Style::kPoints);
      series.x = {setup_.paper_images[m]}, series.y = {setup_.paper_bits[m]};
      paper.series.push_back(series);
      const json *run = Find(runs, method), *speed = Find(speeds, method);
      if (run == nullptr || speed == nullptr) continue;
      const double bits = Positive(*run, "bits_per_dim"),
                   rate = Positive(*speed, "images_per_second");
      series.x = {rate}, series.y = {bits};
      ours.series.push_back(series);
      json row = *run;
      row.update({{"label", method.label},
                  {"against", m == 0 ? "–" : Difference(bits / Positive(*softmax, "bits_per_dim"))},
                  {"rate", rate},
                  {"factor", rate / Positive(*softmax_speed, "images_per_second")},
                  {"paper_bits", setup_.paper_bits[m]},
                  {"paper_images", setup_.paper_images[m]},
                  {"paper_factor", setup_.paper_images[m] / setup_.paper_images[0]}});
      const json *sized = Find(paper_speeds, method),
                 *softmax_sized = Find(paper_speeds, kSoftmaxImages);
      const bool both = sized != nullptr && softmax_sized != nullptr;
      row["sized_rate"] = both ? sized->at("images_per_second") : json();
      row["sized_factor"] = both ? json(Positive(*sized, "images_per_second") /
                                        Positive(*softmax_sized, "images_per_second"))
                                 : json();
      if (run->contains("training_seconds")) {
        times.push_back({{"before", times.empty() ? "" : ", "},
                         {"label", method.label},
                         {"seconds", Positive(*run, "training_seconds")}});
      }
      rows.push_back(row);
    }
    json whole = json::array();
    for (const json& speed : paper_speeds) {
      if (speed.contains("whole_seconds")) whole.push_back(speed);
    }
    return {
        .values =
            {{"number", setup_.equal_time ? 2 : 1},
             {"title", setup_.title},
             {"name", setup_.table},
             {"isa", speeds.at(0).at("isa")},
             {"trainings", DescribeTrainings(setup_, record)},
             {"layers", setup_.layers},
             {"week", setup_.equal_time},
             {"rows", rows},
             {"paper_size", !paper_speeds.empty()},
             {"linear_batch", kLinearBatch},
             {"whole", whole},
             // For trainings of equal planned time: the actual times, which vary with other load.
             {"taken", record.at("equal_time").get<bool>() && times.size() == rows.size()},
             {"times", times}},
        .figures = {{setup_.table,
                     {.title = StrCat(setup_.title, ": how well, and how fast"),
                      .subtitle = "better is lower, faster is further right",
                      .panels = {ours, paper}}}}};
  }

 private:
  int Threads() const {
    return options_.threads > 0 ? options_.threads : ThreadPool::AvailableProcessors();
  }

  static std::string Difference(double factor) {
    const double percent = 100 * (factor - 1);
    char text[32];
    std::snprintf(text, sizeof(text), "%+.1f%%", std::abs(percent) < 0.05 ? 0 : percent);
    return text;
  }

  // Runs 'linnet bench generate' on a trained model, or ("") on the paper's with random weights.
  json Throughput(const Lab& lab, const ImageMethod& method, const std::string& model,
                  bool whole) const {
    const bool linear = &method == &kLinearImages;
    std::vector<std::string> bench = {"bench", "generate", "--precision", "f32", "--json"};
    if (model.empty()) {
      Append(bench, "--random", setup_.dataset, "--attention", method.attention);
      if (method.attention == std::string("reformer")) {
        Append(bench, "--lsh-rounds", method.rounds, "--lsh-chunk", setup_.chunk);
      }
    } else {
      Append(bench, model);
    }
    Append(bench, "--batch", linear ? kLinearBatch : Threads());
    if (!linear) Append(bench, "--stateless");
    if (whole) Append(bench, "--whole");
    if (options_.threads > 0) Append(bench, "--threads", options_.threads);
    const json records = lab.Measure(StrCat(method.name, model.empty() ? "-paper" : ""), bench);
    const json* record = FindRecord(records, "name", "generate");
    if (record == nullptr) {
      throw RuntimeError(setup_.table,
                         ": 'linnet bench generate' wrote no record; nothing is written");
    }
    json result = {{"method", method.name}};
    for (const char* field : {"images_per_second", "batch", "threads", "isa"})
      result[field] = record->at(field);
    if (whole) {
      result["seconds"] = record->at("value").get<double>() / 1e3;
      result["whole_seconds"] = record->at("whole_ms_per_image").get<double>() / 1e3;
    }
    return result;
  }

  const ImageSetup& setup_;
  ImageOptions options_;
};
struct Table1 : ImageTable {
  Table1() : ImageTable(MnistSetup()) {}
};
struct Table2 : ImageTable {
  Table2() : ImageTable(CifarSetup()) {}
};

class Figure5 : public Experiment {
 public:
  void AddOptions(CLI::App& verb) override {
    cli::AddOption(&verb, "--tables", tables_, "DIR",
                   "The folder of table1.json, table2.json and table3.json (default: --out)");
  }
  std::string Work(const std::string&) const override { return ""; }
  std::vector<std::string> Pictures() const override {
    return {"figure5-mnist", "figure5-cifar10", "figure5-speech"};
  }

  json Measure(const Lab& lab) override {
    const fs::path folder = tables_.empty() ? lab.folder() : fs::path(tables_);
    json record;
    for (const char* name : {"table1", "table2", "table3"}) {
      const fs::path path = folder / StrCat(name, ".json");
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      record[name] = ReadRecord(path);
      try {
        Draw({{name, record[name]}});
      } catch (const json::exception&) {
        throw InputError(path.string(), ": lacks a field, or has one of another type");
      }
    }
    if (record.is_null()) {
      throw InputError(folder.string(),
                       ": holds none of table1.json, table2.json and table3.json, whose trainings "
                       "figure5 draws; run 'linnet reproduce table1 --out DIR' first");
    }
    return record;
  }

  Drawing Draw(const json& record) const override {
    Drawing drawing{.values = {{"images", json::array()}}};
    for (const ImageSetup* setup : {&MnistSetup(), &CifarSetup()}) {
      const json table = record.value(setup->table, json());
      if (!table.is_null()) DrawImages(*setup, table, drawing);
    }
    const json speech = record.value("table3", json());
    if (!speech.is_null()) {
      drawing.values["speech"] = {{"machine", speech.at("machine")}, {"date", speech.at("date")}};
      drawing.figures.emplace_back("figure5-speech", DrawSpeech(speech));
    }
    return drawing;
  }

 private:
  static void DrawImages(const ImageSetup& setup, const json& table, Drawing& drawing) {
    const json* softmax = Find(table.at("runs"), kSoftmaxImages);
    std::vector<Curve> curves;
    json rows = json::array();
    for (const ImageMethod& method : kImageMethods) {
      const json* run = Find(table.at("runs"), method);
      if (run == nullptr) continue;
      const double each = Positive(*run, "seconds_an_update");
      Curve& curve = curves.emplace_back(Curve{.label = method.label});
      for (const json& point : run->at("curve")) {
        curve.step.push_back(point.at(0));
        curve.minutes.push_back(curve.step.back() * each / 60);
        curve.value.push_back(point.at(1));
      }
      rows.push_back(
          {{"label", method.label},
           {"seconds", each},
           {"epochs", 3600 / each * setup.batch / setup.train_images},
           {"factor", softmax ? json(Positive(*softmax, "seconds_an_update") / each) : json()}});
    }
    const std::string name = StrCat("figure5-", setup.dataset);
    drawing.values["images"].push_back({{"title", setup.title},
                                        {"table", setup.table},
                                        {"name", name},
                                        {"machine", table.at("machine").get<std::string>()},
                                        {"date", table.at("date").get<std::string>()},
                                        {"trainings", DescribeTrainings(setup, table)},
                                        {"validation_images", table.at("validation_images")},
                                        {"rows", rows}});
    const std::string subtitle =
        StrCat(table.at("equal_time").get<bool>() ? "equal time" : "equal updates", ", ",
               table.at("scale").get<std::string>(), " scale");
    drawing.figures.emplace_back(name,
                                 DrawCurves(StrCat(setup.title, " as training goes on"), subtitle,
                                            {"bits/dim of test images"}, curves, /*log_x=*/true));
  }

  static plot::Figure DrawSpeech(const json& table) {
    std::vector<Curve> curves;
    for (const auto& [method, label] : {std::pair{"full", "softmax"},
                                        {"reformer", "LSH-4"},
                                        {"linear", "linear"},
                                        {"lstm", "Bi-LSTM"}}) {
      const json* run = FindRecord(table.at("runs"), "method", method);  // the first seed
      if (run == nullptr) continue;
      Curve& curve = curves.emplace_back(Curve{.label = label});
      for (const json& point : run->at("curve")) {
        curve.step.push_back(point.at(0));
        curve.minutes.push_back(point.at(1).get<double>() / 60);
        curve.value.push_back(100 * point.at(2).get<double>());
      }
    }
    return DrawCurves("Speech as training goes on", "AN4, equal time, the first seed of each",
                      {"validation PER, %", /*log=*/true}, curves);
  }

  std::string tables_;
};

}  // namespace

const Row kTable1 = {
    "table1", "MNIST byte by byte: bits/dim and images a second of four attentions (section 4.2.1)",
    "Trains softmax, LSH-1, LSH-4 and linear attention with equal updates, measures bits/dim on "
    "test\n"
    "images, and times how fast each makes new ones. Stopped, it goes on where it was.",
    "  linnet reproduce table1 --out docs/results\n"
    "  linnet reproduce table1 --scale small --budget 10m\n"
    "  linnet reproduce table1 --scale paper --budget 12h --work runs/table1-paper\n",
    Make<Table1>};

const Row kTable2 = {
    "table2",
    "CIFAR-10 byte by byte: bits/dim and images a second of four attentions (section 4.2.2)",
    "Trains softmax, LSH-1, LSH-4 and linear attention for the same time each, measures bits/dim "
    "on\n"
    "test images, and times how fast each makes new ones. Stopped, it goes on where it was.",
    "  linnet reproduce table2 --out docs/results\n"
    "  linnet reproduce table2 --scale small --budget 30m\n",
    Make<Table2>};

const Row kFigure5 = {"figure5", "How trainings go on, against updates and time (appendix B)",
                      "Draws the records of table1, table2 and table3, of those that are "
                      "there, and how many epochs an\n"
                      "hour each method makes; trains nothing.",
                      "  linnet reproduce table1 --out docs/results\n"
                      "  linnet reproduce figure5 --tables docs/results --out docs/results\n",
                      Make<Figure5>};

}  // namespace linnet::experiments
