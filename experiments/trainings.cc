// linnet reproduce figure2: the copy task (section 4.1.1 of the paper). Softmax, linear and
// Reformer attention learn to repeat a sequence.
//
// linnet reproduce recall: associative recall by every kind of attention.
//
// linnet reproduce table3: phone recognition (section 4.3) with linear, softmax and Reformer
// attention and a bidirectional LSTM, trained for equal times; and the training time per second of
// audio against the length of utterances.
#include "experiments/experiment.h"
#include "experiments/measure.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// The first update in `curve` ([[update, loss, ...], ...]) with a loss below `loss`, or null.
json FirstBelow(const json& curve, double loss) {
  for (const json& point : curve) {
    if (point.at(1).get<double>() < loss) return point.at(0);
  }
  return nullptr;
}

// Adds the error rates of a trained model, and its recognition speed (real_time_factor).
void Evaluate(const Call& call, json& run) {
  const std::string data = call.options.at("data");
  const std::string model =
      call.lab.ModelOf(StrCat(run.at("method").get<std::string>(), "-", run.at("seed").get<int>()));
  for (const char* split : {"validation", "test"}) {
    // Not cached: before the next call, the user may repair recordings that could not be read.
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

void MeasureTrainings(const Call& call, json& record) {
  json values = Begin(call, record);
  if (call.about.contains("scales")) {
    const json& of = values["of"] = call.about["scales"].at(call.options.at("scale"));
    const json longest = record["max_length"] = values["max_length"] =
        call.Get("max-length", of.at("max_length"));
    record["min_length"] = values["min_length"] =
        std::min(of.at("min_length").get<int>(), (longest.get<int>() + 1) / 2);
  }
  const Scope about{call.about};
  record["runs"] = Trained(call, {values, &about}, [](json&) {});
}

void DeriveFigure2(const json& about, json& values) {
  for (json& row : values["rows"]) {
    row["until_2"] = FirstBelow(row["run"]["curve"], 1e-2);
    row["until_3"] = FirstBelow(row["run"]["curve"], 1e-3);
  }
  if (!values.contains("drop_at")) values["drop_at"] = values["runs"][0].at("drop_at");
  values["network"] = about.at("scales").at(values.at("scale")).at("describes");
  // Records of linnet before 0.2 have no minimum: it was 10.
  if (!values.contains("min_length")) values["min_length"] = 10;
}

void MeasureTable3(const Call& call, json& record) {
  const json values = Begin(call, record);
  record["threads"] = values.at("processors");
  const Scope about{call.about}, scope{values, &about};
  record["runs"] = Trained(call, scope, [&](json& run) {
    // Uses the planned time, since other load may have slowed down the training itself.
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
  values["by_length"] = WithRuns(about.at("methods"), values.at("lengths"));
  values["length_rows"] = Pivot(values.at("lengths"), about.at("methods"), "seconds");
}

}  // namespace linnet::experiments
