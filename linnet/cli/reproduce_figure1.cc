// linnet reproduce figure1: time and memory of attention against the length of the sequence
// (section 4.1.2), measured by `linnet bench attention`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "linnet/base/error.h"
#include "linnet/cli/experiment.h"
#include "linnet/cli/page.h"
#include "linnet/cli/reproduce.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"
#include "linnet/plot/plot.h"

namespace linnet::cli {
namespace {

using nlohmann::json;

struct Options {
  std::string out = ".", from;
  std::vector<std::string> bench;  // what was asked for, as arguments of linnet bench attention
  bool json = false;
};

struct Point {
  double value = 0, ratio = 0;  // ms or MB a sample; to the limit
};
// Of one method: time and memory.
struct Quantity {
  std::map<long, Point> points;  // by N
  std::optional<double> exponent;
  long from = 0;  // of the lengths that the exponent is of
};
struct Method {
  std::string name;
  Quantity time = {}, memory = {};
  std::vector<std::pair<long, std::string>> left_out = {};
};
struct Result {
  std::vector<Method> methods;
  std::vector<long> lengths;
  std::string machine, date, isa;
  long threads = 0, tokens = 0, heads = 0, dim = 0;
  bool causal = true;

  const Method* Find(const std::string& name) const {
    const auto found = std::find_if(methods.begin(), methods.end(),
                                    [&](const Method& method) { return method.name == name; });
    return found == methods.end() ? nullptr : &*found;
  }
};

// ------------------------------------------------------------------------------------------
// Reading.

// A field of a record that must be there; throws what nlohmann throws.
std::string Word(const json& record, const char* field) {
  std::string text = record.at(field).get<std::string>();
  for (char& c : text) {  // it goes into a page
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f || c == '|' || c == '<' || c == '>' || c == '`') c = '?';
  }
  return text;
}
double Number(const json& record, const char* field) {
  const double value = record.at(field).get<double>();
  if (!std::isfinite(value) || value < 0)
    throw InputError("'", field, "' is no number that can be");
  return value;
}
long Length(const json& record, const char* field) {
  const double value = Number(record, field);
  if (value < 1 || value > 1e12 || value != std::floor(value))
    throw InputError("'", field, "' is no number that can be");
  return static_cast<long>(value);
}

void Take(const json& record, Result& result) {
  const std::string name = Word(record, "name");
  const size_t first = name.find('/'), last = name.rfind('/');
  if (!name.starts_with("attention/") || first == last) {
    throw InputError("a record of ", Quote(name));
  }
  const std::string of = name.substr(first + 1, last - first - 1), what = name.substr(last + 1);
  if (result.Find(of) == nullptr) result.methods.push_back({.name = of});
  Method& method = result.methods[static_cast<size_t>(result.Find(of) - result.methods.data())];
  const bool is_time = what.starts_with("time");
  Quantity& quantity = is_time ? method.time : method.memory;
  if (what == "time" || what == "memory") {
    if (!record.at("checked").get<bool>()) throw InputError("an unchecked record of ", of);
    const double value = Number(record, "value");
    if (value <= 0) throw InputError("'value' is no number that can be");
    quantity.points[Length(record, "N")] = {value, Number(record, "ratio")};
    result.heads = Length(record, "heads"), result.dim = Length(record, "dim");
    result.causal = record.at("causal").get<bool>();
  } else if (what == "time-exponent" || what == "memory-exponent") {
    quantity.exponent = record.at("value").get<double>();
    if (!(std::abs(*quantity.exponent) < 100)) throw InputError("an exponent that cannot be");
    quantity.from = Length(record, "from_N");
  } else if (what == "longest") {
    result.machine = Word(record, "machine"), result.date = Word(record, "date");
    result.isa = Word(record, "isa");
    result.threads = Length(record, "threads"), result.tokens = Length(record, "tokens");
    for (const json& left : record.at("left_out")) {
      method.left_out.emplace_back(Length(left, "N"), Word(left, "why"));
    }
  } else {
    throw InputError("a record of ", Quote(name));
  }
}

Result ReadRecords(const std::string& text, const std::string& where) {
  const char* const remedy = "; give what 'linnet bench attention --json' printed";
  std::string fault;
  const json records = ParseJson(text, 8, fault);
  if (!fault.empty()) throw InputError(where, ": ", fault, remedy);
  Result result;
  try {
    if (!records.is_array()) throw InputError("no list of records");
    for (const json& record : records) Take(record, result);
  } catch (const json::exception&) {
    throw InputError(where, ": a record lacks a field, or has one of another type", remedy);
  } catch (const Error& error) {
    throw InputError(where, ": ", error.what(), remedy);
  }
  for (const Method& method : result.methods) {
    for (const auto& [length, point] : method.time.points) {
      if (!method.memory.points.contains(length)) {
        throw InputError(where, ": no memory of ", method.name, " at N = ", length, remedy);
      }
      result.lengths.push_back(length);
    }
  }
  std::sort(result.lengths.begin(), result.lengths.end());
  result.lengths.erase(std::unique(result.lengths.begin(), result.lengths.end()),
                       result.lengths.end());
  if (result.lengths.empty()) throw InputError(where, ": holds no measurement", remedy);
  return result;
}

// ------------------------------------------------------------------------------------------
// Drawing.

plot::Plot Panel(const Result& result, Quantity Method::*of, const char* title, const char* unit) {
  plot::Plot panel{
      .title = title, .x = {"sequence length N", /*log=*/true}, .y = {unit, /*log=*/true}};
  double least = 1e300, most = 0, lowest_slope = 1e300;
  double square = 0;  // value / N^2 at the longest N, of what grows so: the highest
  for (const Method& method : result.methods) {
    const Quantity& quantity = method.*of;
    plot::Series series = MethodSeries(method.name, plot::Style::kLineAndPoints);
    for (const auto& [length, point] : quantity.points) {
      const auto n = static_cast<double>(length);
      series.x.push_back(n);
      series.y.push_back(point.value);
      least = std::min(least, point.value), most = std::max(most, point.value);
      lowest_slope = std::min(lowest_slope, point.value / n);
    }
    if (quantity.exponent.value_or(0) > 1.5 && !series.x.empty()) {
      square = std::max(square, series.y.back() / (series.x.back() * series.x.back()));
    }
    panel.series.push_back(series);
  }
  // Guides below what is flattest and above what is steepest, within what the axes show anyway.
  const auto guide = [&](const char* label, double scale, double power) {
    constexpr int kGrey = 6;  // of the palette
    plot::Series series{.label = label, .color = kGrey, .dotted = true};
    const double low = static_cast<double>(result.lengths.front()),
                 high = static_cast<double>(result.lengths.back());
    const double from = std::max(low, std::pow(0.5 * least / scale, 1 / power));
    const double to = std::min(high, std::pow(2 * most / scale, 1 / power));
    if (from >= to) return;
    series.x = {from, to};
    series.y = {scale * std::pow(from, power), scale * std::pow(to, power)};
    panel.series.push_back(series);
  };
  if (result.lengths.size() < 2) return panel;
  guide("slopes 1 and 2", 0.6 * lowest_slope, 1);
  if (square == 0) square = most / std::pow(static_cast<double>(result.lengths.back()), 2);
  guide("", 1.7 * square, 2);
  return panel;
}

plot::Figure DrawResult(const Result& result) {
  return {.title = "Forward and backward pass of attention, a sample",
          .subtitle = StrCat(result.heads, " heads of ", result.dim, ", fp32, ",
                             result.causal ? "causal" : "not causal", "; ", result.threads,
                             result.threads == 1 ? " thread" : " threads",
                             "; each point a process of its own"),
          .panels = {Panel(result, &Method::time, "Time", "ms a sample"),
                     Panel(result, &Method::memory, "Peak memory", "MB a sample")}};
}

// ------------------------------------------------------------------------------------------
// Writing.

std::string Power(double exponent) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", exponent);
  return text;
}

