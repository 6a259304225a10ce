// linnet reproduce couplet: how well a model of couplets foretells second lines, what it learnt of their
// rules, and what it writes.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/base/utf8.h"
#include "linnet/cli/bench.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"
#include "linnet/tasks/couplet/couplet.h"
#include "linnet/tasks/couplet/couplets.h"

namespace linnet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kName[] = "couplet";

constexpr int kLines = 1000;
struct Options : ExperimentOptions {
  std::vector<std::string> models, data, runs;
  int lines = kLines;
};

constexpr int kShown = 40;       // first lines whose answers the page shows
constexpr size_t kAtOnce = 200;  // lines of one call of `linnet couplet`

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

// What a second line keeps of the rules that a program can check.
struct Rules {
  bool length = false, punctuation = true, places = true, repeats = true, mirrored = true;
  bool all() const { return length && punctuation && places && repeats && mirrored; }
};

std::vector<char32_t> CharactersOf(const std::string& text) {
  std::vector<char32_t> characters;
  for (size_t at = 0; at < text.size();) {
    const auto next = NextCodePoint(text, at);
    characters.push_back(next ? next->value : 0);
    at += next ? next->bytes : 1;
  }
  return characters;
}

Rules Check(const std::string& first, const std::string& second) {
  const std::vector<char32_t> a = CharactersOf(first), b = CharactersOf(second);
  Rules rules{.length = a.size() == b.size()};
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const char32_t x = i < a.size() ? a[i] : 0, y = i < b.size() ? b[i] : 0;
    const bool mark = IsPunctuation(x);
    if (mark ? x != y : IsPunctuation(y)) rules.punctuation = false;
    if (!mark && x == y) rules.places = false;
    for (size_t j = 0; j < i && i < b.size(); ++j) {
      if (mark || IsPunctuation(y) || IsPunctuation(b[j])) continue;
      const bool repeated = i < a.size() && a[j] == x;
      if (b[j] == y && !repeated) rules.repeats = false;
      if (repeated && b[j] != y) rules.mirrored = false;
    }
  }
  return rules;
}

json Curve(const std::string& run) {
  json curve = json::array();
  for (const json& record : MetricsOf(run)) {
    if (record.contains("validation_perplexity")) {
      curve.push_back({record.at("step"), record.at("validation_perplexity")});
    }
  }
  if (curve.empty()) throw InputError(run, ": its metrics.jsonl holds no validation");
  return curve;
}

std::string NameOf(const std::string& path) {
  const fs::path whole = fs::path(path).lexically_normal();
  const std::string stem = whole.stem();
  // runs/couplet/model.safetensors is known by its folder.
  return stem == "model" ? whole.parent_path().filename().string() : stem;
}

json Measure(const Options& options) {
  json all = {{"machine", MachineName()}, {"date", Today()},        {"perplexities", json::array()},
              {"curves", json::array()},  {"rules", json::array()}, {"shown", json::array()}};
  for (const std::string& run : options.runs) {
    const std::string model = fs::path(run) / "model.safetensors";
    const json info = RunVerbJson(kName, {"info", model, "--json"});
    const json &spec = info.at("spec"), &training = info.at("training");
    all["curves"].push_back({{"run", NameOf(model)},
                             {"points", Curve(run)},
                             {"network", spec.value("network", "transformer")},
                             {"layers", spec.at("layers")},
                             {"d_model", spec.at("d_model")},
                             {"parameters", info.at("parameters")},
                             {"data", training.at("data")},
                             {"steps", training.at("steps")},
                             {"epochs", training.at("epochs")},
                             {"seconds", training.at("seconds")}});
  }
  for (const std::string& model : options.models) {
    for (const std::string& data : options.data) {
      std::cerr << "reading second lines: " << NameOf(model) << " on "
                << fs::path(data).filename().string() << "\n";
      json eval = RunVerbJson(kName, {"eval", model, "--data", data, "--split", "test", "--json"});
      eval["model"] = NameOf(model), eval["data"] = fs::path(data).lexically_normal().filename();
      all["perplexities"].push_back(std::move(eval));
    }
  }
  const CoupletSet set = LoadCouplets(options.data[0], CoupletSplit::kTest);
  const size_t count = std::min(set.pairs.size(), static_cast<size_t>(options.lines));
  for (size_t i = 0; i < std::min<size_t>(count, kShown); ++i) {
    all["shown"].push_back({{"first", set.pairs[i].first}, {"second", set.pairs[i].second}});
  }
  for (const Way& way : Ways()) {
    std::cerr << "writing second lines: " << way.name << "\n";
    json kept = {{"way", way.name}, {"lines", count}};
    for (const char* rule : {"length", "punctuation", "places", "repeats", "mirrored", "all"})
      kept[rule] = 0;
    for (size_t begin = 0; begin < count; begin += kAtOnce) {
      std::vector<std::string> arguments = {"couplet", options.models[0], "--json", "--count", "1"};
      arguments.insert(arguments.end(), way.flags.begin(), way.flags.end());
      const size_t end = std::min(count, begin + kAtOnce);
      for (size_t i = begin; i < end; ++i) arguments.push_back(set.pairs[i].first);
      const json answers = RunVerbJson(kName, arguments);
      for (size_t i = begin; i < end; ++i) {
        const json& list = answers.at(i - begin).at("answers");
        const std::string second = list.empty() ? "" : list.at(0).at("text").get<std::string>();
        const Rules rules = Check(set.pairs[i].first, second);
        const auto add = [&](const char* name, bool holds) {
          kept[name] = kept[name].get<size_t>() + (holds ? 1 : 0);
        };
        add("length", rules.length), add("punctuation", rules.punctuation);
        add("places", rules.places), add("repeats", rules.repeats);
        add("mirrored", rules.mirrored), add("all", rules.all());
        if (i < kShown) all["shown"][i][way.name] = second;
      }
    }
    all["rules"].push_back(std::move(kept));
  }
  return all;
}

