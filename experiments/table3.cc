// linnet reproduce table3: phone recognition (§4.3) with linear, softmax and Reformer attention and
// a bidirectional LSTM, trained for equal times; and the cost of a second of audio as utterances
// grow.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "experiments/experiment.h"
#include "experiments/figures.h"
#include "experiments/page.h"
#include "linnet/base/thread_pool.h"
#include "linnet/cli/machine.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"

namespace linnet::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The paper's 1e-4 suits far longer trainings.
constexpr char kRate[] = "3e-4";

struct Method {
  const char *name, *label;
  std::vector<std::string> flags;
  bool lstm;
  bool seeds;                     // trained with several seeds if asked for
  double paper_per, paper_epoch;  // WSJ validation PER in percent; seconds per epoch
};
const std::vector<Method>& Methods() {
  const auto transformer = [](const char* name) -> std::vector<std::string> {
    return {"--preset", "paper", "--lr", kRate, "--attention", name};
  };
  static const std::vector<Method> methods = {
      {"lstm", "Bi-LSTM", {"--preset", "lstm"}, true, true, 10.94, 1047},
      {"full", "softmax", transformer("full"), false, false, 5.12, 2711},
      {"reformer", "LSH-4", transformer("reformer"), false, false, 9.33, 2250},
      {"linear", "linear", transformer("linear"), false, true, 8.08, 824},
  };
  return methods;
}

std::vector<const json*> RunsOf(const json& record, const Method& method) {
  std::vector<const json*> runs;
  for (const json& run : record.at("runs")) {
    if (run.at("method") == method.name) runs.push_back(&run);
  }
  return runs;
}

