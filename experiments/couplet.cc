// linnet reproduce couplet: models that write the second line of a Chinese couplet, from the first.
// Measures their perplexity and how often their lines keep the rules of couplets; shows samples.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "experiments/experiment.h"
#include "experiments/measure.h"
#include "linnet/model/spec.h"
#include "linnet/tasks/couplet/couplets.h"
#include "linnet/tasks/couplet/rules.h"

namespace linnet::experiments {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kShown = 40;    // couplets listed on the page
constexpr size_t kAtOnce = 200;  // lines per call of `linnet couplet`

// Adds 1 to the count of each rule that the second line keeps.
void Count(const std::string& first, const std::string& second, json& kept) {
  const CoupletRules rules = KeptRules(first, second);
  const json holds = {{"length", rules.length},     {"punctuation", rules.punctuation},
                      {"places", rules.places},     {"repeats", rules.repeats},
                      {"mirrored", rules.mirrored}, {"all", rules.all()}};
  for (const auto& [rule, held] : holds.items()) kept[rule] = kept.value(rule, 0) + held.get<int>();
}

// The display name of a model: runs/couplet/model.safetensors is named after its folder.
std::string NameOf(const std::string& path) {
  const fs::path whole = fs::path(path).lexically_normal();
  return whole.stem() == "model" ? whole.parent_path().filename() : whole.stem();
}

// The validation perplexities of a run, and facts about the training from its model file.
json Training(const Lab& lab, const std::string& run) {
  const std::string model = fs::path(run) / "model.safetensors";
  const json info = lab.Run({"info", model, "--json"});
  const json &spec = info.at("spec"), &training = info.at("training");
  const json points = CurveOf(plot::ReadRunLog(run), {"validation_perplexity"});
  if (points.empty()) throw InputError(run, ": its metrics.jsonl has no validation records");
  json curve = {{"run", NameOf(model)},
                {"points", points},
                {"network", spec.value("network", "transformer")},
                {"parameters", info.at("parameters")}};
  for (const char* field : {"layers", "d_model"}) curve[field] = spec.at(field);
  for (const char* field : {"data", "steps", "epochs", "seconds"})
    curve[field] = training.at(field);
  return curve;
}

// Lets the model write second lines for the first `count` pairs, with the flags of `way` (greedy,
// drawn, ...), and adds the first kShown to `shown`. Returns how many of them keep each rule.
json Write(const Call& call, const std::string& model, const json& way, const CoupletSet& set,
           size_t count, json& shown) {
  const std::string name = way.at("name");
  std::cerr << "writing second lines: " << name << "\n";
  json kept = {{"way", name}, {"lines", count}};
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    std::vector<std::string> couplet = {"couplet", model, "--json", "--count", "1"};
    Append(couplet, way.at("flags"));
    const size_t end = std::min(count, begin + kAtOnce);
    for (size_t i = begin; i < end; ++i) couplet.push_back(set.pairs[i].first);
    const json written = call.lab.Measure(StrCat(name, "-", begin), couplet);
    for (size_t i = begin; i < end; ++i) {
      const json& answers = written.at(i - begin).at("answers");
      const std::string second = answers.empty() ? "" : answers.at(0).at("text").get<std::string>();
      Count(set.pairs[i].first, second, kept);
      if (i < kShown) shown[i][name] = second;
    }
  }
  return kept;
}

}  // namespace

void MeasureCouplet(const Call& call, json& record) {
  const std::vector<std::string> models = call.options.at("model"), data = call.options.at("data");
  record.update(Origin());
  for (const char* list : {"perplexities", "curves", "rules", "shown"})
    record[list] = json::array();
  for (const json& run : call.options.at("run")) {
    record["curves"].push_back(Training(call.lab, run));
  }
  json values = {{"models", json::array()}, {"sets", json::array()}};
  for (const std::string& model : models) {
    values["models"].push_back({{"model", NameOf(model)}, {"path", model}});
  }
  for (const std::string& folder : data) {
    const std::string name = fs::path(folder).lexically_normal().filename();
    values["sets"].push_back({{"data", name}, {"folder", folder}});
  }
  record["perplexities"] = Measured(call, call.about.at("measure"), {values});
  const CoupletSet set = LoadCouplets(data[0], CoupletSplit::kTest);
  const size_t count = std::min<size_t>(set.pairs.size(), call.options.at("lines").get<size_t>());
  for (size_t i = 0; i < std::min(count, kShown); ++i) {
    record["shown"].push_back({{"first", set.pairs[i].first}, {"second", set.pairs[i].second}});
  }
  for (const json& way : call.about.at("ways")) {
    record["rules"].push_back(Write(call, models[0], way, set, count, record["shown"]));
  }
}

}  // namespace linnet::experiments
