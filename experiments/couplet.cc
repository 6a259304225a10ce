// linnet reproduce couplet: how well a couplet model predicts second lines, which rules of couplets
// it has learned, and samples of its lines.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "experiments/experiment.h"
#include "experiments/figures.h"
#include "linnet/base/utf8.h"
#include "linnet/cli/machine.h"
#include "linnet/cli/program.h"
#include "linnet/cli/verbs.h"
#include "linnet/tasks/couplet/couplet.h"
#include "linnet/tasks/couplet/couplets.h"

namespace linnet::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kShown = 40;       // first lines shown on the page with generated second lines
constexpr size_t kAtOnce = 200;  // lines per call of `linnet couplet`

struct Way {
  const char* name;
  std::vector<std::string> flags;
};
const std::vector<Way>& Ways() {
  static const std::vector<Way> ways = {
      {"greedy", {"--beam", "1"}},
      {"drawn", {"--draw", "--temperature", "0.7", "--top-p", "0.95", "--seed", "1"}},
      {"beam of 16", {"--beam", "16"}},
      {"greedy, without rules", {"--draw", "--free", "--temperature", "0"}},
      {"drawn, without rules",
       {"--draw", "--free", "--temperature", "0.7", "--top-p", "0.95", "--seed", "1"}},
  };
  return ways;
}

std::vector<char32_t> CharactersOf(const std::string& text) {
  std::vector<char32_t> characters;
  for (size_t at = 0; at < text.size();) {
    const auto next = NextCodePoint(text, at);
    characters.push_back(next ? next->value : 0);
    at += next ? next->bytes : 1;
  }
  return characters;
}

constexpr const char* kRules[] = {"length", "punctuation", "places", "repeats", "mirrored", "all"};

// Counts, per rule, the second lines that follow it; covers the rules that a program can check.
void Count(const std::string& first, const std::string& second, json& kept) {
  const std::vector<char32_t> a = CharactersOf(first), b = CharactersOf(second);
  bool punctuation = true, places = true, repeats = true, mirrored = true;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const char32_t x = i < a.size() ? a[i] : 0, y = i < b.size() ? b[i] : 0;
    const bool mark = IsPunctuation(x);
    if (mark ? x != y : IsPunctuation(y)) punctuation = false;
    if (!mark && x == y) places = false;
    for (size_t j = 0; j < i && i < b.size(); ++j) {
      if (mark || IsPunctuation(y) || IsPunctuation(b[j])) continue;
      const bool repeated = i < a.size() && a[j] == x;
      if (b[j] == y && !repeated) repeats = false;
      if (repeated && b[j] != y) mirrored = false;
    }
  }
  const bool length = a.size() == b.size();
  const bool holds[] = {length,   punctuation,
                        places,   repeats,
                        mirrored, length && punctuation && places && repeats && mirrored};
  for (size_t r = 0; r < std::size(kRules); ++r) {
    kept[kRules[r]] = kept.value(kRules[r], 0) + (holds[r] ? 1 : 0);
  }
}

// The display name of a model: runs/couplet/model.safetensors is named after its folder.
std::string NameOf(const std::string& path) {
  const fs::path whole = fs::path(path).lexically_normal();
  return whole.stem() == "model" ? whole.parent_path().filename() : whole.stem();
}

class Couplet : public Experiment {
 public:
  void AddOptions(CLI::App& verb) override {
    const auto paths = [&](const char* name, std::vector<std::string>& values, const char* type,
                           const char* help) {
      verb.add_option(name, values, help)
          ->type_name(type)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    };
    paths("--data", data_, "DIR",
          "Folders of couplets whose test pairs (valid/ where there are none) are read; first "
          "lines are of the first");
    paths("--model", models_, "FILE",
          "Models of couplets; lines are written by the first (default: the shipped one)");
    paths("--run", runs_, "DIR", "Folders of training runs whose curves are drawn");
    cli::AddOption(&verb, "--lines", lines_, "N", "First lines that are answered",
                   cli::Between(kShown, 1e6));
  }

  std::vector<std::string> Pictures() const override { return {"couplet"}; }

  void Check() const override {
    if (data_.empty()) {
      throw InputError("--data is missing: name a folder of couplets, for one data set or more");
    }
    std::error_code error;
    if (models_.empty() && !fs::exists(kShipped, error)) {
      throw InputError(kShipped,
                       ": the model that ships with linnet is not here; name one with --model");
    }
  }