plot::Figure Draw(const json& all) {
  plot::Plot panel{.x = {"updates"},
                   .y = {"perplexity a character of validation lines", /*log=*/true}};
  int color = 0;
  for (const json& curve : all.at("curves")) {
    plot::Series series{
        .label = curve.at("run").get<std::string>(), .style = plot::Style::kLine, .color = color++};
    for (const json& point : curve.at("points")) {
      series.x.push_back(point.at(0));
      series.y.push_back(point.at(1));
    }
    panel.series.push_back(std::move(series));
  }
  return {.title = "Couplets as training goes on",
          .subtitle = "each run on validation pairs of its own data, the line's end counted",
          .panels = {panel}};
}

std::string Page(const json& all) {
  const auto percent = [](const json& part, const json& whole) {
    return Digits(100 * part.get<double>() / std::max(1.0, whole.get<double>()));
  };
  std::string page =
      StrCat("# Couplets\n\n```\n", CommandOf(kName, all), "\n```\n\n",
             Wrapped(StrCat(all.at("machine").get<std::string>(), ", ",
                            all.at("date").get<std::string>(), ".")),
             "\n## How well second lines are foretold\n\n",
             "| model | pairs of | perplexity a character | pairs | characters | of them "
             "unknown, % | pairs left out |\n|---|---|---|---|---|---|---|\n");
  for (const json& eval : all.at("perplexities")) {
    page += StrCat(
        "| ", eval.at("model").get<std::string>(), " | ", eval.at("data").get<std::string>(), " | ",
        Digits(eval.at("perplexity").get<double>()), " | ", Digits(eval.at("pairs").get<long>()),
        " | ", Digits(eval.at("characters").get<long>()), " | ",
        percent(eval.at("unknown"), eval.at("characters")), " | ",
        Digits(eval.at("left_out").get<long>()), " |\n");
  }
  page +=
      "\n" +
      Wrapped(
          "The line's end is not counted: its length is that of the first line. Unknown "
          "characters count as one symbol, which is easier to foretell than the characters "
          "that it stands for: models with other vocabularies do not compare exactly. Pairs are "
          "left out where they are longer than the model's positions.");
  if (!all.at("curves").empty()) {
    page += "\n## Trainings\n\n" + PictureTag("couplet", "Perplexity against updates") +
            "\n| run | on | network | parameters | updates | epochs | minutes | perplexity, the "
            "line's end "
            "counted: best | last |\n|---|---|---|---|---|---|---|---|---|\n";
    for (const json& curve : all.at("curves")) {
      double best = 1e300;
      for (const json& point : curve.at("points")) best = std::min(best, point.at(1).get<double>());
      const bool pair = curve.at("network") == "encoder-decoder";
      const auto layers = curve.at("layers").get<int>();
      page += StrCat(
          "| ", curve.at("run").get<std::string>(), " | ", curve.at("data").get<std::string>(),
          " | ", pair ? StrCat("encoder and decoder, ", layers, " + ", layers) : StrCat(layers),
          " layers of ", curve.at("d_model").get<int>(), " | ",
          FormatCount(curve.at("parameters").get<double>()), " | ",
          Digits(curve.at("steps").get<long>()), " | ", Digits(curve.at("epochs").get<double>()),
          " | ", Digits(curve.at("seconds").get<double>() / 60), " | ", Digits(best), " | ",
          Digits(curve.at("points").back().at(1).get<double>()), " |\n");
    }
    page += "\n" +
            Wrapped(
                "On validation pairs of each run's own data, while it trained. A line's end is "
                "easy to foretell, so these are below the table above.") +
            "\n";
  }
  page +=
      "## Rules\n\n" +
      Wrapped(StrCat(
          "Of ", all.at("rules").at(0).at("lines").get<int>(),
          " first lines, the share of second lines (%) that keep what a program can check: as many "
          "characters; punctuation where the first line has it; no character that the first line "
          "has "
          "in the same place; none twice but where the first line repeats its own; repeated where "
          "the "
          "first line does. linnet's writer allows nothing else; without the rules shows what the "
          "model "
          "learnt of them.")) +
      "\n| | length | punctuation | same place | repeats | repeats mirrored | all |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const json& kept : all.at("rules")) {
    page += StrCat("| ", kept.at("way").get<std::string>(), " |");
    for (const char* rule : {"length", "punctuation", "places", "repeats", "mirrored", "all"}) {
      page += StrCat(" ", percent(kept.at(rule), kept.at("lines")), " |");
    }
    page += "\n";
  }
  page += "\n## What it writes\n\n" +
          Wrapped(
              "The first lines of the first set's test pairs (validation pairs where it has no "
              "others), as they come; drawn at temperature 0.7, top-p 0.95.") +
          "\n| first line | greedy | drawn | beam of 16 | the poet's |\n|---|---|---|---|---|\n";
  for (const json& one : all.at("shown")) {
    page += StrCat("| ", one.at("first").get<std::string>(), " | ",
                   one.at("greedy").get<std::string>(), " | ", one.at("drawn").get<std::string>(),
                   " | ", one.at("beam of 16").get<std::string>(), " | ",
                   one.at("second").get<std::string>(), " |\n");
  }
  return page + "\nThe command wrote this page.\n";
}