std::string Table(const Result& result, Quantity Method::*of) {
  std::string text = "| N |";
  std::string line = "|---|";
  for (const Method& method : result.methods) text += " " + method.name + " |", line += "---|";
  text += "\n" + line + "\n";
  const auto row = [&](const std::string& title, const auto& cell) {
    text += "| " + title + " |";
    for (const Method& method : result.methods) text += " " + cell(method.*of) + " |";
    text += "\n";
  };
  for (const long length : result.lengths) {
    row(Digits(length), [&](const Quantity& q) -> std::string {
      const auto point = q.points.find(length);
      return point == q.points.end() ? "–" : Digits(point->second.value);
    });
  }
  row("grows as N to the",
      [](const Quantity& q) -> std::string { return q.exponent ? Power(*q.exponent) : "–"; });
  row("times the limit, at its longest", [](const Quantity& q) -> std::string {
    return q.points.empty() ? "–" : Digits(q.points.rbegin()->second.ratio);
  });
  return text;
}

constexpr double kNear = 0.25;  // exponents that differ by less are taken for the same

// "linear: time as N^1.01 (so here too), memory as N^1.00 (so here too)".
std::string Growth(const Result& result, const std::string& prefix, double power) {
  std::string text;
  for (const Method& method : result.methods) {
    if (!method.name.starts_with(prefix)) continue;
    const auto part = [&](const char* what, const Quantity& quantity) -> std::string {
      if (!quantity.exponent) return StrCat(what, " not fitted");
      const bool holds = std::abs(*quantity.exponent - power) <= kNear;
      return StrCat(what, " N^", Power(*quantity.exponent),
                    holds ? " (as there)" : " (not so here)");
    };
    text += StrCat(text.empty() ? "" : "; ", "`", method.name, "`: ", part("time", method.time),
                   ", ", part("memory", method.memory));
  }
  return text.empty() ? "not measured" : text;
}

