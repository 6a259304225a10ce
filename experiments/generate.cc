// linnet reproduce table4, table5: speed of image generation (appendix C). Table 4: many images at
// once, softmax with a state too, and memory per image. Table 5: the time of one image, and of a
// token as the image grows.
#include <algorithm>
#include <iostream>

#include "experiments/experiment.h"
#include "experiments/figures.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/machine.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"

namespace linnet::experiments {
namespace {

using nlohmann::json;

constexpr size_t kDatasets = 2;
struct Dataset {
  const char *name, *title;
  int bytes;  // per image
  int chunk;  // of hashing, as in the paper
};
constexpr Dataset kSets[kDatasets] = {{"mnist", "MNIST", 784, 29},
                                      {"cifar10", "CIFAR-10", 3072, 37}};

struct Method {
  const char *label, *name, *attention;
  int rounds;  // of hashing; 0: no hashing
  bool stateless;
  int batch[kDatasets];          // in table 4; 0: one image per thread
  double paper_rate[kDatasets];  // images per second on the paper's GPU
  double paper_cpu[kDatasets];   // seconds per image
  double paper_gpu[kDatasets];
};
constexpr Method kMethods[] = {
    {"softmax", "softmax", "full", 0, true, {0, 0}, {0.45, 0.004}, {72.6, 8651.4}, {10.2, 300.1}},
    {"stateful softmax",
     "stateful",
     "full",
     0,
     false,
     {16, 4},
     {7.56, 0.32},
     {7.4, 71.9},
     {10.4, 70.4}},
    {"LSH-1", "lsh-1", "reformer", 1, true, {0, 0}, {0.68, 0.015}, {46.0, 2318.9}, {19.2, 221.6}},
    {"LSH-4", "lsh-4", "reformer", 4, true, {0, 0}, {0.27, 0.005}, {112.0, 5263.7}, {55.8, 683.9}},
    {"linear",
     "linear",
     "causal-linear",
     0,
     false,
     {64, 32},
     {142.8, 17.85},
     {5.5, 45.1},
     {7.3, 61.3}},
};
constexpr const Method& kSoftmax = kMethods[0];
constexpr const Method& kLinear = kMethods[4];

// A field within a range. Throws InputError or a nlohmann exception otherwise.
double Number(const json& record, const char* field, double least, double most) {
  const double value = record.at(field);
  if (!(value >= least && value <= most)) {
    throw InputError("'", field, "' must be between ", least, " and ", most);
  }
  return value;
}

// Shared by both tables: runs 'linnet bench generate' for every method and data set.
class GenerateTable : public Experiment {
 public:
  void AddOptions(CLI::App& verb) override {
    cli::AddOption(&verb, "--precision", precision_, "NAME", "f32, bf16 or int8; LSH runs in f32",
                   CLI::IsMember({"f32", "bf16", "int8"}));
    cli::AddThreadsOption(&verb, threads_);
    verb.add_option("--dataset", datasets_, "mnist, cifar10 or both (default: both)")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("NAMES")
        ->check(CLI::IsMember({"mnist", "cifar10"}));
  }

 protected:
  virtual int Batch(const Method& method, size_t dataset) const = 0;

  json MeasureRecords(const Lab& lab) const {
    json records = json::array();
    for (size_t d = 0; d < kDatasets; ++d) {
      if (std::find(datasets_.begin(), datasets_.end(), kSets[d].name) == datasets_.end()) continue;
      for (const Method& method : kMethods) {
        std::cerr << "timing " << method.label << ", " << kSets[d].title << "\n";
        std::vector<std::string> bench = {"bench", "generate", "--json"};
        // Reformer runs in f32: rounded queries would fall into other buckets than in the check.
        Append(bench, "--random", kSets[d].name, "--attention", method.attention, "--precision",
               method.rounds > 0 ? "f32" : precision_, "--batch", Batch(method, d));
        if (method.rounds > 0)
          Append(bench, "--lsh-rounds", method.rounds, "--lsh-chunk", kSets[d].chunk);
        if (method.stateless) Append(bench, "--stateless");
        if (threads_ > 0) Append(bench, "--threads", threads_);
        for (json& record : lab.Measure(StrCat(kSets[d].name, "-", method.name), bench)) {
          if (record.at("name") != "generate") continue;
          record["method"] = method.name, record["dataset"] = kSets[d].name;
          records.push_back(std::move(record));
        }
      }
    }
    return records;
  }

  int threads() const { return threads_ > 0 ? threads_ : ThreadPool::AvailableProcessors(); }
  const std::string& precision() const { return precision_; }

 private:
  std::vector<std::string> datasets_ = {"mnist", "cifar10"};
  std::string precision_ = "f32";
  int threads_ = 0;
};

class Table4 : public GenerateTable {
 public:
  std::vector<std::string> Pictures() const override { return {"table4"}; }

  json Measure(const Lab& lab) override {
    return {{"machine", cli::MachineName()},
            {"date", cli::Today()},
            {"precision", precision()},
            {"records", MeasureRecords(lab)}};
  }

