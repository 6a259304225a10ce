// linnet reproduce table5: the time of one image (appendix C.2), by softmax attention without a state
// and with one, by LSH and by linear attention; and what a token costs as the image grows.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/base/units.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/generate_lab.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"

namespace linnet::cli {
namespace {

using nlohmann::json;

struct Method : GenerateMethod {
  double paper[2];      // seconds an image on its CPU, MNIST and CIFAR-10
  double paper_gpu[2];  // and on its GPU
};
constexpr Method kMethods[] = {
    {{"softmax", "full", 0, true}, {72.6, 8651.4}, {10.2, 300.1}},
    {{"stateful softmax", "full", 0, false}, {7.4, 71.9}, {10.4, 70.4}},
    {{"LSH-1", "reformer", 1, true}, {46.0, 2318.9}, {19.2, 221.6}},
    {{"LSH-4", "reformer", 4, true}, {112.0, 5263.7}, {55.8, 683.9}},
    {{"linear", "causal-linear", 0, false}, {5.5, 45.1}, {7.3, 61.3}},
};
constexpr const Method& kLinear = kMethods[4];

struct Measured {
  const Method* method;
  std::string dataset;
  double seconds = 0, ratio = 0, state_bytes = 0;
  std::vector<double> at, microseconds;  // a token at this position
};
struct Origin {
  std::string machine, isa, precision;
  long threads = 0;
  friend bool operator==(const Origin&, const Origin&) = default;
};
struct Result {
  std::vector<Measured> measured;
  Origin origin;
  std::string date;