// How linear compares with every other method at every length, in time or memory.
std::string Comparison(const Result& result, Quantity Method::*of, const char* better) {
  const Method* linear = result.Find("linear");
  if (linear == nullptr) return "not measured";
  size_t all = 0, won = 0;
  double least = 1e300, most = 0;
  std::string exceptions;
  for (const Method& method : result.methods) {
    if (&method == linear) continue;
    std::vector<long> lost;
    double lost_least = 1e300, lost_most = 0;
    for (const auto& [length, point] : (method.*of).points) {
      const auto own = (linear->*of).points.find(length);
      if (own == (linear->*of).points.end()) continue;
      ++all;
      const double factor = point.value / own->second.value;
      least = std::min(least, factor), most = std::max(most, factor);
      if (factor > 1) {
        ++won;
        continue;
      }
      lost.push_back(length);
      lost_least = std::min(lost_least, factor), lost_most = std::max(lost_most, factor);
    }
    if (lost.empty()) continue;
    const auto range = [](const std::string& from, const std::string& to) {
      return from == to ? from : StrCat(from, " to ", to);
    };
    exceptions += StrCat(exceptions.empty() ? "" : ", ", "`", method.name, "` at ", lost.size(),
                         " of ", (method.*of).points.size(), " lengths (",
                         range(Digits(lost_least), Digits(lost_most)), " times linear's)");
  }
  if (all == 0) return "not measured";
  return StrCat(better, " in ", won, " of ", all, " comparisons, by ", Digits(least), " to ",
                Digits(most), " times", exceptions.empty() ? "" : "; not against " + exceptions);
}

std::string Rounds(const Result& result, Quantity Method::*of, const char* unit) {
  std::vector<const Method*> methods;
  for (const Method& method : result.methods) {
    if (method.name.starts_with("lsh-") && !(method.*of).points.empty()) methods.push_back(&method);
  }
  for (auto length = result.lengths.rbegin(); length != result.lengths.rend(); ++length) {
    const bool common = std::all_of(methods.begin(), methods.end(), [&](const Method* method) {
      return (method->*of).points.contains(*length);
    });
    if (!common || methods.size() < 2) continue;
    std::string text = StrCat("at N = ", Digits(*length), " ");
    const double first = (methods[0]->*of).points.at(*length).value;
    for (const Method* method : methods) {
      const double value = (method->*of).points.at(*length).value;
      text += StrCat(method == methods[0] ? "" : ", ", "`", method->name, "` ", Digits(value), " ",
                     unit, method == methods[0] ? "" : StrCat(" (", Digits(value / first), "x)"));
    }
    return text;
  }
  return "not measured";
}

std::string Longest(const Result& result) {
  std::string text;
  for (const Method& method : result.methods) {
    const auto& points = method.time.points;
    text += StrCat(text.empty() ? "" : "; ", "`", method.name, "` ",
                   points.empty() ? "none" : Digits(points.rbegin()->first));
    if (method.left_out.empty()) {
      text += ", the longest asked for";
    } else {
      text +=
          StrCat(" (at ", Digits(method.left_out[0].first), ": ", method.left_out[0].second, ")");
    }
  }
  return text;
}

