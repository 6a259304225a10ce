#include "experiments/record.h"

#include <algorithm>
#include <cmath>

#include "experiments/page.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"
#include "linnet/program/machine.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

void CheckValue(const std::string& field, const json& value, const json& rule) {
  if (rule.contains("in")) {
    const json& allowed = rule["in"];
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    throw InputError("'", field, "' is not one of ", allowed.dump());
  }
  if (rule.is_object()) {
    if (value.get<json::array_t>().empty()) throw InputError(rule.at("empty").get<std::string>());
  } else if (rule == "text") {
    value.get<std::string>();
  } else {
    const double number = value;
    const bool range = rule.is_array(), whole = rule == "whole";
    const double least = range ? rule[0].get<double>() : rule == "0 or more" ? 0 : 1e-300;
    const double most = range ? rule[1].get<double>() : 1e18;
    if (number >= least && number <= most && (!whole || number == std::floor(number))) return;
    throw InputError("'", field, "' must be ",
                     range   ? StrCat("between ", least, " and ", most)
                     : whole ? "a whole number above 0"
                             : rule.get<std::string>());
  }
}

// Checks a value, or every value in lists nested `lists` deep: one level for each `*` in the path.
void CheckValues(const std::string& field, const json& value, const json& rule, ptrdiff_t lists) {
  if (lists == 0) return CheckValue(field, value, rule);
  for (const json& element : value) CheckValues(field, element, rule, lists - 1);
}

}  // namespace

json ParseRecord(const std::string& text, const std::string& where) {
  std::string fault;
  json value = ParseJson(text, 8, fault);
  if (!fault.empty()) throw InputError(where, ": ", fault);
  return value;
}

json ReadRecord(const fs::path& path) { return ParseRecord(ReadFile(path, size_t{1} << 26), path); }

void WriteRecord(const fs::path& path, const json& record) {
  WriteFileAtomically(path, record.dump(1) + "\n");
}

void CheckFile(const fs::path& file, const std::string& remedy, FunctionRef<void()> check) {
  std::string why;
  try {
    return check();
  } catch (const json::exception&) {
    why = "a field is missing or has the wrong type";
  } catch (const InputError& error) {
    why = error.what();
  }
  throw InputError(file.string(), ": ", why, remedy);
}

json CurveOf(const plot::RunLog& log, const std::vector<std::string>& metrics) {
  json curve = json::array();
  const plot::Track* const first = log.Find(metrics.at(0));
  for (size_t i = 0; first != nullptr && i < first->step.size(); ++i) {
    json& point = curve.emplace_back(json::array({std::llround(first->step[i])}));
    for (const std::string& metric : metrics) point.push_back(log.Find(metric)->value.at(i));
  }
  return curve;
}

void CheckRecord(const json& record, const json& rules) {
  for (const auto& [rule_path, rule] : rules.items()) {
    const bool optional = rule_path.ends_with('?');
    const std::string path = rule_path.substr(0, rule_path.size() - optional);
    const std::optional<json> value = Find(path, {record});
    if (!value && optional) continue;
    std::string field = path;
    while (field.ends_with(".*")) field.erase(field.size() - 2);
    CheckValues(field.substr(field.rfind('.') + 1), value ? *value : record.at(path), rule,
                std::count(path.begin(), path.end(), '*'));
  }
}

json Origin() { return {{"machine", cli::MachineName()}, {"date", cli::Today()}}; }

json FindRecord(const json& records, const char* key, const json& value) {
  for (const json& record : records) {
    if (record.at(key) == value) return record;
  }
  return nullptr;
}

json RecordsWith(const json& records, const char* key, const json& value) {
  json found = json::array();
  for (const json& record : records) {
    if (record.at(key) == value) found.push_back(record);
  }
  return found;
}

json ValueOf(const json& records, const char* key, const json& value) {
  const json record = FindRecord(records, key, value);
  return record.is_null() ? record : record.at("value");
}

json WithRuns(const json& methods, const json& runs) {
  json joined = json::array();
  for (json method : methods) {
    method["runs"] = json::array();
    for (const json& run : runs) {
      if (run.at("method") == method.at("name")) method["runs"].push_back(run);
    }
    method["run"] = method["runs"].empty() ? json() : method["runs"].front();
    joined.push_back(std::move(method));
  }
  return joined;
}

json MethodsRun(const json& methods, const json& runs) {
  json joined = WithRuns(methods, runs);
  std::erase_if(joined.get_ref<json::array_t&>(),
                [](const json& method) { return method.at("run").is_null(); });
  return joined;
}

json Pivot(const json& records, const json& methods, const char* row) {
  json rows = json::array();
  const json columns = WithRuns(methods, records);
  for (const json& record : records) {
    const json& value = record.at(row);
    if (!FindRecord(rows, row, value).is_null()) continue;
    json cells = json::array();
    for (const json& column : columns) cells.push_back(ValueOf(column.at("runs"), row, value));
    rows.push_back({{row, value}, {"cells", cells}});
  }
  return rows;
}

}  // namespace linnet::experiments
