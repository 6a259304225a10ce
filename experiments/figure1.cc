// linnet reproduce figure1: time and memory of attention against sequence length (section 4.1.2),
// measured by `linnet bench attention`.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "experiments/experiment.h"
#include "experiments/figures.h"
#include "experiments/page.h"
#include "linnet/cli/verbs.h"
#include "linnet/io/json.h"

namespace linnet::experiments {
namespace {

using nlohmann::json;

constexpr double kNear = 0.25;  // exponents that differ by less count as equal

struct Point {
  double value = 0, ratio = 0;  // ms or MB per sample; ratio to the limit
};
struct Quantity {
  std::map<long, Point> points = {};  // by N
  std::optional<double> exponent = {};
};
struct Method {
  std::string name;
  Quantity time = {}, memory = {};
  std::string left_out = {};  // the first length that was left out, and why
};
using Of = Quantity Method::*;

double Number(const json& record, const char* field) {
  const double value = record.at(field);
  if (!std::isfinite(value) || value < 0) throw InputError("'", field, "' must be 0 or more");
  return value;
}
long Length(const json& record, const char* field) {
  const double value = Positive(record, field);
  if (value != std::floor(value)) throw InputError("'", field, "' must be a whole number");
  return static_cast<long>(value);
}
std::string Name(std::string name) {  // sanitized: goes into the page unescaped
  for (char& c : name) {
    if (c != '-' && !std::isalnum(static_cast<unsigned char>(c))) c = '?';
  }
  return name;
}

// The records of 'linnet bench attention', by method.
class Result {
 public:
  explicit Result(const json& records) {
    for (const json& record : records) Take(record);
    std::set<long> lengths;
    for (const Method& method : methods_) {
      for (const auto& [length, point] : method.time.points) {
        if (!method.memory.points.contains(length)) {
          throw InputError("no memory of ", method.name, " at N = ", length);
        }
        lengths.insert(length);
      }
    }
    if (lengths.empty()) throw InputError("holds no measurement");
    lengths_.assign(lengths.begin(), lengths.end());
  }

  // One of figure 1's two panels.
  plot::Plot Panel(Of of, const char* title, const char* unit) const;
  json Table(Of of) const;
  // "`linear`: time N^1.01 (as there), memory N^1.00 (as there)", for methods whose names begin
  // with `prefix`.
  std::string Growth(const std::string& prefix, double power) const;
  // Compares linear attention with every other method at every length.
  std::string Comparison(Of of, const char* better) const;
  // The cost of hashing rounds at the longest common length.
  std::string Rounds(Of of, const char* unit) const;
  std::string Longest() const;
  const json& origin() const { return origin_; }

 private:
  void Take(const json& record);