std::string Page(const Result& result, const std::string& command) {
  const std::string how = Wrapped(StrCat(
      result.machine, ", ", result.threads, result.threads == 1 ? " thread, " : " threads, ",
      result.isa, ", ", result.date, ". One forward and one backward pass, ", result.heads,
      " heads of ", result.dim, ", fp32, ", result.causal ? "causal" : "not causal",
      ". A batch has ", Digits(result.tokens),
      " positions: fewer where they do not fit into memory, one sample at least. Time (the median) "
      "and peak memory (over what the process held before) are those of a batch over its samples. "
      "Each figure is of a process of its own, whose result was first checked against plain sums "
      "in double precision."));
  const std::string what = Wrapped(
      "`linear` is linear attention, fused; `softmax` this library's softmax attention as it is; "
      "`softmax-plain` the same in plain operations, which write all N x N scores, as the paper's "
      "baseline does; `lsh-X` Reformer's attention with X rounds of hashing, 64 buckets and chunks "
      "of 32.");
  const std::string fitted = Wrapped(
      "The exponents are fitted (least squares) over the longer half of each method's lengths. The "
      "limit of a time is the longer of two, measured in the same process: the multiply-adds of "
      "the products that are needed, at this machine's peak, and reading what goes in and writing "
      "what comes out once. The limit of memory is what goes in and comes out, with its "
      "gradients: least for Reformer, whose queries are its keys.");
  const std::pair<const char*, std::string> remarks[] = {
      {"softmax scales with the square of the length, in time and memory",
       Growth(result, "softmax", 2)},
      {"linear scales linearly", Growth(result, "linear", 1)},
      {"Reformer scales linearly", Growth(result, "lsh-", 1)},
      {"linear is faster than the baselines in every configuration",
       Comparison(result, &Method::time, "faster")},
      {"and needs less memory", Comparison(result, &Method::memory, "less")},
      {"(figure 1) more rounds of Reformer take more time", Rounds(result, &Method::time, "ms")},
      {"(figure 1) and more memory", Rounds(result, &Method::memory, "MB")},
      {"the longest that fits, in 11 GB of a GPU: softmax 4,096, lsh-4 and lsh-8 16,384",
       Longest(result)}};
  std::string beside = "| the paper, section 4.1.2 | here |\n|---|---|\n";
  for (const auto& [theirs, ours] : remarks) beside += StrCat("| ", theirs, " | ", ours, " |\n");
  return StrCat("# Figure 1: time and memory of attention against the length\n\n```\n", command,
                "\n```\n\n", how, "\n",
                PictureTag("figure1", "Time and memory a sample against the length"), "\n", what,
                "\n## Milliseconds a sample\n\n", Table(result, &Method::time),
                "\n## Megabytes a sample\n\n", Table(result, &Method::memory), "\n", fitted,
                "\n## Beside the paper\n\n", beside, "\n\"As there\": the exponent differs by ",
                Power(kNear), " at most. The command wrote this page.\n");
}

// ------------------------------------------------------------------------------------------

std::string Measure(const Options& options) {
  std::vector<std::string> arguments = {"bench", "attention", "--json"};
  arguments.insert(arguments.end(), options.bench.begin(), options.bench.end());
  return RunVerb("figure1", arguments);
}

void Run(const Options& options) {
  Results results("figure1", options.out, {"figure1"});
  std::string command, text;
  if (options.from.empty()) {
    command = "linnet reproduce figure1";
    for (const std::string& argument : options.bench) command += " " + argument;
    text = Measure(options);
  } else {
    command =
        "linnet reproduce figure1 --from figure1.json   # what 'linnet bench attention --json' "
        "wrote";
    text = ReadFile(options.from, size_t{1} << 26);
  }
  const Result result =
      ReadRecords(text, options.from.empty() ? "linnet bench attention" : options.from);
  results.Write(text, Page(result, command), {DrawResult(result)});
  results.Print(options.json);
}

void Add(CLI::App& verb) {
  auto options = std::make_shared<Options>();
  const auto forward = [&](const char* name, const char* help, const char* type,
                           const CLI::Validator& check) {
    verb.add_option_function<std::string>(
            name,
            [options, name](const std::string& value) {
              options->bench.insert(options->bench.end(), {name, value});
            },
            help)
        ->type_name(type)
        ->check(check);
  };
  forward("--max-n", "The longest sequence (default: 65536)", "N", Between(512, 1 << 20));
  forward("--methods", "Which, as linear,softmax (default: all)", "NAMES",
          CLI::Validator([](std::string&) { return std::string(); }, ""));
  forward("--memory", "Memory that a pass may take (default: 60% of what is free)", "GB",
          Between(0.001, 1e6));
  forward("--seconds", "About how long to time each case (default: 1)", "N", Between(0, 600));
  forward("--threads", "Threads to use (default: every processor)", "N", Between(0, 1024));
  verb.add_option("--from", options->from,
                  "Measure nothing: what 'linnet bench attention --json' wrote")
      ->type_name("FILE");
  verb.add_option("--out", options->out,
                  "The folder for figure1.md, .json, .png, .svg, -dark.png and -dark.svg")
      ->type_name("DIR")
      ->capture_default_str();
  AddJsonFlag(&verb, options->json);
  verb.callback([options] {
    if (!options->from.empty() && !options->bench.empty()) {
      throw InputError("--from measures nothing, so ", options->bench[0],
                       " means nothing; give one");
    }
    Run(*options);
  });
}

}  // namespace

const Experiment kFigure1 = {"figure1",
                             "Time and memory of attention against the length (section 4.1.2)",
                             "Runs 'linnet bench attention' ('--help' there says what it "
                             "measures), draws time and memory a\n"
                             "sample, and sets them beside what the paper says.",
                             "  linnet reproduce figure1 --out docs/results\n"
                             "  linnet reproduce figure1 --max-n 4096\n"
                             "  linnet reproduce figure1 --from bench.json --out /tmp\n",
                             Add};

}  // namespace linnet::cli
