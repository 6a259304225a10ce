// linnet reproduce figure2: the copy task (§4.1.1). Softmax, linear and Reformer attention learn to
// repeat a sequence.
#include <algorithm>
#include <iostream>

#include "experiments/experiment.h"
#include "linnet/base/units.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// Reformer: nine chunks (of 32 at the paper's length).
int Chunk(int max_length) { return (max_length + 3) / 4; }

// The first update with a loss below `loss`, or null.
json FirstBelow(const json& curve, double loss) {
  for (const json& point : curve) {
    if (point.at(1).get<double>() < loss) return point.at(0);
  }
  return nullptr;
}

}  // namespace

void MeasureFigure2(const Call& call, json& record) {
  const std::string scale_name = call.options.at("scale");
  const json& scale = call.about.at("scales").at(scale_name);
  const int max_length = call.Get<int>("max-length", scale.at("max_length"));
  std::vector<std::vector<std::string>> flags;
  std::vector<double> seconds;
  double together = 0;
  for (const json& method : call.about.at("methods")) {
    std::vector<std::string>& of_method = flags.emplace_back();
    Append(of_method, "copy", "--preset", "paper", "--attention", method.at("attention"));
    Append(of_method, scale.at("flags"), "--lsh-buckets", call.about.at("buckets"), "--lsh-chunk",
           Chunk(max_length), "--max-length", max_length, "--seed", call.options.at("seed"),
           "--checkpoint-every", 500);
    call.AppendThreads(of_method);
    seconds.push_back(call.lab.SecondsAnUpdate(method.at("label"), method.at("name"), of_method));
    together += seconds.back();
  }
  constexpr double kUpdates = 0.9;  // share of the time; the rest is for validations
  const double scale_steps = scale.at("steps"), scale_drop_at = scale.at("drop_at");
  const std::vector<double> wanted(seconds.size(), call.Get("steps", scale_steps));
  const int64_t steps = StepsWithin({call.Get<std::string>("budget", ""), kUpdates}, seconds,
                                    wanted, /*equal_time=*/false, /*least=*/100)[0];
  const auto count = static_cast<double>(steps);
  std::cerr << steps << " updates of each: about " << FormatSeconds(count * together / kUpdates)
            << " in all\n";
  // The learning rate drops to a tenth: after 3,000 updates in the paper, after three quarters of
  // all at the small scale.
  const auto drop_at = static_cast<int64_t>(
      std::max(1.0, std::min(scale_drop_at, count * scale_drop_at / scale_steps)));
  record.update(Origin());
  record.update({{"scale", scale_name},
                 {"steps", steps},
                 {"drop_at", drop_at},
                 {"seed", call.options.at("seed")},
                 {"max_length", max_length},
                 {"threads", call.options.at("threads")}});
  for (size_t m = 0; m < seconds.size(); ++m) {
    const json& method = call.about.at("methods")[m];
    Append(flags[m], "--lr-drop-at", drop_at, "--log-every", 20, "--validate-every", 100);
    const json trained = call.lab.Train(method.at("label"), method.at("name"), flags[m], steps);
    record["runs"].push_back(
        {{"method", method.at("name")},
         {"seconds_an_update", seconds[m]},
         {"parameters", trained.at("info").at("parameters")},
         {"curve", CurveOf(trained.at("metrics"), {"validation_loss", "validation_accuracy"})}});
  }
}

void DeriveFigure2(const json& about, json& values) {
  values["rows"] = json::array();
  for (json& row : WithRuns(about.at("methods"), values.at("runs"))) {
    if (row["run"].is_null()) continue;
    row["until_2"] = FirstBelow(row["run"]["curve"], 1e-2);
    row["until_3"] = FirstBelow(row["run"]["curve"], 1e-3);
    values["rows"].push_back(row);
  }
  values["network"] = about.at("scales").at(values.at("scale")).at("describes");
  values["chunk"] = Chunk(values.at("max_length"));
}

}  // namespace linnet::experiments
