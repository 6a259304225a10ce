// linnet reproduce batch: the time of a recurrent step per image against the batch size, of linear
// attention and of softmax attention with a cache, beside what the bytes and operations of a step
// take on this machine and on the paper's GPU.
#include <algorithm>
#include <set>

#include "experiments/experiment.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// What a step needs of each image apart from the weights: bytes that are read or written, and
// operations.
struct Needs {
  double bytes, operations;
};
Needs NeedsOf(const json& record) {
  const double state = record.at("state_bytes"), length = record.at("N");
  // Linear attention reads and writes its state. Softmax reads the part of its cache that is full.
  const bool cache = record.at("attention") == "full";
  return {cache ? state * record.at("from").get<double>() / length : 2 * state,
          record.at("token_operations")};
}

// The microseconds that the needs of an image take at a machine's rates, in 1e9 per second.
json Bounds(const Needs& needs, double gigabytes, double gigaoperations) {
  const double memory = needs.bytes / gigabytes / 1e3;
  const double products = needs.operations / gigaoperations / 1e3;
  return {{"memory", memory}, {"products", products}, {"bound", std::max(memory, products)}};
}

// Adds "here", the bounds with the image's share of the weights, and "moved", the bytes.
void AddBounds(json& record) {
  Needs needs = NeedsOf(record);
  needs.bytes += record.at("weight_bytes").get<double>() / record.at("batch").get<double>();
  record["moved"] = needs.bytes;
  record["here"] = Bounds(needs, record.at("read_gbs"), record.at("product_gops"));
}

// A row for each batch size: {"batch", "linear": its record, "stateful": its record or null,
// "factor": the times of the second / of the first}.
json ByBatch(const json& linear, const json& stateful) {
  std::set<int64_t> sizes;
  for (const json& run : linear.at("runs")) sizes.insert(run.at("batch").get<int64_t>());
  for (const json& run : stateful.at("runs")) sizes.insert(run.at("batch").get<int64_t>());
  json rows = json::array();
  for (const int64_t size : sizes) {
    json row = {{"batch", size},
                {"linear", FindRecord(linear.at("runs"), "batch", size)},
                {"stateful", FindRecord(stateful.at("runs"), "batch", size)}};
    if (!row["linear"].is_null() && !row["stateful"].is_null()) {
      row["factor"] =
          row["stateful"].at("value").get<double>() / row["linear"].at("value").get<double>();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

void DeriveBatch(const json& about, json& values) {
  for (json& record : values.at("records")) AddBounds(record);
  values["sets"] = json::array();
  for (json set : about.at("datasets")) {
    json own = json::array();
    for (const json& record : values["records"]) {
      if (record.at("dataset") == set["set"]) own.push_back(record);
    }
    if (own.empty()) continue;
    set["methods"] = WithRuns(set["methods"], own);
    for (json& method : set["methods"]) {
      if (method["runs"].empty()) {
        throw InputError("lacks the times of ", method["label"].get<std::string>(), " for ",
                         set["title"].get<std::string>());
      }
      method["largest"] = method["runs"].back();
      const json& gpu = about.at("gpu");
      method["gpu"] = Bounds(NeedsOf(method["largest"]), gpu.at("gbs"), gpu.at("gops"));
      const double rate = method.at("paper_rate"), bytes = set.at("bytes");  // images/s; per image
      method["paper"] = 1e6 / (rate * bytes);
    }
    set["linear"] = set["methods"][0], set["stateful"] = set["methods"][1];
    set["rows"] = ByBatch(set["linear"], set["stateful"]);
    values["sets"].push_back(std::move(set));
  }
}

}  // namespace linnet::experiments