  const Measured* Find(const Method& method, const std::string& dataset) const {
    for (const Measured& m : measured) {
      if (m.method == &method && m.dataset == dataset) return &m;
    }
    return nullptr;
  }
};

// A record of 'linnet bench generate'; throws what nlohmann throws, and InputError.
void Take(const json& record, Result& result) {
  Measured measured;
  const std::string model = record.at("model").get<std::string>();
  measured.dataset = model.substr(0, model.find(' '));
  measured.method = nullptr;
  for (const Method& method : kMethods) {
    if (record.at("attention") == method.attention && record.at("stateless") == method.stateless &&
        record.value("lsh_rounds", 0) == method.rounds) {
      measured.method = &method;
    }
  }
  const bool known = measured.dataset == "mnist" || measured.dataset == "cifar10";
  if (measured.method == nullptr || !known || !record.at("checked").get<bool>() ||
      record.at("batch") != 1) {
    throw InputError("a record that is not of this table");
  }
  const auto within = [](double value, double least, double most, const char* field) {
    if (!(value >= least && value <= most)) {
      throw InputError("'", field, "' is no number that can be");
    }
    return value;
  };
  const auto number = [&](const char* field, double least, double most) {
    return within(record.at(field).get<double>(), least, most, field);
  };
  measured.seconds = number("value", 1e-9, 1e15) / 1e3, measured.ratio = number("ratio", 0, 1e9);
  measured.state_bytes = number("state_bytes", 0, 1e15);
  const double length = number("N", 2, 1e9) - 1;
  const bool stateless = measured.method->stateless;
  const char* const times = stateless ? "us_at_lengths" : "us_by_eighths";
  for (const json& value : record.at(times)) {
    const auto i = static_cast<double>(measured.at.size());
    measured.microseconds.push_back(within(value.get<double>(), 1e-9, 1e15, times));
    measured.at.push_back(
        stateless ? within(record.at("lengths").at(measured.at.size()), 1, 1e9, "lengths")
                  : length * (i + 0.5) / 8);
  }
  if (measured.at.empty()) throw InputError("no times of tokens");
  if (result.Find(*measured.method, measured.dataset) != nullptr) {
    throw InputError("two records of ", measured.method->label, ", ",
                     ImagesTitle(measured.dataset == "mnist" ? 0 : 1));
  }
  result.measured.push_back(measured);
  const auto plain = [&](const char* field) {
    std::string text = record.at(field).get<std::string>();
    for (char& c : text) {  // it goes into a page
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte >= 0x7f || c == '|' || c == '<' || c == '>' || c == '`') c = '?';
    }
    return text;
  };
  Origin origin{plain("machine"), plain("isa"), plain("precision"),
                static_cast<long>(number("threads", 1, 4096))};
  // Reformer's queries, rounded, would be hashed elsewhere than the check's: it runs in f32.
  if (measured.method->rounds > 0 && result.measured.size() > 1) {
    origin.precision = result.origin.precision;
  }
  if (result.measured.size() > 1 && !(origin == result.origin)) {
    throw InputError("records of different machines, precisions or threads");
  }
  result.origin = origin, result.date = plain("date");
}

Result Read(const json& all) {
  Result result;
  for (const json& record : all.at("records")) Take(record, result);
  if (result.measured.empty()) throw InputError("holds no measurement");
  return result;
}

plot::Figure DrawResult(const Result& result) {
  plot::Figure figure{.title = "What the next token costs",
                      .subtitle = StrCat("the paper's models, batch 1, ", result.origin.precision,
                                         ", ", result.origin.threads, " threads")};
  for (size_t d = 0; d < 2; ++d) {
    const std::string dataset = ImagesName(d);
    plot::Plot panel{
        .title = ImagesTitle(d), .x = {"tokens before it"}, .y = {"microseconds", /*log=*/true}};
    for (const Method& method : kMethods) {
      const Measured* measured = result.Find(method, dataset);
      if (measured == nullptr) continue;
      plot::Series series = MethodSeries(method.label, plot::Style::kLineAndPoints);
      series.x = measured->at, series.y = measured->microseconds;
      panel.series.push_back(std::move(series));
    }
    if (!panel.series.empty()) figure.panels.push_back(panel);
  }
  return figure;
}

std::string Page(const Result& result, const std::string& command) {
  const Origin& origin = result.origin;
  std::string page = StrCat("# Table 5: the time of one image\n\n```\n", command, "\n```\n\n");
  page += Wrapped(StrCat(
      origin.machine, ", ", origin.threads, origin.threads == 1 ? " thread, " : " threads, ",
      origin.isa, ", ", origin.precision, origin.precision == "f32" ? ", " : " (LSH: f32), ",
      result.date,
      ". The paper's models (MNIST: 8 layers of 8 heads of 32, 784 bytes an image; CIFAR-10: 16 "
      "layers, 3,072) with random weights, one image at a time, sampling included where there is a "
      "state. Outputs were "
      "checked against the network in double precision first. The paper's CPU is not named; what "
      "compares is the order and the factors."));
  page += "\n" + PictureTag("table5", "Time of a token against the tokens before it") + "\n";
  for (size_t d = 0; d < 2; ++d) {
    const std::string dataset = ImagesName(d);
    const Measured* linear = result.Find(kLinear, dataset);
    std::string rows;
    bool any = false;
    for (const Method& method : kMethods) {
      const Measured* m = result.Find(method, dataset);
      any |= m != nullptr;
      const double paper = method.paper[d], paper_linear = kLinear.paper[d];
      rows += StrCat("| ", method.label, " | ");
      if (m == nullptr) {
        rows += "– | – | – | – | – | ";
      } else {
        const double growth = m->microseconds.back() / m->microseconds.front();
        rows +=
            StrCat(Digits(m->seconds), " | ", linear ? Digits(m->seconds / linear->seconds) : "–",
                   " | ", method.stateless ? "–" : Digits(growth), " | ", Digits(m->ratio), " | ",
                   method.stateless ? "–" : FormatBytes(m->state_bytes), " | ");
      }
      rows += StrCat(Digits(paper), " | ", Digits(paper / paper_linear), " | ",
                     Digits(method.paper_gpu[d]), " |\n");
    }
    if (!any) continue;
    page += StrCat("## ", ImagesTitle(d),
                   "\n\n| | seconds | times linear's | last eighth of the tokens over the first | "
                   "times its limit | state | paper, CPU | times linear's | paper, GPU |\n"
                   "|---|---|---|---|---|---|---|---|---|\n",
                   rows, "\n");
  }
  page += Wrapped(
      "`softmax` and `LSH` read everything again for each token, as a transformer does that keeps "
      "nothing; their time is integrated over nine lengths. `stateful softmax` keeps the keys and "
      "values of "
      "all tokens; its state is room for all of them. The limit is reading the weights once a "
      "token, or multiplying with them, whichever is longer (and reading the keys and values "
      "before it; without a state, multiplying for all tokens again), at rates that simple loops "
      "reach "
      "in the same run: where neighbours slow those, a time comes out below its limit. LSH-1 and "
      "LSH-4 hash into 64 buckets, in chunks of 29 (MNIST) and 37.");
  return page + "\nThe command wrote this page.\n";
}

json Measure(const GenerateOptions& options) {
  json all = {{"records", json::array()}};
  for (size_t d = 0; d < 2; ++d) {
    if (!Wants(options, ImagesName(d))) continue;
    for (const Method& method : kMethods) {
      for (json& record : BenchGenerate("table5", options, method, d, 1)) {
        all["records"].push_back(std::move(record));
      }
    }
  }
  return all;
}

void Run(const GenerateOptions& options) {
  Results results("table5", options.out, {"table5"});
  const json all = Obtain(
      "table5", options, GenerateCommand("table5", options), [&] { return Measure(options); },
      [](const json& record) { Page(Read(record), CommandOf("table5", record)); });
  const Result result = Read(all);
  results.Write(all.dump(1) + "\n", Page(result, CommandOf("table5", all)), {DrawResult(result)});
  results.Print(options.json);
}

void Add(CLI::App& verb) {
  auto options = std::make_shared<GenerateOptions>();
  AddGenerateOptions(verb, "table5", *options);
  verb.callback([options, &verb] {
    CheckFrom(verb);
    Run(*options);
  });
}

}  // namespace

const Experiment kTable5 = {"table5",
                            "The time of one image, and of a token as it grows (appendix C.2)",
                            "Runs 'linnet bench generate' for softmax attention without a state "
                            "and with one, LSH and linear\n"
                            "attention, with the paper's models for MNIST and CIFAR-10; some "
                            "minutes.",
                            "  linnet reproduce table5 --out docs/results\n"
                            "  linnet reproduce table5 --dataset mnist --precision int8\n",
                            Add};

}  // namespace linnet::cli
