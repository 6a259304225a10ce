// linnet reproduce table1, table2: byte-wise image models (section 4.2 of the paper) with softmax,
// LSH and linear attention: bits/dim and images per second. figure5: the training curves of these
// tables and of table 3.
#include <filesystem>

#include "experiments/experiment.h"
#include "experiments/image_lab.h"
#include "experiments/measure.h"

namespace linnet::experiments {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Networks of the paper's size are timed only if more than this much of the budget is left.
constexpr double kPaperSeconds = 600;

// The methods that the record has, each with its training as "run" and, if the record has them, its
// throughput as "speed" and that of the paper's network as "sized".
json Rows(const json& about, const json& record) {
  json rows = json::array();
  for (json& row : MethodsRun(about.at("methods"), record.at("runs"))) {
    const json& name = row["name"];
    if (record.contains("throughput")) {
      row["speed"] = FindRecord(record.at("throughput"), "method", name);
      row["sized"] = FindRecord(record.at("paper_throughput"), "method", name);
      if (row["speed"].is_null()) continue;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

void MeasureImageTable(const Call& call, json& record) {
  ImageLab images(call);
  record.update(Origin());
  record.update(images.settings());
  record["runs"] = images.Train();
  const std::string table = call.about.at("table");
  record["command"] = StrCat("linnet reproduce ", table, images.CommandOptions());
  record["threads"] = call.Threads();
  json values = {{"folder", call.lab.folder().string()},
                 {"processors", call.Threads()},
                 {"threads", call.options.at("threads")}};
  const Scope about{call.about}, scope{values, &about};
  record["throughput"] = Measured(call, call.about.at("measure"), scope);
  record["paper_throughput"] = json::array();
  if (images.SecondsLeft() <= kPaperSeconds || record.at("scale") == "tiny") return;
  record["paper_throughput"] = Measured(call, call.about.at("measure_paper"), scope);
  for (json& speed : record["paper_throughput"]) {
    const double seconds = speed.at("value").get<double>() / 1e3;
    speed.erase("value");
    if (!speed.contains("whole_ms_per_image")) continue;
    speed["seconds"] = seconds;
    speed["whole_seconds"] = speed["whole_ms_per_image"].get<double>() / 1e3;
    speed.erase("whole_ms_per_image");
  }
}

void DeriveImageTable(const json& about, json& values) {
  json& rows = values["rows"] = Rows(about, values);
  values["softmax"] = FindRecord(rows, "name", "softmax");
  if (values["softmax"].is_null()) throw InputError("has no run of softmax");
  values["trainings"] = Trainings(about, values);
  // Show the actual times of trainings planned for equal times; they vary with other load.
  bool taken = values.at("equal_time");
  for (const json& row : rows) taken = taken && row.at("run").contains("training_seconds");
  values["taken"] = taken;
}

void MeasureFigure5(const Call& call, json& record) {
  const fs::path folder = call.Get("tables", call.lab.folder().string());
  for (const char* name : {"table1", "table2", "table3"}) {
    const fs::path path = folder / StrCat(name, ".json");
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    record[name] = ReadRecord(path);
    CheckFile(path, "", [&] {
      json values = {{name, record[name]}};
      DeriveFigure5(call.about, values);
    });
  }
  if (record.empty()) {
    throw InputError(folder.string(),
                     ": has none of table1.json, table2.json and table3.json, whose training "
                     "curves figure5 draws; run 'linnet reproduce table1 --out DIR' first");
  }
}

void DeriveFigure5(const json& about, json& values) {
  values["images"] = json::array();
  for (const char* name : {"table1", "table2", "table3"}) {
    if (!values.contains(name)) continue;
    json table = Describe(name);
    const json &record = values[name], rules = table["record"];
    CheckRecord(record, rules);
    if (table.contains("dataset")) {
      table["trainings"] = Trainings(table, record);
      table.update(record);
      table["rows"] = Rows(table, record);
      table["softmax"] = FindRecord(table["rows"], "name", "softmax");
      values["images"].push_back(table);
    } else {
      values["speech"] = record;
      values["speech"]["rows"] = WithRuns(about.at("speech_methods"), record.at("runs"));
    }
  }
}

}  // namespace linnet::experiments
