// linnet reproduce figure1: time and memory of attention against sequence length (section 4.1.2 of
// the paper), measured by `linnet bench attention`.
#include <algorithm>
#include <cmath>

#include "experiments/experiment.h"
#include "experiments/measure.h"
#include "linnet/io/json.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// The records of 'linnet bench attention', grouped by quantity and method.
struct Sorted {
  json methods = json::array();  // {"name", "left_out", "time": exponent of N, "memory": exponent}
  json points = {{"time", json::array()}, {"memory", json::array()}};  // by method and N
  json origin = json::object();
};

// Adds one record, named "attention/METHOD/KIND". `kinds` has the rules for valid records by KIND.
void Take(const json& record, const json& kinds, Sorted& sorted) {
  const std::string name = record.at("name");
  const size_t first = name.find('/'), last = name.rfind('/');
  const std::string kind = name.substr(last == name.npos ? 0 : last + 1);
  if (!name.starts_with("attention/") || first == last || !kinds.contains(kind)) {
    throw InputError("has a record of ", Quote(name));
  }
  CheckRecord(record, kinds.at(kind));
  const std::string of = name.substr(first + 1, last - first - 1);
  const auto is_same = [&](const json& method) { return method.at("name") == of; };
  json& methods = sorted.methods;
  if (std::none_of(methods.begin(), methods.end(), is_same)) {
    methods.push_back(
        {{"name", of}, {"left_out", nullptr}, {"time", nullptr}, {"memory", nullptr}});
  }
  json& method = *std::find_if(methods.begin(), methods.end(), is_same);
  if (kind == "time" || kind == "memory") {
    if (!record.at("checked").get<bool>()) throw InputError("has an unchecked record of ", of);
    json& point = sorted.points[kind].emplace_back(record);
    point["method"] = of;
    for (const char* field : {"heads", "dim"}) sorted.origin[field] = record.at(field);
    sorted.origin["causal"] = record.at("causal").get<bool>() ? "causal" : "not causal";
  } else if (kind == "longest") {
    for (const char* field : {"machine", "date", "isa", "threads", "tokens"}) {
      sorted.origin[field] = record.at(field);
    }
    if (!record.at("left_out").empty()) method["left_out"] = record.at("left_out")[0];
  } else {
    method[kind.substr(0, kind.find('-'))] = record.at("value");  // an exponent
  }
}

// Guide lines of slopes 1 and 2 within the range of the axes: slope 1 below all methods, slope 2
// above the quadratic ones.
json Guides(const json& methods, double low, double high) {
  double least = 1e300, most = 0, lowest_slope = 1e300;
  double square = 0;  // maximum of value / N^2 at the longest N, over quadratic methods
  for (const json& method : methods) {
    for (const json& point : method.at("runs")) {
      const double n = point.at("N"), value = point.at("value");
      least = std::min(least, value), most = std::max(most, value);
      lowest_slope = std::min(lowest_slope, value / n);
    }
    const json& exponent = method.at("exponent");
    if (method.at("runs").empty() || exponent.is_null() || exponent <= 1.5) continue;
    const json& last = method.at("runs").back();
    const double n = last.at("N"), value = last.at("value");
    square = std::max(square, value / (n * n));
  }
  json guides = json::array();
  const auto guide = [&](const char* label, double scale, double power) {
    const double from = std::max(low, std::pow(0.5 * least / scale, 1 / power));
    const double to = std::min(high, std::pow(2 * most / scale, 1 / power));
    if (from >= to) return;
    guides.push_back({{"label", label},
                      {"x", {from, to}},
                      {"y", {scale * std::pow(from, power), scale * std::pow(to, power)}}});
  };
  if (low == high) return guides;
  guide("slopes 1 and 2", 0.6 * lowest_slope, 1);
  guide("", 1.7 * (square == 0 ? most / (high * high) : square), 2);
  return guides;
}