  std::vector<Method> methods_;
  std::vector<long> lengths_;
  json origin_;  // machine, date, isa, threads, tokens, heads, dim, causal
};

void Result::Take(const json& record) {
  const std::string name = record.at("name");
  const size_t first = name.find('/'), last = name.rfind('/');
  if (!name.starts_with("attention/") || first == last)
    throw InputError("a record of ", Quote(name));
  const std::string of = Name(name.substr(first + 1, last - first - 1)),
                    what = name.substr(last + 1);
  auto method =
      std::find_if(methods_.begin(), methods_.end(), [&](const Method& m) { return m.name == of; });
  if (method == methods_.end()) method = methods_.insert(methods_.end(), {.name = of});
  Quantity& quantity = what.starts_with("time") ? method->time : method->memory;
  if (what == "time" || what == "memory") {
    if (!record.at("checked").get<bool>()) throw InputError("an unchecked record of ", of);
    quantity.points[Length(record, "N")] = {Positive(record, "value"), Number(record, "ratio")};
    origin_["heads"] = Length(record, "heads"), origin_["dim"] = Length(record, "dim");
    origin_["causal"] = record.at("causal").get<bool>() ? "causal" : "not causal";
  } else if (what == "time-exponent" || what == "memory-exponent") {
    quantity.exponent = record.at("value").get<double>();
    if (!(std::abs(*quantity.exponent) < 100)) throw InputError("an exponent beyond 100");
  } else if (what == "longest") {
    for (const char* text : {"machine", "date", "isa"})
      origin_[text] = record.at(text).get<std::string>();
    origin_["threads"] = Length(record, "threads"), origin_["tokens"] = Length(record, "tokens");
    const json& left_out = record.at("left_out");
    if (!left_out.empty()) {
      method->left_out = StrCat(" (at ", Digits(static_cast<double>(Length(left_out.at(0), "N"))),
                                ": ", left_out.at(0).at("why").get<std::string>(), ")");
    }
  } else {
    throw InputError("a record of ", Quote(name));
  }
}

plot::Plot Result::Panel(Of of, const char* title, const char* unit) const {
  plot::Plot panel{
      .title = title, .x = {"sequence length N", /*log=*/true}, .y = {unit, /*log=*/true}};
  double least = 1e300, most = 0, lowest_slope = 1e300;
  double square = 0;  // maximum of value / N^2 at the longest N, over quadratic methods
  for (const Method& method : methods_) {
    plot::Series series = MethodSeries(method.name, plot::Style::kLineAndPoints);
    for (const auto& [length, point] : (method.*of).points) {
      const auto n = static_cast<double>(length);
      series.x.push_back(n), series.y.push_back(point.value);
      least = std::min(least, point.value), most = std::max(most, point.value);
      lowest_slope = std::min(lowest_slope, point.value / n);
    }
    if ((method.*of).exponent.value_or(0) > 1.5 && !series.x.empty()) {
      square = std::max(square, series.y.back() / (series.x.back() * series.x.back()));
    }
    panel.series.push_back(series);
  }
  if (lengths_.size() < 2) return panel;
  // Guide lines below the flattest method and above the steepest, within the range of the axes.
  const auto low = static_cast<double>(lengths_.front()),
             high = static_cast<double>(lengths_.back());
  const auto guide = [&](const char* label, double scale, double power) {
    constexpr int kGray = 6;  // of the palette
    const double from = std::max(low, std::pow(0.5 * least / scale, 1 / power));
    const double to = std::min(high, std::pow(2 * most / scale, 1 / power));
    if (from >= to) return;
    panel.series.push_back({.label = label,
                            .x = {from, to},
                            .y = {scale * std::pow(from, power), scale * std::pow(to, power)},
                            .color = kGray,
                            .dotted = true});
  };
  guide("slopes 1 and 2", 0.6 * lowest_slope, 1);
  guide("", 1.7 * (square == 0 ? most / (high * high) : square), 2);
  return panel;
}

json Result::Table(Of of) const {
  json rows = json::array(), exponents = json::array(), limits = json::array();
  for (const long length : lengths_) {
    json cells = json::array();
    for (const Method& method : methods_) {
      const auto point = (method.*of).points.find(length);
      cells.push_back(point == (method.*of).points.end() ? json() : json(point->second.value));
    }
    rows.push_back({{"N", length}, {"cells", cells}});
  }
  for (const Method& method : methods_) {
    const Quantity& quantity = method.*of;
    exponents.push_back(quantity.exponent ? json(*quantity.exponent) : json());
    limits.push_back(quantity.points.empty() ? json()
                                             : json(quantity.points.rbegin()->second.ratio));
  }
  json names = json::array();
  for (const Method& method : methods_) names.push_back(method.name);
  return {{"methods", names}, {"rows", rows}, {"exponents", exponents}, {"limits", limits}};
}

std::string Join(const std::vector<std::string>& parts, const char* between) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : between) + part;
  return joined.empty() ? "not measured" : joined;
}

std::string Result::Growth(const std::string& prefix, double power) const {
  std::vector<std::string> parts;
  for (const Method& method : methods_) {
    if (!method.name.starts_with(prefix)) continue;
    const auto part = [&](const char* what, const Quantity& quantity) -> std::string {
      if (!quantity.exponent) return StrCat(what, " not fitted");
      char exponent[32];
      std::snprintf(exponent, sizeof(exponent), "%.2f", *quantity.exponent);
      const bool holds = std::abs(*quantity.exponent - power) <= kNear;
      return StrCat(what, " N^", exponent, holds ? " (as there)" : " (not so here)");
    };
    parts.push_back(StrCat("`", method.name, "`: ", part("time", method.time), ", ",
                           part("memory", method.memory)));
  }
  return Join(parts, "; ");
}

std::string Result::Comparison(Of of, const char* better) const {
  const auto linear = std::find_if(methods_.begin(), methods_.end(),
                                   [](const Method& m) { return m.name == "linear"; });
  if (linear == methods_.end()) return "not measured";
  std::vector<double> factors;
  std::vector<std::string> exceptions;
  size_t won = 0;
  for (const Method& method : methods_) {
    std::vector<double> lost;
    for (const auto& [length, point] : (method.*of).points) {
      const auto own = ((*linear).*of).points.find(length);
      if (method.name == linear->name || own == ((*linear).*of).points.end()) continue;
      factors.push_back(point.value / own->second.value);
      if (factors.back() > 1)
        ++won;
      else
        lost.push_back(factors.back());
    }
    if (lost.empty()) continue;
    const auto [least, most] = std::minmax_element(lost.begin(), lost.end());
    const std::string from = Digits(*least), to = Digits(*most);
    exceptions.push_back(StrCat("`", method.name, "` at ", lost.size(), " of ",
                                (method.*of).points.size(), " lengths (",
                                from == to ? from : StrCat(from, " to ", to), " times linear's)"));
  }
  if (factors.empty()) return "not measured";
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  return StrCat(better, " in ", won, " of ", factors.size(), " comparisons, by ", Digits(*least),
                " to ", Digits(*most), " times",
                exceptions.empty() ? "" : "; not against " + Join(exceptions, ", "));
}