  json Measure(const Lab& lab) override {
    if (models_.empty()) models_ = {kShipped};
    json all = {{"machine", cli::MachineName()}, {"date", cli::Today()},
                {"perplexities", json::array()}, {"curves", json::array()},
                {"rules", json::array()},        {"shown", json::array()}};
    for (const std::string& run : runs_) all["curves"].push_back(Training(lab, run));
    for (const std::string& model : models_) {
      for (const std::string& data : data_) {
        const std::string set = fs::path(data).lexically_normal().filename();
        std::cerr << "reading second lines: " << NameOf(model) << " on " << set << "\n";
        json eval = lab.Measure(StrCat("eval-", NameOf(model), "-", set),
                                {"eval", model, "--data", data, "--split", "test", "--json"});
        eval["model"] = NameOf(model), eval["data"] = set;
        all["perplexities"].push_back(std::move(eval));
      }
    }
    const CoupletSet set = LoadCouplets(data_[0], CoupletSplit::kTest);
    const size_t count = std::min(set.pairs.size(), static_cast<size_t>(lines_));
    for (size_t i = 0; i < std::min<size_t>(count, kShown); ++i) {
      all["shown"].push_back({{"first", set.pairs[i].first}, {"second", set.pairs[i].second}});
    }
    for (const Way& way : Ways()) {
      std::cerr << "writing second lines: " << way.name << "\n";
      json kept = {{"way", way.name}, {"lines", count}};
      for (size_t begin = 0; begin < count; begin += kAtOnce) {
        std::vector<std::string> couplet = {"couplet", models_[0], "--json", "--count", "1"};
        couplet.insert(couplet.end(), way.flags.begin(), way.flags.end());
        const size_t end = std::min(count, begin + kAtOnce);
        for (size_t i = begin; i < end; ++i) couplet.push_back(set.pairs[i].first);
        const json written = lab.Measure(StrCat(way.name, "-", begin), couplet);
        for (size_t i = begin; i < end; ++i) {
          const json& answers = written.at(i - begin).at("answers");
          const std::string second =
              answers.empty() ? "" : answers.at(0).at("text").get<std::string>();
          Count(set.pairs[i].first, second, kept);
          if (i < kShown) all["shown"][i][way.name] = second;
        }
      }
      all["rules"].push_back(std::move(kept));
    }
    return all;
  }

  Drawing Draw(const json& record) const override {
    plot::Plot panel{.x = {"updates"},
                     .y = {"perplexity a character of validation lines", /*log=*/true}};
    json trainings = json::array();
    for (const json& curve : record.at("curves")) {
      const json& points = curve.at("points");
      if (points.empty()) throw InputError("holds a run without a validation");
      plot::Series series{.label = curve.at("run").get<std::string>(),
                          .style = plot::Style::kLine,
                          .color = static_cast<int>(trainings.size())};
      for (const json& point : points) {
        series.x.push_back(point.at(0)), series.y.push_back(point.at(1));
      }
      json training = curve;
      training["pair"] = curve.at("network") == "encoder-decoder";
      training["best"] = *std::min_element(series.y.begin(), series.y.end());
      training["last"] = series.y.back();
      training["minutes"] = curve.at("seconds").get<double>() / 60;
      trainings.push_back(training);
      panel.series.push_back(std::move(series));
    }
    json perplexities = record.at("perplexities"), rules = json::array();
    for (json& one : perplexities) {
      one["unknown_share"] =
          one.at("unknown").get<double>() / std::max(1.0, one.at("characters").get<double>());
    }
    for (const json& kept : record.at("rules")) {
      json shares = json::array();
      for (const char* rule : kRules) {
        shares.push_back(kept.at(rule).get<double>() /
                         std::max(1.0, kept.at("lines").get<double>()));
      }
      rules.push_back({{"way", kept.at("way")}, {"shares", shares}});
    }
    json shown = json::array();
    for (const json& one : record.at("shown")) {
      shown.push_back({{"first", one.at("first")},
                       {"greedy", one.at("greedy")},
                       {"drawn", one.at("drawn")},
                       {"beam", one.at("beam of 16")},
                       {"second", one.at("second")}});
    }
    Drawing drawing{.values = {{"perplexities", perplexities},
                               {"trained", !trainings.empty()},
                               {"trainings", trainings},
                               {"lines", record.at("rules").at(0).at("lines")},
                               {"rules", rules},
                               {"shown", shown}}};
    if (!trainings.empty()) {
      drawing.figures = {
          {"couplet",
           {.title = "Couplets as training goes on",
            .subtitle = "each run on validation pairs of its own data, the line's end counted",
            .panels = {panel}}}};
    }
    return drawing;
  }

 private:
  static constexpr char kShipped[] = "models/couplet.safetensors";

  static json Training(const Lab& lab, const std::string& run) {
    const std::string model = fs::path(run) / "model.safetensors";
    const json info = lab.Run({"info", model, "--json"});
    const json &spec = info.at("spec"), &training = info.at("training");
    json points = json::array();
    for (const json& record : MetricsOf(run)) {
      if (!record.contains("validation_perplexity")) continue;
      points.push_back({record.at("step"), record.at("validation_perplexity")});
    }
    if (points.empty()) throw InputError(run, ": its metrics.jsonl holds no validation");
    return {{"run", NameOf(model)},
            {"points", points},
            {"network", spec.value("network", "transformer")},
            {"layers", spec.at("layers")},
            {"d_model", spec.at("d_model")},
            {"parameters", info.at("parameters")},
            {"data", training.at("data")},
            {"steps", training.at("steps")},
            {"epochs", training.at("epochs")},
            {"seconds", training.at("seconds")}};
  }

  std::vector<std::string> models_, data_, runs_;
  int lines_ = 1000;
};

}  // namespace

const Row kCouplet = {
    "couplet",
    "Couplets: perplexities, rules that are kept, and lines (the replication report's task)",
    "Perplexities of every --model on the test pairs of every --data; the second lines that the "
    "first model "
    "writes\n"
    "to first lines of the first --data: greedy, drawn and by beam search, with the rules and "
    "without.\n"
    "Stopped, it goes on where it was.",
    "  linnet reproduce couplet --data couplet/regulated-verse --run runs/couplet --out "
    "docs/results\n"
    "  linnet reproduce couplet --from couplet.json\n",
    Make<Couplet>};

}  // namespace linnet::experiments