// The factors of every other method's values over linear attention's, at every common length. "won"
// counts the factors above 1, "exceptions" lists the others by method.
json Comparison(const json& methods) {
  json factors = json::array(), exceptions = json::array();
  const json linear = FindRecord(methods, "name", "linear");
  size_t won = 0;
  for (const json& method : methods) {
    if (linear.is_null() || method == linear) continue;
    json lost = json::array();
    for (const json& point : method.at("runs")) {
      const json own = FindRecord(linear.at("runs"), "N", point.at("N"));
      if (own.is_null()) continue;
      factors.push_back(point.at("value").get<double>() / own.at("value").get<double>());
      if (factors.back() > 1) {
        ++won;
      } else {
        lost.push_back(factors.back());
      }
    }
    if (lost.empty()) continue;
    exceptions.push_back(
        {{"name", method.at("name")}, {"lost", lost}, {"lengths", method.at("runs").size()}});
  }
  return {{"factors", factors}, {"won", won}, {"exceptions", exceptions}};
}

// The values of the LSH methods at their longest common length, with the factors over the first;
// null for fewer than two methods.
json Rounds(const json& methods) {
  json hashing = json::array();
  for (const json& method : methods) {
    const std::string name = method.at("name");
    if (name.starts_with("lsh-") && !method.at("runs").empty()) hashing.push_back(method);
  }
  if (hashing.size() < 2) return nullptr;
  const json& lengths = hashing[0]["runs"];
  for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
    json costs = json::array();
    for (const json& method : hashing) {
      json point = FindRecord(method.at("runs"), "N", length->at("N"));
      if (point.is_null()) break;
      const double factor = point.at("value").get<double>() / length->at("value").get<double>();
      if (!costs.empty()) point["factor"] = factor;
      costs.push_back(std::move(point));
    }
    if (costs.size() == hashing.size()) return {{"N", length->at("N")}, {"costs", costs}};
  }
  return nullptr;
}

// A claim of the paper about the methods whose names begin with claim["of"], with their exponents.
// A claim holds if the exponent differs from claim["power"] by at most `near`.
json Growth(const json& claim, const json& methods, double near) {
  json row = claim;
  row["measured"] = json::array();
  const std::string prefix = claim.at("of");
  for (json method : methods) {
    if (!method.at("name").get<std::string>().starts_with(prefix)) continue;
    for (const char* what : {"time", "memory"}) {
      if (method[what].is_null()) continue;
      const double exponent = method[what];
      const bool holds = std::abs(exponent - claim.at("power").get<double>()) <= near;
      method[what] = {{"exponent", exponent}, {"holds", holds}};
    }
    row["measured"].push_back(std::move(method));
  }
  return row;
}

}  // namespace

void MeasureFigure1(const Call& call, json& record) {
  const Scope about{call.about};
  json values = call.options;
  values["asked"] = call.Get("methods", call.about.at("all_methods"));
  record["records"] = Measured(call, call.about.at("measure"), {values, &about});
}

void DeriveFigure1(const json& about, json& values) {
  Sorted sorted;
  for (const json& record : values.at("records")) Take(record, about.at("kinds"), sorted);
  std::vector<double> lengths;
  for (const json& point : sorted.points["time"]) {
    lengths.push_back(point.at("N"));
    bool there = false;
    for (const json& memory : sorted.points["memory"]) {
      there |= memory.at("N") == point.at("N") && memory.at("method") == point.at("method");
    }
    if (there) continue;
    throw InputError("has no memory of ", point.at("method").get<std::string>(),
                     " at N = ", point.at("N").dump());
  }
  if (lengths.empty()) throw InputError("holds no measurement");
  const auto [low, high] = std::minmax_element(lengths.begin(), lengths.end());
  values.update(sorted.origin);
  for (const char* what : {"time", "memory"}) {
    json& points = sorted.points[what];
    std::stable_sort(points.begin(), points.end(),
                     [](const json& a, const json& b) { return a.at("N") < b.at("N"); });
    json methods = WithRuns(sorted.methods, points);
    for (json& method : methods) method["exponent"] = method[what];
    values[what] = {{"methods", methods},
                    {"rows", Pivot(points, sorted.methods, "N")},
                    {"guides", Guides(methods, *low, *high)},
                    {"comparison", Comparison(methods)},
                    {"rounds", Rounds(methods)}};
  }
  values["methods"] = sorted.methods;
  values["growth"] = json::array();
  for (const json& claim : about.at("growth")) {
    values["growth"].push_back(Growth(claim, sorted.methods, about.at("near")));
  }
}

}  // namespace linnet::experiments