class Table3 : public Experiment {
 public:
  void AddOptions(CLI::App& verb) override {
    cli::AddOption(&verb, "--data", data_, "DIR", "AN4's folder, with etc/ and wav/");
    cli::AddOption(&verb, "--minutes", minutes_, "M", "Time for each training",
                   cli::Between(0.01, 10'000));
    cli::AddOption(&verb, "--seeds", seeds_, "N", "Trainings of linear attention and of the LSTM",
                   cli::Between(1, 20));
    cli::AddOption(&verb, "--precision", precision_, "P", "Of the transformers: fp32 or bf16",
                   CLI::IsMember({"fp32", "bf16"}));
    cli::AddThreadsOption(&verb, threads_);
    cli::AddOption(&verb, "--lengths", lengths_, "FILE",
                   "The output of 'linnet bench speech --json', in place of timing updates against "
                   "the length");
  }

  std::vector<std::string> Pictures() const override { return {"table3", "table3-length"}; }
  void Check() const override {
    if (data_.empty()) throw InputError("--data is missing: name AN4's folder");
  }
  std::string AmendOption() const override { return "--lengths"; }
  void Amend(json& record) const override {
    if (!lengths_.empty()) record["lengths"] = ReadRecord(lengths_);
  }

  json Measure(const Lab& lab) override {
    json record = {{"machine", cli::MachineName()},
                   {"date", cli::Today()},
                   {"minutes", minutes_},
                   {"precision", precision_},
                   {"threads", threads_ > 0 ? threads_ : ThreadPool::AvailableProcessors()}};
    // Checks the file before the trainings, not after them.
    Amend(record);
    if (record.contains("lengths")) Lengths(record);
    // Times all methods one right after the other, so that other load affects all of them.
    for (const Method& method : Methods()) StepsOf(lab, method);
    for (const Method& method : Methods()) {
      for (int seed = 1; seed <= (method.seeds ? seeds_ : 1); ++seed) {
        record["runs"].push_back(Train(lab, method, seed));
      }
    }
    if (!record.contains("lengths")) {
      std::cerr << "timing updates against the length of utterances\n";
      std::vector<std::string> bench = {"bench", "speech", "--precision", precision_, "--json"};
      if (threads_ > 0) Append(bench, "--threads", threads_);
      record["lengths"] = lab.Measure("lengths", bench);
    }
    return record;
  }

  Drawing Draw(const json& record) const override {
    if (record.at("runs").empty()) throw InputError("holds no run");
    return {.values = {{"rows", Rows(record)},
                       {"rate", kRate},
                       {"lengths", Lengths(record)},
                       {"first", record.at("lengths").at(0)}},
            .figures = {{"table3", DrawTrainings(record)}, {"table3-length", DrawLengths(record)}}};
  }

 private:
  std::vector<std::string> Flags(const Method& method, int seed) const {
    std::vector<std::string> flags = {"speech"};
    flags.insert(flags.end(), method.flags.begin(), method.flags.end());
    Append(flags, "--data", data_, "--seed", seed, "--precision", method.lstm ? "fp32" : precision_,
           "--checkpoint-every", 200);
    if (threads_ > 0) Append(flags, "--threads", threads_);
    return flags;
  }

  // The number of updates that fit into the minutes.
  int64_t StepsOf(const Lab& lab, const Method& method) const {
    const double each = lab.SecondsAnUpdate(method.label, method.name, Flags(method, 1));
    return std::max<int64_t>(1, std::llround(60 * minutes_ / each));
  }

  json Train(const Lab& lab, const Method& method, int seed) const {
    const int64_t steps = StepsOf(lab, method);
    const json trained = lab.Train(StrCat(method.label, ", seed ", seed),
                                   StrCat(method.name, "-", seed), Flags(method, seed), steps);
    json curve = json::array();
    double memory = 0;
    for (const json& record : trained.at("metrics")) {
      if (record.contains("validation_phone_error_rate")) {
        const double share = record.at("step").get<double>() / static_cast<double>(steps);
        curve.push_back(
            {record.at("step"), 60 * minutes_ * share, record.at("validation_phone_error_rate")});
      } else {
        memory = std::max(memory, record.value("peak_memory", 0.0));
      }
    }
    const json& info = trained.at("info");
    json result = {{"method", method.name},
                   {"seed", seed},
                   {"steps", steps},
                   {"peak_memory", memory},
                   {"curve", curve},
                   {"epochs", info.at("training").at("epochs")},
                   // The planned time: the trainings themselves may have run beside other load.
                   {"seconds", 60 * minutes_},
                   {"parameters", info.at("parameters")}};
    const std::string model = fs::path(trained.at("run").get<std::string>()) / "model.safetensors";
    for (const char* split : {"validation", "test"}) {
      // Not kept: it may name recordings that are repaired before the next call.
      const json eval = lab.Run({"eval", model, "--data", data_, "--split", split, "--json"});
      if (eval.at("left_out") != 0) {
        throw InputError(data_, ": ", eval.at("left_out").dump(), " recordings of its ", split,
                         " set cannot be read (above); repair them, and the same command goes on");
      }
      result[split] = eval.at("phone_error_rate");
      result["real_time_factor"] = eval.at("real_time_factor");
    }
    return result;
  }

  static json Rows(const json& record) {
    json rows = json::array();
    for (const Method& method : Methods()) {
      const std::vector<const json*> runs = RunsOf(record, method);
      if (runs.empty()) continue;
      json row = {{"label", method.label},
                  {"paper_per", method.paper_per},
                  {"paper_epoch", method.paper_epoch}};
      for (const char* field : {"test", "validation", "seconds", "epochs", "steps",
                                "real_time_factor", "peak_memory", "parameters"}) {
        double sum = 0, least = 1e300, most = -1e300;
        for (const json* run : runs) {
          const double value = run->at(field);
          sum += value, least = std::min(least, value), most = std::max(most, value);
        }
        row[field] = sum / static_cast<double>(runs.size());
        row[std::string(field) + "_spread"] = most - least;
      }
      if (runs.size() > 1) row["seeds"] = runs.size();
      row["epoch"] = row["seconds"].get<double>() / row["epochs"].get<double>();
      row["speed"] = 1 / row["real_time_factor"].get<double>();
      rows.push_back(row);
    }
    return rows;
  }

  static plot::Figure DrawTrainings(const json& record) {
    std::vector<Curve> curves;
    for (const Method& method : Methods()) {
      for (const json* run : RunsOf(record, method)) {
        Curve& curve = curves.emplace_back(Curve{.label = method.label});
        for (const json& point : run->at("curve")) {
          curve.step.push_back(point.at(0));
          curve.minutes.push_back(point.at(1).get<double>() / 60);
          curve.value.push_back(100 * point.at(2).get<double>());
        }
      }
    }
    return DrawCurves("Phones from speech as training goes on",
                      "AN4; a line a seed; of figure 5, the part on speech", {"validation PER, %"},
                      curves);
  }

  // A row per length with a cell per method, and the losses.
  static json Lengths(const json& record) {
    json rows = json::array(), losses = json::array(), labels = json::array();
    for (const json& one : record.at("lengths")) {
      if (FindRecord(rows, "seconds", one.at("seconds")) == nullptr) {
        rows.push_back({{"seconds", one.at("seconds")}, {"cells", json::array()}});
      }
      for (const char* field : {"value", "loss", "threads"}) one.at(field).get<double>();
    }
    for (const Method& method : Methods()) {
      labels.push_back(method.label);
      double least = 1e300, most = 0;
      for (json& row : rows) {
        json cell;
        for (const json& one : record.at("lengths")) {
          if (one.at("method") != method.name || one.at("seconds") != row["seconds"]) continue;
          cell = one.at("value");
          least = std::min<double>(least, one.at("loss")),
          most = std::max<double>(most, one.at("loss"));
        }
        row["cells"].push_back(cell);
      }
      losses.push_back(most > 0 ? StrCat(Digits(least), " to ", Digits(most)) : "–");
    }
    return {{"rows", rows}, {"losses", losses}, {"labels", labels}};
  }

  static plot::Figure DrawLengths(const json& record) {
    plot::Plot panel{.x = {"seconds of an utterance", /*log=*/true},
                     .y = {"milliseconds of training a second of sound", /*log=*/true}};
    for (const Method& method : Methods()) {
      plot::Series series = MethodSeries(method.label, plot::Style::kLineAndPoints);
      for (const json& one : record.at("lengths")) {
        if (one.at("method") != method.name) continue;
        series.x.push_back(one.at("seconds"));
        series.y.push_back(one.at("value"));
      }
      if (!series.x.empty()) panel.series.push_back(series);
    }
    return {.title = "The cost of a second of sound in training",
            .subtitle = "batches of 240 s in utterances of 8 s to 4 minutes",
            .panels = {panel}};
  }

  std::string data_, lengths_, precision_ = "fp32";
  double minutes_ = 8;
  int seeds_ = 3, threads_ = 0;
};

}  // namespace

const Row kTable3 = {
    "table3", "Phones from speech: error rates and times of four networks (section 4.3)",
    "Trains the paper's encoder with linear, softmax and Reformer attention and its LSTM on AN4, "
    "for\n"
    "eight minutes each, from several seeds (64 minutes in all, and some for timing); then times\n"
    "updates against the length of utterances. Stopped, it goes on where it was.",
    "  linnet reproduce table3 --data data/an4 --out docs/results\n"
    "  linnet reproduce table3 --data data/an4 --minutes 1 --seeds 1\n",
    Make<Table3>};

}  // namespace linnet::experiments
