// linnet reproduce table4, table5: speed of image generation (appendix C of the paper). Table 4
// times batches of images and measures the memory per image; it times softmax attention without and
// with a cache. Table 5 times one image, and each token as the image grows.
#include "experiments/experiment.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// The data sets that have records. Each gets "rows", one per method, and the rows of softmax and
// linear as "softmax" and "linear".
json Sets(const json& about, const json& records) {
  json sets = json::array();
  for (json set : about.at("datasets")) {
    const json own = RecordsWith(records, "dataset", set["set"]);
    if (own.empty()) continue;
    set["rows"] = WithRuns(set["methods"], own);
    for (const char* name : {"softmax", "linear"})
      set[name] = FindRecord(set["rows"], "name", name);
    sets.push_back(std::move(set));
  }
  return sets;
}

// Adds the points of table 5's figure to a record: "at" lists numbers of previous tokens,
// "microseconds" the times of the next token (with a state: the time per token in each eighth).
void AddPoints(json& run) {
  const bool stateless = run.at("stateless");
  const std::string times = stateless ? "us_at_lengths" : "us_by_eighths";
  CheckRecord(run, {{times, {{"empty", "has no times of tokens"}}}, {times + ".*", {1e-9, 1e15}}});
  run["microseconds"] = run.at(times);
  if (stateless) {
    CheckRecord(run, {{"lengths.*", {1, 1e9}}});
    run["at"] = run.at("lengths");
  } else {
    const double length = run.at("N").get<double>() - 1;
    for (int eighth = 0; eighth < 8; ++eighth) run["at"].push_back(length * (eighth + 0.5) / 8);
  }
  if (run["at"].size() != run["microseconds"].size()) {
    throw InputError("'", times, "' has the wrong number of times");
  }
}

}  // namespace

void DeriveTable4(const json& about, json& values) {
  values["sets"] = Sets(about, values.at("records"));
  const json& datasets = about.at("datasets");
  values["by_method"] = WithRuns(datasets[0].at("methods"), values.at("records"));
  for (size_t m = 0; m < values["by_method"].size(); ++m) {
    for (const json& set : datasets) {
      values["by_method"][m]["paper_rates"].push_back(set.at("methods")[m].at("paper").at("rate"));
    }
  }
}

void DeriveTable5(const json& about, json& values) {
  for (json& run : values.at("records")) AddPoints(run);
  values["sets"] = Sets(about, values["records"]);
  for (const json& set : values["sets"]) {
    for (const json& row : set.at("rows")) {
      if (row.at("runs").size() < 2) continue;
      throw InputError("has two records of ", row.at("label").get<std::string>(), ", ",
                       set.at("title").get<std::string>());
    }
  }
}

}  // namespace linnet::experiments