  Drawing Draw(const json& record) const override {
    plot::Plot panel{.x = {"bytes of an image", /*log=*/true},
                     .y = {"images a second", /*log=*/true}};
    for (const Method& method : kMethods) {
      plot::Series ours = MethodSeries(method.label, plot::Style::kLineAndPoints);
      plot::Series paper = ours;
      paper.style = plot::Style::kPoints, paper.label = "", paper.faint = true;
      for (size_t d = 0; d < kDatasets; ++d) {
        paper.x.push_back(kSets[d].bytes), paper.y.push_back(method.paper_rate[d]);
        const json* run = Find(record, method, d);
        if (run == nullptr) continue;
        ours.x.push_back(kSets[d].bytes), ours.y.push_back(run->at("images_per_second"));
      }
      if (!ours.x.empty()) panel.series.push_back(ours);
      panel.series.push_back(paper);
    }
    const json& first = record.at("records").at(0);
    return {.values = {{"sets", Sets(record)},
                       {"threads", first.at("threads")},
                       {"isa", first.at("isa")},
                       {"narrow", record.at("precision") != "f32"}},
            .figures = {{"table4",
                         {.title = "Images a second, the paper's networks",
                          .subtitle = "with a line: here; pale and alone: the paper, on its GPU",
                          .panels = {panel}}}}};
  }

 private:
  int Batch(const Method& method, size_t dataset) const override {
    return method.batch[dataset] > 0 ? method.batch[dataset] : threads();
  }
  static const json* Find(const json& record, const Method& method, size_t dataset) {
    for (const json& run : record.at("records")) {
      if (run.at("method") == method.name && run.at("dataset") == kSets[dataset].name) return &run;
    }
    return nullptr;
  }
  static json Sets(const json& record) {
    json sets = json::array();
    for (size_t d = 0; d < kDatasets; ++d) {
      const json* softmax = Find(record, kSoftmax, d);
      if (softmax == nullptr) continue;
      json rows = json::array();
      for (const Method& method : kMethods) {
        const json* run = Find(record, method, d);
        if (run == nullptr) continue;
        const double rate = run->at("images_per_second"), batch = run->at("batch");
        const double state = run->at("state_bytes"), bytes = run->at("N");
        json row = {{"label", method.label},
                    {"batch", run->at("batch")},
                    {"rate", rate},
                    {"factor", rate / softmax->at("images_per_second").get<double>()},
                    {"memory", run->at("memory_last_bytes").get<double>() / batch},
                    {"paper", method.paper_rate[d]},
                    {"paper_factor", method.paper_rate[d] / kSoftmax.paper_rate[d]}};
        // The cache is allocated for all positions at once and filled position by position.
        const bool cache = &method == &kMethods[1];
        row["state_first"] = method.stateless ? json() : json(cache ? state / (bytes - 1) : state);
        row["state_last"] = method.stateless ? json() : json(state);
        rows.push_back(row);
      }
      sets.push_back({{"title", kSets[d].title}, {"rows", rows}});
    }
    return sets;
  }
};

// The fields of a 'linnet bench generate' record that table 5 needs.
struct Measured {
  const Method* method = nullptr;
  size_t dataset = 0;
  double seconds = 0, ratio = 0, state_bytes = 0;
  std::vector<double> at = {}, microseconds = {};  // of a token after `at` others
};

class Table5 : public GenerateTable {
 public:
  std::vector<std::string> Pictures() const override { return {"table5"}; }

  json Measure(const Lab& lab) override { return {{"records", MeasureRecords(lab)}}; }

  Drawing Draw(const json& record) const override {
    std::vector<Measured> all;
    json origin;
    for (const json& run : record.at("records")) {
      all.push_back(Read(run, all));
      // LSH always runs in f32.
      const bool any = all.back().method->rounds > 0 && !origin.is_null();
      json of = {{"machine", run.at("machine")},
                 {"isa", run.at("isa")},
                 {"precision", any ? origin.at("precision") : run.at("precision")},
                 {"threads", Number(run, "threads", 1, 4096)}};
      if (!origin.is_null() && of != origin) {
        throw InputError("records of different machines, precisions or threads");
      }
      origin = of;
    }
    if (all.empty()) throw InputError("holds no measurement");
    json values = origin;
    values["threads"] = static_cast<int>(origin.at("threads").get<double>());
    values["date"] = record.at("records").back().at("date");
    for (const char* text : {"machine", "isa", "precision", "date"})
      values.at(text).get<std::string>();
    values["narrow"] = origin.at("precision") != "f32";
    values["sets"] = json::array();
    plot::Figure figure{.title = "The cost of the next token",
                        .subtitle = StrCat("the paper's models, batch 1, ",
                                           origin.at("precision").get<std::string>(), ", ",
                                           origin.at("threads").get<double>(), " threads")};
    for (size_t d = 0; d < kDatasets; ++d) {
      if (std::none_of(all.begin(), all.end(), [&](const Measured& m) { return m.dataset == d; }))
        continue;
      plot::Plot panel{
          .title = kSets[d].title, .x = {"tokens before it"}, .y = {"microseconds", /*log=*/true}};
      for (const Method& method : kMethods) {
        const Measured* measured = Find(all, method, d);
        if (measured == nullptr) continue;
        plot::Series series = MethodSeries(method.label, plot::Style::kLineAndPoints);
        series.x = measured->at, series.y = measured->microseconds;
        panel.series.push_back(std::move(series));
      }
      figure.panels.push_back(panel);
      values["sets"].push_back({{"title", kSets[d].title}, {"rows", Rows(all, d)}});
    }
    return {.values = values, .figures = {{"table5", figure}}};
  }

