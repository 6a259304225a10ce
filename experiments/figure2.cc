// linnet reproduce figure2: the copy task (section 4.1.1 of the paper). Softmax, linear and
// Reformer attention learn to repeat a sequence.
#include "experiments/experiment.h"
#include "experiments/measure.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

// Positions per chunk of Reformer: 32 at the paper's maximum length of 128, so that a sequence of
// 2 * max_length + 1 tokens has nine chunks.
int Chunk(int max_length) { return (max_length + 3) / 4; }

// The first validated update with a loss below `loss`, or null. `curve` holds [update, loss, ...].
json FirstBelow(const json& curve, double loss) {
  for (const json& point : curve) {
    if (point.at(1).get<double>() < loss) return point.at(0);
  }
  return nullptr;
}

}  // namespace

void MeasureFigure2(const Call& call, json& record) {
  const json& scale = call.about.at("scales").at(call.options.at("scale"));
  const int max_length = call.Get<int>("max-length", scale.at("max_length"));
  record = Origin();
  record.update({{"scale", call.options.at("scale")},
                 {"seed", call.options.at("seed")},
                 {"max_length", max_length},
                 {"threads", call.options.at("threads")}});
  json values = call.options;
  values.update({{"of", scale},
                 {"max_length", max_length},
                 {"chunk", Chunk(max_length)},
                 {"equal_time", false}});
  const Scope about{call.about};
  record["runs"] = Trained(call, {values, &about}, [](const json&, json&) {});
  record["steps"] = record["runs"][0]["steps"];
  record["drop_at"] = record["runs"][0]["drop_at"];
}

void DeriveFigure2(const json& about, json& values) {
  values["rows"] = MethodsRun(about.at("methods"), values.at("runs"));
  for (json& row : values["rows"]) {
    row["until_2"] = FirstBelow(row["run"]["curve"], 1e-2);
    row["until_3"] = FirstBelow(row["run"]["curve"], 1e-3);
  }
  values["network"] = about.at("scales").at(values.at("scale")).at("describes");
  values["chunk"] = Chunk(values.at("max_length"));
}

}  // namespace linnet::experiments