void Run(Options options) {
  Results results(kName, options.out, {"couplet"});
  std::string command = "linnet reproduce couplet";
  if (options.from.empty()) {
    if (options.data.empty()) {
      throw InputError("--data is missing: name a folder of couplets, for one data set or more");
    }
    if (options.models.empty()) {
      options.models = {"models/couplet.safetensors"};
      std::error_code error;
      if (!fs::exists(options.models[0], error)) {
        throw InputError(options.models[0],
                         ": the model that ships with linnet is not here; name one with --model");
      }
    }
    for (const std::string& data : options.data) {
      command += " --data " + fs::path(data).lexically_normal().filename().string();
    }
    for (const std::string& model : options.models) command += " --model " + NameOf(model);
    for (const std::string& run : options.runs) {
      command += " --run " + fs::path(run).lexically_normal().filename().string();
    }
    if (options.lines != kLines) command += StrCat(" --lines ", options.lines);
  }
  const json all = Obtain(
      kName, options, command, [&] { return Measure(options); },
      [](const json& record) {  // what the page and the picture read is there
        for (const json& curve : record.at("curves")) {
          if (curve.at("points").empty()) throw InputError("holds a run without a validation");
        }
        Page(record);
        Draw(record);
      });
  std::vector<plot::Figure> figures;
  if (!all.at("curves").empty()) figures.push_back(Draw(all));
  results.Write(all.dump(1) + "\n", Page(all), figures);
  results.Print(options.json);
}

void Add(CLI::App& verb) {
  auto options = std::make_shared<Options>();
  verb.add_option(
          "--data", options->data,
          "Folders of couplets whose test pairs (valid/ where there are none) are read; first "
          "lines are of the first")
      ->type_name("DIR")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb.add_option("--model", options->models,
                  "Models of couplets; lines are written by the first (default: the shipped one)")
      ->type_name("FILE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb.add_option("--run", options->runs, "Folders of training runs whose curves are drawn")
      ->type_name("DIR")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb.add_option("--lines", options->lines, "First lines that are answered")
      ->type_name("N")
      ->check(Between(kShown, 1e6))
      ->capture_default_str();
  AddExperimentOptions(verb, kName, *options);
  verb.callback([options, &verb] {
    CheckFrom(verb);
    Run(*options);
  });
}

}  // namespace

const Experiment kCouplet = {
    "couplet",
    "Couplets: perplexities, rules that are kept, and lines (the replication report's task)",
    "Perplexities of every --model on the test pairs of every --data; what the first model writes "
    "to\n"
    "first lines of the first --data: greedy, drawn and by beam search, with the rules and "
    "without.",
    "  linnet reproduce couplet --data couplet/regulated-verse --run runs/couplet --out "
    "docs/results\n"
    "  linnet reproduce couplet --from couplet.json\n",
    Add};

}  // namespace linnet::cli