std::string Result::Rounds(Of of, const char* unit) const {
  std::vector<const Method*> methods;
  for (const Method& method : methods_) {
    if (method.name.starts_with("lsh-") && !(method.*of).points.empty()) methods.push_back(&method);
  }
  for (auto length = lengths_.rbegin(); length != lengths_.rend(); ++length) {
    const bool common = std::all_of(methods.begin(), methods.end(), [&](const Method* method) {
      return (method->*of).points.contains(*length);
    });
    if (!common || methods.size() < 2) continue;
    std::vector<std::string> parts;
    const double first = (methods[0]->*of).points.at(*length).value;
    for (const Method* method : methods) {
      const double value = (method->*of).points.at(*length).value;
      parts.push_back(
          StrCat("`", method->name, "` ", Digits(value), " ", unit,
                 method == methods[0] ? "" : StrCat(" (", Digits(value / first), "x)")));
    }
    return StrCat("at N = ", Digits(static_cast<double>(*length)), " ", Join(parts, ", "));
  }
  return "not measured";
}

std::string Result::Longest() const {
  std::vector<std::string> parts;
  for (const Method& method : methods_) {
    const auto& points = method.time.points;
    const std::string length =
        points.empty() ? "none" : Digits(static_cast<double>(points.rbegin()->first));
    parts.push_back(StrCat("`", method.name, "` ", length,
                           method.left_out.empty() ? ", the longest asked for" : method.left_out));
  }
  return Join(parts, "; ");
}

class Figure1 : public Experiment {
 public:
  void AddOptions(CLI::App& verb) override {
    const auto forward = [&](const char* name, const char* help, const char* type,
                             const CLI::Validator& check) {
      verb.add_option_function<std::string>(
              name, [this, name](const std::string& value) { Append(bench_, name, value); }, help)
          ->type_name(type)
          ->check(check);
    };
    forward("--max-n", "The longest sequence (default: 65536)", "N", cli::Between(512, 1 << 20));
    verb.add_option("--methods", methods_,
                    "Of linear, softmax, softmax-plain, lsh-1, lsh-4, lsh-8 (default: all)")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("NAMES");
    forward("--memory", "Memory that a pass may take (default: 60% of what is free)", "GB",
            cli::Between(0.001, 1e6));
    forward("--seconds", "About how long to time each case (default: 1)", "N",
            cli::Between(0, 600));
    forward("--threads", "Threads to use (default: every processor)", "N", cli::Between(0, 1024));
  }

  std::vector<std::string> Pictures() const override { return {"figure1"}; }

  json Measure(const Lab& lab) override {
    json records = json::array();
    for (const std::string& method : methods_) {
      std::vector<std::string> bench = {"bench", "attention", "--json", "--methods", method};
      bench.insert(bench.end(), bench_.begin(), bench_.end());
      for (json& record : lab.Measure(method, bench)) records.push_back(std::move(record));
    }
    return {{"records", records}};
  }

  // Accepts this experiment's record or the output of 'linnet bench attention --json'.
  Drawing Draw(const json& record) const override {
    const Result result(record.is_array() ? record : record.at("records"));
    json values = result.origin();
    for (const auto& [name, of] :
         {std::pair<const char*, Of>{"time", &Method::time}, {"memory", &Method::memory}}) {
      values[name] = result.Table(of);
    }
    values["near"] = kNear;
    values["beside"] = {
        {"softmax", result.Growth("softmax", 2)},
        {"linear", result.Growth("linear", 1)},
        {"lsh", result.Growth("lsh-", 1)},
        {"faster", result.Comparison(&Method::time, "faster")},
        {"less", result.Comparison(&Method::memory, "less")},
        {"rounds_time", result.Rounds(&Method::time, "ms")},
        {"rounds_memory", result.Rounds(&Method::memory, "MB")},
        {"longest", result.Longest()},
    };
    const std::string subtitle = StrCat(
        values.at("heads").get<long>(), " heads of ", values.at("dim").get<long>(), ", fp32, ",
        values.at("causal").get<std::string>(), "; ", values.at("threads").get<long>(),
        values.at("threads") == 1 ? " thread" : " threads", "; each point a process of its own");
    return {
        .values = values,
        .figures = {{"figure1",
                     {.title = "Forward and backward pass of attention, a sample",
                      .subtitle = subtitle,
                      .panels = {result.Panel(&Method::time, "Time", "ms a sample"),
                                 result.Panel(&Method::memory, "Peak memory", "MB a sample")}}}}};
  }

 private:
  std::vector<std::string> bench_,
      methods_ = {"linear", "softmax", "softmax-plain", "lsh-1", "lsh-4", "lsh-8"};
};

}  // namespace

const Row kFigure1 = {
    "figure1", "Time and memory of attention against the length (section 4.1.2)",
    "Runs 'linnet bench attention' ('--help' there says what it "
    "measures) a method at a time, draws time and\n"
    "memory a sample, and sets them beside the paper's words. Stopped, it goes on where it was.",
    "  linnet reproduce figure1 --out docs/results\n"
    "  linnet reproduce figure1 --max-n 4096\n"
    "  linnet reproduce figure1 --from figure1.json --out /tmp\n",
    Make<Figure1>};

}  // namespace linnet::experiments
