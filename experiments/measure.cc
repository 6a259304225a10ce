#include "experiments/measure.h"

#include <algorithm>
#include <iostream>

#include "linnet/base/units.h"

namespace linnet::experiments {

using nlohmann::json;

namespace {

struct Planned {
  const json& method;
  double seconds;  // per update
  int64_t steps = 0;
};

// Sets Planned::steps of each method to the value of "wanted", or less if the budget requires it.
void Plan(const json& training, const Scope& scope, std::vector<Planned>& methods) {
  const json budget = Evaluate("budget", scope);
  const std::string wanted = Evaluate("wanted", scope);
  const bool equal_time = Evaluate("equal_time", scope);
  const double share = training.value("share", 1.0), least = training.value("least", 1.0);
  double together = 0, all = 0;
  for (const Planned& planned : methods) together += planned.seconds;
  for (Planned& planned : methods) {
    const json seconds = {{"seconds", planned.seconds}};
    const Scope inner{planned.method, &scope};
    double steps = Evaluate(wanted, {seconds, &inner});
    if (!budget.is_null()) {
      const double round = equal_time ? static_cast<double>(methods.size()) * planned.seconds
                                      : together;  // seconds of the budget per update
      steps = std::min(steps, share * ParseSeconds(budget) / round);
      if (steps < least) {
        throw InputError("--budget ", budget.get<std::string>(), " is too little: ", least,
                         " updates of each method, and their measurements, take about ",
                         FormatSeconds(least * round / share));
      }
    }
    planned.steps = static_cast<int64_t>(std::max(steps, least));
    all += static_cast<double>(planned.steps) * planned.seconds / share;
  }
  std::cerr << "planned: about " << FormatSeconds(all) << " of training and validation\n";
}

}  // namespace

std::vector<std::string> Command(const json& described, const Scope& scope) {
  std::vector<std::string> arguments;
  for (const json& part : described) {
    if (part.is_object()) {
      const auto add = [&](const Scope& inner) {
        Append(arguments, Command(part.at("add"), inner));
      };
      if (part.contains("each")) {
        ForEach(part["each"], scope, add);
      } else if (Elements(part.at("unless").get<std::string>(), scope).empty()) {
        add(scope);
      }
      continue;
    }
    const std::string text = part;
    const bool tag = text.starts_with("{{") && text.find("}}") == text.size() - 2;
    Append(arguments, tag ? Evaluate(std::string_view(text).substr(2, text.size() - 4), scope)
                          : json(Fill(text, scope)));
  }
  return arguments;
}

json Measured(const Call& call, const json& described, const Scope& scope) {
  json records = json::array();
  const json add = described.value("add", json::object());
  ForEach(described.value("each", json()), scope, [&](const Scope& inner) {
    const std::string says = Fill(described.value("says", ""), inner);
    if (!says.empty()) std::cerr << says << "\n";
    json answer = call.lab.Measure(Fill(described.at("name").get<std::string>(), inner),
                                   Command(described.at("command"), inner));
    if (!answer.is_array()) answer = json::array({answer});
    for (const json& one : answer) {
      if (described.contains("only") && one.at("name") != described["only"]) continue;
      json record = described.contains("keep") ? json::object() : one;
      for (const json& field : described.value("keep", json::array())) {
        if (one.contains(field)) record[field.get<std::string>()] = one.at(field);
      }
      for (const auto& [field, expression] : add.items()) {
        record[field] = Evaluate(expression.get<std::string>(), inner);
      }
      records.push_back(std::move(record));
    }
  });
  return records;
}

json Begin(const Call& call, json& record) {
  json values = call.options;
  record.update(Origin());
  for (const std::string option : call.about.at("keep")) record[option] = values.at(option);
  values["processors"] = call.Threads();
  return values;
}

void MeasureRecords(const Call& call, json& record) {
  const json values = Begin(call, record);
  const Scope about{call.about};
  record["records"] = Measured(call, call.about.at("measure"), {values, &about});
}

json Trained(const Call& call, const Scope& scope, FunctionRef<void(json&)> finish) {
  const json& training = call.about.at("training");
  const json let = training.value("let", json::object());
  const bool seeded = training.contains("seeds");
  std::vector<Planned> methods;
  for (const json& method : call.about.at("methods")) {
    const json first = seeded ? json{{"seed", 1}} : json::object();
    const Scope of_method{method, &scope};
    const double seconds = call.lab.SecondsAnUpdate(
        method.at("label"), method.at("name"), Command(training.at("flags"), {first, &of_method}));
    methods.push_back(Planned{method, seconds});
  }
  Plan(training, scope, methods);
  json runs = json::array();
  for (const Planned& planned : methods) {
    const std::string label = planned.method.at("label"), name = planned.method.at("name");
    const Scope of_method{planned.method, &scope};
    json values = {{"steps", planned.steps}};
    const Scope inner{values, &of_method};
    const int seeds = Evaluate(training.value("seeds", "1"), inner);
    for (const auto& [field, expression] : let.items()) {
      values[field] = Evaluate(expression.get<std::string>(), inner);
    }
    for (int seed = 1; seed <= seeds; ++seed) {
      if (seeded) values["seed"] = seed;
      std::vector<std::string> flags = Command(training.at("flags"), inner);
      Append(flags, Command(training.at("schedule"), inner));
      json run = call.lab.Train(seeded ? StrCat(label, ", seed ", seed) : label,
                                seeded ? StrCat(name, "-", seed) : name, flags, planned.steps,
                                training.at("curve"));
      run.update(values);
      run["method"] = name, run["seconds_an_update"] = planned.seconds;
      finish(run);
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

}  // namespace linnet::experiments
