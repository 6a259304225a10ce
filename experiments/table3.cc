// linnet reproduce table3: phone recognition (section 4.3 of the paper) with linear, softmax and
// Reformer attention and a bidirectional LSTM, trained for equal times; and the training time per
// second of audio against the length of utterances.
#include "experiments/experiment.h"
#include "experiments/measure.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// Adds the error rates of a trained model, and its recognition speed (real_time_factor).
void Evaluate(const Call& call, json& run) {
  const std::string data = call.options.at("data");
  const std::string model =
      call.lab.ModelOf(StrCat(run.at("method").get<std::string>(), "-", run.at("seed").get<int>()));
  for (const char* split : {"validation", "test"}) {
    // Not kept for the next call: the user may first repair recordings that could not be read.
    const json eval = call.lab.Run({"eval", model, "--data", data, "--split", split, "--json"});
    if (eval.at("left_out") != 0) {
      throw InputError(data, ": ", eval.at("left_out").dump(), " recordings of its ", split,
                       " set cannot be read (see above); repair them and repeat the command");
    }
    run[split] = eval.at("phone_error_rate");
    run["real_time_factor"] = eval.at("real_time_factor");
  }
}

}  // namespace

void MeasureTable3(const Call& call, json& record) {
  record.update(Origin());
  for (const char* option : {"minutes", "precision"}) record[option] = call.options.at(option);
  record["threads"] = call.Threads();
  json values = call.options;
  values.update({{"budget", nullptr}, {"equal_time", true}});
  const Scope about{call.about}, scope{values, &about};
  record["runs"] = Trained(call, scope, [&](const json&, json& run) {
    // The planned time, since other load may have slowed down the training itself.
    const double seconds = 60 * call.options.at("minutes").get<double>();
    run["seconds"] = seconds;
    for (json& point : run["curve"]) {
      const double share = point[0].get<double>() / run["steps"].get<double>();
      point.insert(point.begin() + 1, seconds * share);
    }
    Evaluate(call, run);
  });
  if (!record.contains("lengths")) {
    record["lengths"] = Measured(call, call.about.at("measure_lengths"), scope);
  }
}

void DeriveTable3(const json& about, json& values) {
  values["rows"] = MethodsRun(about.at("methods"), values.at("runs"));
  for (json& row : values["rows"]) {
    if (row["runs"].size() > 1) row["seeds"] = row["runs"].size();
  }
  values["by_length"] = WithRuns(about.at("methods"), values.at("lengths"));
  values["length_rows"] = Pivot(values.at("lengths"), about.at("methods"), "seconds");
}

}  // namespace linnet::experiments
