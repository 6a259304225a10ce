// linnet reproduce table3: phone recognition (§4.3) with linear, softmax and Reformer attention and
// a bidirectional LSTM, trained for equal times; and the cost of a second of audio as utterances
// grow.
#include <algorithm>
#include <cmath>
#include <iostream>

#include "experiments/experiment.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

std::vector<std::string> Flags(const Call& call, const json& method, int seed) {
  std::vector<std::string> flags = {"speech"};
  Append(flags, method.at("flags"), "--data", call.options.at("data"), "--seed", seed,
         "--precision", method.at("lstm") ? "fp32" : call.options.at("precision"),
         "--checkpoint-every", 200);
  call.AppendThreads(flags);
  return flags;
}

// The number of updates that fit into the minutes.
int64_t StepsOf(const Call& call, const json& method) {
  const double each =
      call.lab.SecondsAnUpdate(method.at("label"), method.at("name"), Flags(call, method, 1));
  return std::max<int64_t>(1, std::llround(60 * call.options.at("minutes").get<double>() / each));
}

json Train(const Call& call, const json& method, int seed) {
  const std::string label = method.at("label"), name = method.at("name");
  const std::string data = call.options.at("data");
  const double seconds = 60 * call.options.at("minutes").get<double>();
  const int64_t steps = StepsOf(call, method);
  const json trained = call.lab.Train(StrCat(label, ", seed ", seed), StrCat(name, "-", seed),
                                      Flags(call, method, seed), steps);
  json curve = json::array();
  for (const json& point : CurveOf(trained.at("metrics"), {"validation_phone_error_rate"})) {
    const double share = point.at(0).get<double>() / static_cast<double>(steps);
    curve.push_back({point.at(0), seconds * share, point.at(1)});
  }
  double memory = 0;
  for (const json& record : trained.at("metrics")) {
    memory = std::max(memory, record.value("peak_memory", 0.0));
  }
  const json& info = trained.at("info");
  json result = {{"method", name},
                 {"seed", seed},
                 {"steps", steps},
                 {"peak_memory", memory},
                 {"curve", curve},
                 {"epochs", info.at("training").at("epochs")},
                 // The planned time: the trainings themselves may have run beside other load.
                 {"seconds", seconds},
                 {"parameters", info.at("parameters")}};
  const std::string model = trained.at("run").get<std::string>() + "/model.safetensors";
  for (const char* split : {"validation", "test"}) {
    // Not kept: it may name recordings that are repaired before the next call.
    const json eval = call.lab.Run({"eval", model, "--data", data, "--split", split, "--json"});
    if (eval.at("left_out") != 0) {
      throw InputError(data, ": ", eval.at("left_out").dump(), " recordings of its ", split,
                       " set cannot be read (above); repair them, and the same command goes on");
    }
    result[split] = eval.at("phone_error_rate");
    result["real_time_factor"] = eval.at("real_time_factor");
  }
  return result;
}

}  // namespace

void MeasureTable3(const Call& call, json& record) {
  record.update(Origin());
  record.update({{"minutes", call.options.at("minutes")},
                 {"precision", call.options.at("precision")},
                 {"threads", call.Threads()}});
  // Times all methods one right after the other, so that other load affects all of them.
  for (const json& method : call.about.at("methods")) StepsOf(call, method);
  for (const json& method : call.about.at("methods")) {
    const int seeds = method.at("several_seeds") ? call.options.at("seeds").get<int>() : 1;
    for (int seed = 1; seed <= seeds; ++seed) record["runs"].push_back(Train(call, method, seed));
  }
  if (record.contains("lengths")) return;
  std::cerr << "timing updates against the length of utterances\n";
  std::vector<std::string> bench = {"bench", "speech", "--json"};
  Append(bench, "--precision", call.options.at("precision"));
  call.AppendThreads(bench);
  record["lengths"] = call.lab.Measure("lengths", bench);
}

void DeriveTable3(const json& about, json& values) {
  values["rows"] = json::array();
  values["all_runs"] = json::array();
  for (json& row : WithRuns(about.at("methods"), values.at("runs"))) {
    if (row["runs"].empty()) continue;
    if (row["runs"].size() > 1) row["seeds"] = row["runs"].size();
    for (json run : row["runs"]) {
      run["label"] = row["label"];
      values["all_runs"].push_back(std::move(run));
    }
    values["rows"].push_back(std::move(row));
  }
  values["by_length"] = WithRuns(about.at("methods"), values.at("lengths"));
  values["length_rows"] = Pivot(values.at("lengths"), about.at("methods"), "seconds");
}

}  // namespace linnet::experiments