 private:
  int Batch(const Method&, size_t) const override { return 1; }

  static const Measured* Find(const std::vector<Measured>& all, const Method& method,
                              size_t dataset) {
    for (const Measured& measured : all) {
      if (measured.method == &method && measured.dataset == dataset) return &measured;
    }
    return nullptr;
  }

  static Measured Read(const json& run, const std::vector<Measured>& earlier) {
    Measured measured{.dataset = kDatasets};
    const std::string model = run.at("model");
    for (size_t d = 0; d < kDatasets; ++d) {
      if (model.starts_with(StrCat(kSets[d].name, " "))) measured.dataset = d;
    }
    for (const Method& method : kMethods) {
      if (run.at("attention") == method.attention && run.at("stateless") == method.stateless &&
          run.value("lsh_rounds", 0) == method.rounds) {
        measured.method = &method;
      }
    }
    if (measured.method == nullptr || measured.dataset == kDatasets ||
        !run.at("checked").get<bool>() || run.at("batch") != 1) {
      throw InputError("a record that is not of this table");
    }
    if (Find(earlier, *measured.method, measured.dataset) != nullptr) {
      throw InputError("two records of ", measured.method->label, ", ",
                       kSets[measured.dataset].title);
    }
    measured.seconds = Number(run, "value", 1e-9, 1e15) / 1e3,
    measured.ratio = Number(run, "ratio", 0, 1e9);
    measured.state_bytes = Number(run, "state_bytes", 0, 1e15);
    const double length = Number(run, "N", 2, 1e9) - 1;
    const bool stateless = measured.method->stateless;
    const char* const times = stateless ? "us_at_lengths" : "us_by_eighths";
    for (const json& value : run.at(times)) {
      const size_t i = measured.at.size();
      measured.microseconds.push_back(Number({{times, value}}, times, 1e-9, 1e15));
      measured.at.push_back(stateless
                                ? Number({{"lengths", run.at("lengths").at(i)}}, "lengths", 1, 1e9)
                                : length * (static_cast<double>(i) + 0.5) / 8);
    }
    if (measured.at.empty()) throw InputError("no times of tokens");
    return measured;
  }

  static json Rows(const std::vector<Measured>& all, size_t d) {
    const Measured* linear = Find(all, kLinear, d);
    json rows = json::array();
    for (const Method& method : kMethods) {
      json row = {{"label", method.label},
                  {"paper", method.paper_cpu[d]},
                  {"paper_factor", method.paper_cpu[d] / kLinear.paper_cpu[d]},
                  {"paper_gpu", method.paper_gpu[d]}};
      for (const char* field : {"seconds", "factor", "growth", "ratio", "state"})
        row[field] = nullptr;
      if (const Measured* m = Find(all, method, d)) {
        row["seconds"] = m->seconds, row["ratio"] = m->ratio;
        if (linear != nullptr) row["factor"] = m->seconds / linear->seconds;
        if (!method.stateless) {
          row["growth"] = m->microseconds.back() / m->microseconds.front();
          row["state"] = m->state_bytes;
        }
      }
      rows.push_back(row);
    }
    return rows;
  }
};

}  // namespace

const Row kTable4 = {
    "table4", "Images a second and memory, with a state for softmax too (appendix C.1)",
    "Runs 'linnet bench generate' for softmax, stateful softmax, LSH-1, LSH-4 and linear "
    "attention,\n"
    "with the paper's networks for MNIST and CIFAR-10; some ten minutes. Stopped, it goes on where "
    "it was.",
    "  linnet reproduce table4 --out docs/results\n"
    "  linnet reproduce table4 --dataset mnist\n",
    Make<Table4>};

const Row kTable5 = {"table5", "The time of one image, and of a token as it grows (appendix C.2)",
                     "Runs 'linnet bench generate' for softmax attention without a state "
                     "and with one, LSH and linear\n"
                     "attention, with the paper's models for MNIST and CIFAR-10; some "
                     "minutes. Stopped, it goes on where it was.",
                     "  linnet reproduce table5 --out docs/results\n"
                     "  linnet reproduce table5 --dataset mnist --precision int8\n",
                     Make<Table5>};

}  // namespace linnet::experiments
