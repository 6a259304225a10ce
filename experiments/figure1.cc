// linnet reproduce figure1: time and memory of attention against sequence length (section 4.1.2 of
// the paper), measured by `linnet bench attention`.
#include <algorithm>
#include <cmath>

#include "experiments/experiment.h"
#include "experiments/page.h"
#include "linnet/io/json.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// The records of 'linnet bench attention' by kind. `kinds` has the rules for valid records of each
// kind; a record is named "attention/METHOD/KIND".
json ByKind(const json& records, const json& kinds) {
  json sorted;
  for (const auto& [kind, rules] : kinds.items()) sorted[kind] = json::array();
  for (const json& record : records) {
    const std::string name = record.at("name"), method = record.at("method");
    const std::string kind = name.substr(name.rfind('/') + 1);
    if (name != StrCat("attention/", method, "/", kind) || !kinds.contains(kind)) {
      throw InputError("has a record of ", Quote(name));
    }
    CheckRecord(record, kinds.at(kind));
    sorted[kind].push_back(record);
  }
  for (const char* kind : {"time", "memory"}) {
    std::stable_sort(sorted[kind].begin(), sorted[kind].end(),
                     [](const json& a, const json& b) { return a.at("N") < b.at("N"); });
  }
  return sorted;
}

// The methods: {"name", "left_out": the first length not measured and why, "time" and "memory": the
// exponents of N in their growth}. A missing value is null.
json Methods(const json& records, const json& sorted) {
  json methods = json::array();
  for (const json& record : records) {
    const json& name = record.at("method");
    if (!FindRecord(methods, "name", name).is_null()) continue;
    const auto value = [&](const char* kind, const char* path) {
      return Find(path, {FindRecord(sorted.at(kind), "method", name)}).value_or(nullptr);
    };
    methods.push_back({{"name", name},
                       {"left_out", value("longest", "left_out.0")},
                       {"time", value("time-exponent", "value")},
                       {"memory", value("memory-exponent", "value")}});
  }
  return methods;
}

// Guide lines on logarithmic axes, between the lengths `low` and `high` and within the range of
// values: one of slope 1 below all methods, one of slope 2 above the quadratic ones.
json Guides(const json& methods, double low, double high) {
  double least = 1e300, most = 0, slope = 1e300;
  double square = 0;  // maximum of value / N^2 at the longest N, over quadratic methods
  for (const json& method : methods) {
    double last = 0;
    for (const json& point : method.at("runs")) {
      const double n = point.at("N"), value = point.at("value");
      least = std::min(least, value), most = std::max(most, value);
      slope = std::min(slope, value / n), last = value / (n * n);
    }
    const json& exponent = method.at("exponent");
    if (!exponent.is_null() && exponent > 1.5) square = std::max(square, last);
  }
  json guides = json::array();
  const auto add = [&](const char* label, double scale, double power) {
    const double from = std::max(low, std::pow(0.5 * least / scale, 1 / power));
    const double to = std::min(high, std::pow(2 * most / scale, 1 / power));
    if (from >= to) return;
    guides.push_back({{"label", label},
                      {"x", {from, to}},
                      {"y", {scale * std::pow(from, power), scale * std::pow(to, power)}}});
  };
  add("slopes 1 and 2", 0.6 * slope, 1);
  add("", 1.7 * (square == 0 ? most / (high * high) : square), 2);
  return guides;
}

// Divides the values of each method by those of linear attention, at every common length. Counts
// these factors ("compared"), and lists those above 1 ("wins") and the others ("exceptions").
json Comparison(const json& methods) {
  json wins = json::array(), exceptions = json::array();
  const json linear = FindRecord(methods, "name", "linear");
  size_t compared = 0;
  for (const json& method : methods) {
    if (linear.is_null() || method == linear) continue;
    json lost = json::array();
    for (const json& point : method.at("runs")) {
      const json own = ValueOf(linear.at("runs"), "N", point.at("N"));
      if (own.is_null()) continue;
      const double factor = point.at("value").get<double>() / own.get<double>();
      (factor > 1 ? wins : lost).push_back(factor);
      ++compared;
    }
    if (lost.empty()) continue;
    exceptions.push_back(
        {{"name", method.at("name")}, {"lost", lost}, {"lengths", method.at("runs").size()}});
  }
  return {{"compared", compared}, {"wins", wins}, {"exceptions", exceptions}};
}

// The methods whose names begin with `prefix`.
json Named(json methods, const std::string& prefix) {
  std::erase_if(methods.get_ref<json::array_t&>(), [&](const json& method) {
    return !method.at("name").get<std::string>().starts_with(prefix);
  });
  return methods;
}

// Adds a field "measured" to a claim of the paper about growth: for each method whose name begins
// with claim["of"], whether |exponent - claim["power"]| <= near.
json Growth(const json& claim, const json& methods, double near) {
  json row = claim;
  row["measured"] = Named(methods, claim.at("of"));
  for (json& method : row["measured"]) {
    for (const char* what : {"time", "memory"}) {
      if (method[what].is_null()) continue;
      const double exponent = method[what];
      const bool holds = std::abs(exponent - claim.at("power").get<double>()) <= near;
      method[what] = {{"exponent", exponent}, {"holds", holds}};
    }
  }
  return row;
}

}  // namespace

void DeriveFigure1(const json& about, json& values) {
  json sorted = ByKind(values.at("records"), about.at("kinds"));
  const json empty = {{"empty", "holds no measurement"}};
  CheckRecord(sorted,
              {{"time", empty}, {"longest", empty}, {"memory", {{"empty", "holds no memory"}}}});
  const json all = Methods(values.at("records"), sorted);
  // Copies the fields that describe the network and the conditions; all records share them.
  values.update(sorted["time"].back());
  values.update(sorted["longest"].back());
  const json &first = sorted["time"].front(), &last = sorted["time"].back();
  for (const char* what : {"time", "memory"}) {
    json methods = WithRuns(all, sorted[what]);
    for (json& method : methods) method["exponent"] = method[what];
    values[what] = {{"methods", methods},
                    {"rows", Pivot(sorted[what], all, "N")},
                    {"guides", Guides(methods, first.at("N"), last.at("N"))},
                    {"comparison", Comparison(methods)},
                    {"lsh", Named(methods, "lsh-")}};
  }
  values["methods"] = all;
  values["growth"] = json::array();
  for (const json& claim : about.at("growth")) {
    values["growth"].push_back(Growth(claim, all, about.at("near")));
  }
}

}  // namespace linnet::experiments
