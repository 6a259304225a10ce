// linnet reproduce batch: the time of a recurrent step per sequence against the batch size, of
// linear attention and of softmax attention with a cache, beside lower bounds on this machine and
// on a GPU of the paper.
#include <algorithm>
#include <set>

#include "experiments/experiment.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

double Number(const json& record, const char* field) { return record.at(field).get<double>(); }

bool Cached(const json& record) { return record.at("attention") == "full"; }

// Bytes of a sequence's state that a step reads: the filled part of the cache of keys and values,
// or the sums of linear attention in fp32.
double ReadBytes(const json& record, const json& about) {
  if (Cached(record)) {
    return Number(record, "state_bytes") * Number(record, "mean_position") / Number(record, "N");
  }
  const double heads = about.at("heads"), dim = about.at("dim");
  return Number(record, "layers") * heads * dim * (dim + 1) * sizeof(float);
}

// Microseconds to move `bytes` and to compute a token's products, at rates in 1e9 per second.
json Bounds(double bytes, const json& record, double bytes_rate, double products_rate) {
  const double memory = bytes / bytes_rate / 1e3;
  const double products = Number(record, "token_operations") / products_rate / 1e3;
  return {{"memory", memory}, {"products", products}, {"bound", std::max(memory, products)}};
}

// Adds "moved", the bytes that a step reads per sequence, and "here", its lower bounds. The rates
// are the best of all records, since other load on the machine only slows them down; reading more
// bytes is never faster.
void AddBounds(json& records, const json& about) {
  const auto occupied = [](const json& record) {
    return Number(record, "weight_bytes") + Number(record, "batch") * Number(record, "state_bytes");
  };
  for (json& record : records) {
    double bytes_rate = 0, products_rate = 0;
    for (const json& other : records) {
      products_rate = std::max(products_rate, Number(other, "product_gops"));
      if (occupied(other) < occupied(record)) continue;
      bytes_rate = std::max(bytes_rate, Number(other, "read_gbs"));
    }
    record["moved"] =
        ReadBytes(record, about) + Number(record, "weight_bytes") / Number(record, "batch");
    record["here"] = Bounds(record["moved"], record, bytes_rate, products_rate);
  }
}

void CheckRun(const json& run, const json& method) {
  if (run.at("attention") != method.at("attention")) {
    throw InputError("has a record of ", method.at("label").get<std::string>(), " with attention '",
                     run.at("attention").get<std::string>(), "'");
  }
  if (Number(run, "mean_position") >= Number(run, "N")) {
    throw InputError("has a 'mean_position' of at least 'N'");
  }
}

// Sorts a method's runs by batch size. Adds the record of the largest batch as "largest", its
// bounds on the paper's GPU as "gpu", and the paper's microseconds per step and image as "paper".
void Complete(json& method, const json& set, const json& about) {
  json& runs = method["runs"];
  if (runs.empty()) {
    throw InputError("lacks the times of ", method.at("label").get<std::string>(), " for ",
                     set.at("title").get<std::string>());
  }
  for (const json& run : runs) CheckRun(run, method);
  const auto smaller = [](const json& a, const json& b) { return a.at("batch") < b.at("batch"); };
  std::sort(runs.begin(), runs.end(), smaller);
  method["largest"] = runs.back();
  const json &largest = method["largest"], &gpu = about.at("gpu");
  // Linear attention reads its sums and writes them.
  const double moved = ReadBytes(largest, about) * (Cached(largest) ? 1 : 2);
  method["gpu"] = Bounds(moved, largest, gpu.at("gbs"), gpu.at("gops"));
  method["paper"] = 1e6 / (Number(method, "paper_rate") * Number(set, "bytes"));
}

// A row for each batch size: {"batch", "linear", "stateful"}, which are records or null, and
// "factor", the time of the second divided by that of the first.
json ByBatch(const json& linear, const json& stateful) {
  std::set<int64_t> sizes;
  for (const json* method : {&linear, &stateful}) {
    for (const json& run : method->at("runs")) sizes.insert(run.at("batch").get<int64_t>());
  }
  json rows = json::array();
  for (const int64_t size : sizes) {
    json row = {{"batch", size},
                {"linear", FindRecord(linear.at("runs"), "batch", size)},
                {"stateful", FindRecord(stateful.at("runs"), "batch", size)}};
    if (!row["linear"].is_null() && !row["stateful"].is_null()) {
      row["factor"] = Number(row["stateful"], "value") / Number(row["linear"], "value");
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

void DeriveBatch(const json& about, json& values) {
  AddBounds(values.at("records"), about);
  values["sets"] = json::array();
  for (json set : about.at("datasets")) {
    const json own = RecordsWith(values["records"], "dataset", set["set"]);
    if (own.empty()) continue;
    set["methods"] = WithRuns(set["methods"], own);
    for (json& method : set["methods"]) Complete(method, set, about);
    for (const char* name : {"linear", "stateful"}) {
      set[name] = FindRecord(set["methods"], "name", name);
    }
    set["rows"] = ByBatch(set["linear"], set["stateful"]);
    values["sets"].push_back(std::move(set));
  }
}

}  // namespace linnet::experiments
